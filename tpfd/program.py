"""A pipeline made ready to run: its contract, its functions, its codec, and what each await step asks."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from tpfd.codec.digests import digest
from tpfd.codec.payloads import PayloadCodec
from tpfd.core.awaits import AwaitTerms
from tpfd.core.budget import scope_of
from tpfd.core.records import JsonText, Payload
from tpfd.errors import ConfigError, InternalError, NonRetryableError, Problem
from tpfd.pipeline.contract import StepFunction
from tpfd.pipeline.model import Cardinality, Parallelism, Pipeline, Step, StepKind
from tpfd.pipeline.routing import Routing

QUEUED_TRANSPORTS = frozenset({"websocket", "webhook", "kafka", "sqs"})
"""Transports whose requests wait in a queue until somebody takes them: a socket, or our own sender."""

LIVE_TRANSPORTS = frozenset({"websocket", "kafka", "sqs"})
"""Transports whose answers can be handed to a live session."""

ENDPOINT_TRANSPORTS = frozenset({"websocket", "kafka", "sqs"})
"""Transports with an endpoint to which an admission budget belongs."""


@frozen(kw_only=True)
class StepDefaults:
    """What counts where a step does not say.

    Attributes:
        retry_limit: tries after the first, within one attempt.
        retry_wait_ms: wait before the first of them; doubled for each next.
        max_backoff_ms: longest such wait.
        recover_on_failure: a failed item goes to the reject sink.
        max_concurrency: calls (or unresolved interactions) at a time.
        buffer_capacity: items in the channel before a step.
        sequential: one at a time, in order.
        budgets: the number of requests that are out is bounded over all replicas together.
    """

    retry_limit: int = 3
    retry_wait_ms: int = 2_000
    max_backoff_ms: int = 30_000
    recover_on_failure: bool = False
    max_concurrency: int = 128
    buffer_capacity: int = 128
    sequential: bool = False
    budgets: bool = True


@frozen(kw_only=True)
class Program:
    """Everything the engine asks about one pipeline."""

    pipeline: Pipeline
    codec: PayloadCodec
    functions: Mapping[str, StepFunction]
    routing: Routing
    terms: Mapping[int, AwaitTerms] = field(factory=dict)
    defaults: StepDefaults = field(factory=StepDefaults)

    @property
    def pipeline_id(self) -> str:
        return self.pipeline.pipeline_id

    @property
    def end(self) -> int:
        """The terminal cursor: one behind the last step."""
        return len(self.pipeline.steps)

    def step(self, index: int) -> Step:
        return self.pipeline.steps[index]

    def type_at(self, index: int) -> str:
        """Type of the values that stand before step `index`, or behind the last."""
        return self.pipeline.output_type if index >= self.end else self.pipeline.steps[index].input_type

    def payload(self, index: int, value: object) -> Payload:
        """A value as the input of step `index`."""
        type_name = self.type_at(index)
        return Payload(type_name=type_name, json=self.encode(type_name, value))

    def encode(self, type_name: str, value: object) -> JsonText:
        return JsonText(self.codec.encode(type_name, value))

    def business_key(self, index: int, value: object) -> str:
        """Digest of the fields that an await step declares as its idempotency key; "" if it declares none."""
        fields = self.step(index).idempotency_fields
        if not fields:
            return ""
        data = self.codec.unstructure(self.step(index).input_type, value)
        return digest("\n".join(f"{name}={data.get(name)}" for name in fields))[:16]

    def type_name(self, value: object) -> str:
        """Record type of a value.

        Raises:
            NonRetryableError: a step gave something that is no record of this pipeline.
        """
        name = self.pipeline.types.name_of(type(value))
        if name is None:
            raise NonRetryableError(
                f"{type(value).__name__} is no record type of pipeline {self.pipeline_id}", code="wrong_type"
            )
        return name

    def concurrency(self, step: Step) -> int:
        """Calls at a time; 1 keeps the order."""
        sequential = self.defaults.sequential if step.parallelism is None else False
        if sequential or step.parallelism is Parallelism.SEQUENTIAL:
            return 1
        return step.max_concurrency or self.defaults.max_concurrency

    def budget_size(self, step: Step) -> int:
        """Requests of an await step that may be out at once, over all executions and replicas."""
        return step.max_concurrency or self.defaults.max_concurrency

    def capacity(self, step: Step) -> int:
        """Items in the channel before the step."""
        return step.buffer_capacity or self.defaults.buffer_capacity

    def recovers(self, step: Step) -> bool:
        """Whether a failed item is rejected instead of failing the execution."""
        return self.defaults.recover_on_failure if step.recover_on_failure is None else step.recover_on_failure

    def function(self, step: Step) -> StepFunction:
        """The user's function of a step.

        Raises:
            InternalError: the step has none; loading should have refused it.
        """
        try:
            return self.functions[step.step_id]
        except KeyError:
            raise InternalError(f"step {step.step_id} of {self.pipeline_id} has no function") from None


def compile_program(
    pipeline: Pipeline, functions: Mapping[str, StepFunction], routing: Routing, defaults: StepDefaults
) -> Program:
    """Puts a program together.

    Raises:
        ConfigError: the pipeline asks for something that this release cannot run, each with its path.
    """
    problems = list(_not_yet(pipeline))
    if problems:
        raise ConfigError(problems)
    codec = PayloadCodec(pipeline.types)
    terms = {
        step.index: _terms(pipeline, step, codec, budgets=defaults.budgets)
        for step in pipeline.steps
        if step.kind is StepKind.AWAIT
    }
    return Program(pipeline=pipeline, codec=codec, functions=functions, routing=routing, terms=terms, defaults=defaults)


def suffix_stop(pipeline: Pipeline, await_index: int) -> int:
    """First step behind an itemised await that its children do not run: the next aggregate, or the end."""
    for step in pipeline.steps[await_index + 1 :]:
        if step.cardinality.takes_many:
            return step.index
    return len(pipeline.steps)


def _terms(pipeline: Pipeline, step: Step, codec: PayloadCodec, *, budgets: bool) -> AwaitTerms:
    spec = step.await_spec
    if spec is None:
        raise InternalError(f"await step {step.step_id} has no await settings")
    on_timeout = on_timeout_count = None
    if spec.on_timeout is not None:
        written = spec.on_timeout if step.cardinality.gives_many else [spec.on_timeout]
        if not isinstance(written, list):
            path = f"$.steps[{step.index}].await.onTimeout"
            raise ConfigError([Problem(path, f"a list of {step.output_type} is wanted: the answer is MANY")])
        texts = [codec.encode(step.output_type, codec.decode(step.output_type, one)) for one in written]
        on_timeout = JsonText("[" + ",".join(texts) + "]" if step.cardinality.gives_many else texts[0])
        on_timeout_count = len(texts) if step.cardinality.gives_many else None
    return AwaitTerms(
        step_id=step.step_id,
        step_index=step.index,
        continue_index=step.index + 1,
        suffix_stop_index=suffix_stop(pipeline, step.index),
        input_type=step.input_type,
        output_type=step.output_type,
        transport_type=spec.transport,
        pulled=spec.transport in QUEUED_TRANSPORTS,
        timeout_ms=spec.timeout_ms,
        assignee=spec.assignee,
        group=spec.group,
        remind_after_ms=spec.remind_after_ms,
        escalate_after_ms=spec.escalate_after_ms,
        escalate_to=spec.escalate_to,
        on_timeout=on_timeout,
        on_timeout_count=on_timeout_count,
        budget_scope=scope_of(pipeline.pipeline_id, step.step_id) if budgets and _has_endpoint(step) else None,
        takes_many=step.cardinality.takes_many,
        gives_many=step.cardinality.gives_many,
    )


def _has_endpoint(step: Step) -> bool:
    """Whether the step asks one-to-one at an endpoint of which only so many requests may be out."""
    spec = step.await_spec
    return spec is not None and spec.transport in ENDPOINT_TRANSPORTS and step.cardinality is Cardinality.ONE_TO_ONE


def _not_yet(pipeline: Pipeline) -> list[Problem]:
    """What the language allows and this release does not run, said at load time and not at three in the morning."""
    problems = []
    for step in pipeline.steps:
        path = f"$.steps[{step.index}]"
        if step.process:
            problems.append(Problem(f"{path}.process", "process: true is not supported by this release of tpfd"))
        if step.kind is StepKind.COMMAND:
            problems.append(Problem(f"{path}.kind", "command steps are not supported by this release of tpfd"))
        if step.kind is not StepKind.AWAIT:
            continue
        if step.cardinality is Cardinality.ONE_TO_ONE and not _numbered(pipeline, step.index):
            message = "the items before this await have no stable numbers: a retry could not tell them apart"
            problems.append(Problem(path, f"{message}; expand one value, with only one-to-one steps up to the await"))
    return problems


def _numbered(pipeline: Pipeline, await_index: int) -> bool:
    """Whether an item that arrives at an await has the same number in every run.

    Numbers are given where a stream begins: by an expansion of one value, by a stored list, by the children of a unit.
    A second expansion or a transformation numbers by the order in which items happen to arrive.
    """
    many = stable = False
    for step in pipeline.steps[:await_index]:
        if step.cardinality.takes_many and not step.cardinality.gives_many:
            many = False
        elif step.cardinality.gives_many:
            stable = not many or step.kind is StepKind.AWAIT
            many = True
        elif step.kind is StepKind.AWAIT and many:
            stable = True
    return not many or stable
