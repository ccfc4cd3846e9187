"""A pipeline as the rest of tpfd sees it: checked, complete, frozen.

Whatever stands here was validated by the loader: names are known, types fit, durations are milliseconds. None in a
setting means that the file does not say, and the daemon's default counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum

from attrs import field, frozen

from tpfd.errors import NotFound
from tpfd.pipeline.names import service_names
from tpfd.pipeline.types import TypeTable

JsonData = str | bool | int | Decimal | None | list["JsonData"] | dict[str, "JsonData"]


class StepKind(StrEnum):
    SERVICE = "service"
    AWAIT = "await"
    COMMAND = "command"


class Cardinality(StrEnum):
    ONE_TO_ONE = "ONE_TO_ONE"
    ONE_TO_MANY = "ONE_TO_MANY"
    MANY_TO_ONE = "MANY_TO_ONE"
    MANY_TO_MANY = "MANY_TO_MANY"
    SIDE_EFFECT = "SIDE_EFFECT"  # one in, the same one out; what the function returns is not used

    @property
    def takes_many(self) -> bool:
        return self in {Cardinality.MANY_TO_ONE, Cardinality.MANY_TO_MANY}

    @property
    def gives_many(self) -> bool:
        return self in {Cardinality.ONE_TO_MANY, Cardinality.MANY_TO_MANY}


class Parallelism(StrEnum):
    AUTO = "AUTO"  # bounded merge, order not kept
    PARALLEL = "PARALLEL"  # bounded merge, order not kept
    SEQUENTIAL = "SEQUENTIAL"  # one at a time, order kept


class Correlation(StrEnum):
    INTERACTION_ID = "interactionId"
    CORRELATION_ID = "correlationId"
    SIGNED_RESUME_TOKEN = "signedResumeToken"  # noqa: S105 - the strategy's name


class DuplicatePolicy(StrEnum):
    RETURN_RECORDED = "RETURN_RECORDED"
    FAIL = "FAIL"


class AfterIngest(StrEnum):
    KEEP = "keep"
    DELETE = "delete"
    MOVE = "move"


class PayloadMode(StrEnum):
    METADATA = "metadata"
    REFERENCE = "reference"
    TEXT = "text"
    BYTES = "bytes"


class ObjectFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"


class OnExisting(StrEnum):
    FAIL = "fail"
    REPLACE = "replace"
    VERSION = "version"


@frozen(kw_only=True)
class RetrySpec:
    """How a step's own call is tried again within one attempt of its segment. None: the daemon's default."""

    limit: int | None = None  # tries after the first
    wait_ms: int | None = None  # before the first repeat; doubled for each next one
    max_backoff_ms: int | None = None  # the wait never grows beyond it


@frozen(kw_only=True)
class AwaitSpec:
    """How an await step reaches the outside and what it does about time."""

    transport: str  # interaction-api | webhook | websocket | kafka | sqs
    settings: Mapping[str, object]  # the transport's own keys, as written: request, response, headers ...
    correlation: Correlation  # how a completion finds its interaction
    timeout_ms: int  # deadline of each interaction, from its creation
    assignee: str | None = None  # person it is given to; None: nobody in particular
    group: str | None = None  # group it is shown to; None: everybody
    remind_after_ms: int | None = None  # one reminder event after that time; None: none
    escalate_to: str | None = None  # assignee after `escalate_after_ms`; None: never escalated
    escalate_after_ms: int | None = None  # set together with escalate_to
    on_timeout: JsonData = None  # value admitted at the deadline, as JSON data; None: the deadline fails it
    completion_type: str | None = None  # type the outside answers with, if it is not the step's output type
    projector: str | None = None  # "module:function" (request, completion, metadata) -> output; with completion_type


@frozen(kw_only=True)
class CommandSpec:
    """One external effect that is recorded, so that it is not made twice."""

    command: str | None = None  # command name; None: `operation` of a connector
    operation: str | None = None  # operation of the connector `using`
    using: str | None = None  # name in `connectors`
    id_generator: str | None = None  # "module:function" input -> command id; None: digest of the idempotency fields
    duplicate_policy: DuplicatePolicy = DuplicatePolicy.RETURN_RECORDED
    config: Mapping[str, object] = {}  # for the connector, as written


@frozen(kw_only=True)
class Connector:
    """A configured connector that command steps name with `using`."""

    provider: str
    version: int | None = None  # of the provider's contract; None: any
    config: Mapping[str, object] = {}  # for the provider, as written


@frozen(kw_only=True)
class Step:
    """One typed unit of the pipeline."""

    index: int  # place in the pipeline, from 0
    name: str  # as authored
    step_id: str  # the name in kebab case; unique in the pipeline
    kind: StepKind
    cardinality: Cardinality
    input_type: str  # record or union
    output_type: str  # record or union; equals input_type for SIDE_EFFECT
    accepts: tuple[str, ...] = ()  # records it takes of a union input; empty: all of them
    terminal: bool = False  # must cover whatever still arrives
    timeout_ms: int | None = None  # of one call of the function; None: no limit of its own
    idempotency_fields: tuple[str, ...] = ()  # input fields that make the business key; empty: the whole input
    await_spec: AwaitSpec | None = None  # set for kind await
    command: CommandSpec | None = None  # set for kind command
    parallelism: Parallelism | None = None  # None: the daemon's default
    retry: RetrySpec = RetrySpec()
    max_concurrency: int | None = None  # calls (or unresolved interactions) at a time; None: the daemon's default
    buffer_capacity: int | None = None  # items in the channel before it; None: the daemon's default
    recover_on_failure: bool | None = None  # a failed item goes to the reject sink; None: the daemon's default
    python: str | None = None  # "module:function"; None: not bound (await steps need none)
    inline: bool = False  # a plain def runs in the event loop; it must not block
    process: bool = False  # a plain def runs in another process, for CPU-bound work
    other_names: frozenset[str] = frozenset()  # of the authored step that this await was a part of

    def answers_to(self, name: str) -> bool:
        """Whether a look-up by this name means this step: id, authored name, or the framework's generated name."""
        return name in (self.step_id, self.name) or name in service_names(self.name) or name in self.other_names


@frozen(kw_only=True)
class ObjectSource:
    """Where objects come from that become executions."""

    provider: str  # filesystem | s3 | stdio
    root: str  # folder or bucket; "" for stdio
    prefix: str = ""  # only keys that begin with it
    include: tuple[str, ...] = ()  # globs on the key behind the prefix; empty: all
    exclude: tuple[str, ...] = ()  # globs; they win over include
    poll_enabled: bool = True
    poll_interval_ms: int = 10_000
    batch_size: int = 50  # objects taken in per poll
    identity_fields: tuple[str, ...] = ("provider", "container", "key", "etag")  # what makes an object the same one
    payload_mode: PayloadMode = PayloadMode.REFERENCE
    after: AfterIngest = AfterIngest.KEEP  # what happens to the object when its execution has succeeded
    move_to: str | None = None  # folder or prefix; set with AfterIngest.MOVE
    settings: Mapping[str, object] = {}  # what only the provider knows: region, endpoint, charset, maxBytes


@frozen(kw_only=True)
class ObjectTarget:
    """Where terminal outputs are published as objects."""

    provider: str  # filesystem | s3 | stdio
    root: str  # folder or bucket; "" for stdio
    prefix: str = ""  # put before every key
    key_template: str = "{executionId}"  # knows groupKey, executionId, pipelineId, date, inputName
    content_type: str = "application/octet-stream"
    format: ObjectFormat = ObjectFormat.JSONL
    max_open_groups: int = 1  # objects written at a time
    on_existing: OnExisting = OnExisting.FAIL  # another object stands under the key
    settings: Mapping[str, object] = {}  # what only the provider knows


@frozen(kw_only=True)
class InputBinding:
    """Feeds the first step from an object source."""

    source: str  # name in `sources`
    type_name: str  # the first step's input
    mapper: str | None = None  # "module:function" object -> input; None: by field name
    selection: Mapping[str, object] = {}  # several objects as one input, as written; empty: one object, one execution


@frozen(kw_only=True)
class OutputBinding:
    """Publishes what the last step gives."""

    target: str  # name in `publish`
    type_name: str  # the last step's output
    mapper: str | None = None  # "module:function" output -> row; None: the fields as they are


@frozen(kw_only=True)
class Pipeline:
    """A whole pipeline definition."""

    pipeline_id: str  # appName in kebab case
    app_name: str
    version: int  # of the template language: 2 or 3
    contract_version: str  # digest of what steps and stored values mean: see `tpfd.pipeline.contract_version`
    types: TypeTable = field(eq=False)
    steps: tuple[Step, ...]
    sources: Mapping[str, ObjectSource] = {}
    publish: Mapping[str, ObjectTarget] = {}
    connectors: Mapping[str, Connector] = {}
    input: InputBinding | None = None  # None: executions come by submit only
    output: OutputBinding | None = None  # None: the result is kept in the execution
    search: Mapping[str, str] = {}  # search name -> field of the input
    unused_keys: tuple[str, ...] = ()  # paths of keys that only the Java side uses

    @property
    def input_type(self) -> str:
        return self.steps[0].input_type

    @property
    def output_type(self) -> str:
        return self.steps[-1].output_type

    def step(self, name: str) -> Step:
        """The step that answers to a name.

        Raises:
            NotFound: none does.
        """
        return self._find(self.steps, name)

    def await_step(self, name: str) -> Step:
        """The await step that answers to a name.

        Raises:
            NotFound: none does.
        """
        return self._find(tuple(step for step in self.steps if step.kind is StepKind.AWAIT), name)

    def _find(self, steps: tuple[Step, ...], name: str) -> Step:
        for step in steps:
            if step.answers_to(name):
                return step
        known = ", ".join(step.step_id for step in steps)
        raise NotFound(f"pipeline {self.pipeline_id} has no step {name!r}; it has: {known or 'none of that kind'}")
