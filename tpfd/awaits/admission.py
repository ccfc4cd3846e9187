"""Takes completions in: one road for every transport.

Everything that can be slow or wrong happens before the transaction: finding the interaction, checking the token,
decoding and validating. The transaction is a pure decision on three rows; what it admitted is durable before anybody
hears of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, frozen

from tpfd import payloads
from tpfd.awaits.ports import Outlet
from tpfd.awaits.sessions import Sessions
from tpfd.core import admission, tokens
from tpfd.core.admission import Ended, Verdict
from tpfd.core.awaits import Completion, question_of
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import InteractionRecord, JsonText, Payload, TenantId
from tpfd.core.tokens import SigningKey
from tpfd.core.transact import Decision, Read
from tpfd.errors import (
    Conflict,
    MalformedError,
    NotFound,
    PayloadError,
    Problem,
    TimedOut,
    TokenRejected,
    TooLarge,
    TpfdError,
)
from tpfd.pipeline.model import Correlation
from tpfd.program import Program
from tpfd.runtime import Runtime


@frozen(kw_only=True)
class Answer:
    """A completion as it came from outside.

    Attributes:
        payload: parsed JSON data.
        actor: who says so; None: not told.
    """

    tenant_id: TenantId
    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    key: str | None = None
    payload: object = None
    actor: str | None = None


@define(eq=False, kw_only=True)
class Admission:
    """Admits completions and deadlines for this process.

    Attributes:
        keys: secrets of resume tokens; the first signs, all verify.
    """

    runtime: Runtime
    sessions: Sessions
    outlet: Outlet
    keys: Sequence[SigningKey] = ()

    async def complete(self, answer: Answer) -> tuple[InteractionRecord, bool]:
        """Admits an answer.

        Returns:
            The interaction, and whether the same answer had been admitted before.

        Raises:
            MalformedError: it names no interaction.
            NotFound: no such interaction for this tenant.
            TokenRejected: the token is not for it.
            PayloadError: the payload does not fit, with every path.
            TimedOut: the deadline was first.
            Conflict: another answer was admitted, or the execution is over.
            StoreError: nothing was stored; send it again.
        """
        claims = None if answer.resume_token is None else tokens.verify(answer.resume_token, self.keys)
        name = answer.interaction_id or answer.correlation_id or (claims and claims.interaction_id)
        if not name:
            raise MalformedError("a completion names its interactionId, correlationId or resumeToken")
        seen = await self._find(answer, name, signed=claims is not None)
        program = self.runtime.program(seen.pipeline_id)
        if claims is not None:
            tokens.check_identity(claims, seen)
        elif self._needs_token(program, seen):
            raise TokenRejected("this step takes completions only with its resume token")
        value = await self._typed(program, seen, answer.payload)
        completion = await self._completion(program, seen, answer, value)
        ended = await self.runtime.store.transact(
            admission.reads(seen),
            functools.partial(
                admission.admit,
                seen=seen,
                completion=completion,
                now=self.runtime.now(),
                policy=self.runtime.policy,
            ),
        )
        self.tell(seen, ended, value)
        return self._answered(ended, seen)

    async def expire(self, seen: InteractionRecord) -> Ended:
        """Does what is due by time for one interaction. Raises StoreError."""
        ended = await self.runtime.store.transact(
            admission.reads(seen),
            functools.partial(admission.expire, seen=seen, now=self.runtime.now(), policy=self.runtime.policy),
        )
        self.tell(seen, ended, None)
        return ended

    async def give_up(self, seen: InteractionRecord, message: str) -> Ended:
        """Ends an interaction that can never be sent, and with it its execution. Raises StoreError."""
        ended = await self.runtime.store.transact(
            admission.reads(seen),
            functools.partial(
                admission.fail, seen=seen, message=message, now=self.runtime.now(), policy=self.runtime.policy
            ),
        )
        self.tell(seen, ended, None)
        return ended

    def tell(self, seen: InteractionRecord, ended: Ended, value: Any) -> None:
        """Passes on, as hints, what a transaction has made of an interaction."""
        runtime = self.runtime
        step = (seen.pipeline_id, seen.step_id)
        if ended.verdict is Verdict.ADMITTED:
            runtime.metrics.completions_admitted.add(*step)
        else:
            runtime.metrics.completions_dropped.add(ended.verdict)
        if ended.interaction is not None and not ended.interaction.status.open:
            if ended.verdict is Verdict.ADMITTED:
                runtime.metrics.completion_latency_s.observe((runtime.now() - seen.created_epoch_ms) / 1000, *step)
            self.sessions.tell(ended.interaction, value if ended.verdict is Verdict.ADMITTED else None)
            self.outlet.settled(ended.interaction)
        if ended.due:
            runtime.bells.work.ring()
        if ended.unit_ended:
            # Its execution may have failed with it.
            runtime.bells.ended.ring()
            runtime.bells.sweep.ring()
        if ended.queued:
            runtime.bells.queue.ring()
        if not seen.itemised:
            runtime.bells.facts.ring()

    async def _find(self, answer: Answer, name: str, *, signed: bool) -> InteractionRecord:
        """The interaction by its id; a correlation id is the interaction's id, too."""
        live = self.sessions.find(name)
        if live is not None and live.tenant_id == answer.tenant_id:
            return live
        key = INTERACTION.key(answer.tenant_id, name)
        # As a transaction without writes: answers come in crowds, and a store takes what comes together in one go.
        seen = await self.runtime.store.transact(
            (Read(key, guarded=False),), lambda snapshot: Decision(snapshot.get(key))
        )
        if seen is not None:
            return seen
        if signed:
            await self._keep_orphan(answer, name)
        raise NotFound(f"there is no interaction {name!r}")

    async def _keep_orphan(self, answer: Answer, name: str) -> None:
        """A signed answer without an interaction is kept for an operator."""
        body = JsonText(json.dumps(answer.payload, default=str, ensure_ascii=False, separators=(",", ":")))
        record = admission.orphan(answer.tenant_id, name, body, answer.actor, self.runtime.now())
        await self.runtime.store.transact((), lambda _: Decision(None, puts=(record,)))

    def _needs_token(self, program: Program, seen: InteractionRecord) -> bool:
        spec = program.step(seen.step_index).await_spec
        return spec is not None and spec.correlation is Correlation.SIGNED_RESUME_TOKEN

    async def _typed(self, program: Program, seen: InteractionRecord, payload: object) -> Any:
        """The canonical value of a payload: decoded as the transport's type and projected, if the step says so."""
        terms = program.terms[seen.step_index]
        spec = program.step(seen.step_index).await_spec
        if spec is None or spec.completion_type is None:
            return self._decoded(program, seen.output_type, payload, many=terms.gives_many)
        completion = self._decoded(program, spec.completion_type, payload, many=terms.gives_many)
        request = await payloads.any_value_of(self.runtime, program, seen.tenant_id, question_of(seen))
        value = program.functions[seen.step_id].call(request, completion, _metadata(seen))
        allowed = program.pipeline.types.concrete(seen.output_type)
        for one in value if terms.gives_many else (value,):
            if program.type_name(one) not in allowed:
                raise PayloadError([Problem("$", f"the projector of {seen.step_id} gave no {seen.output_type}")])
        return value

    def _decoded(self, program: Program, type_name: str, payload: object, *, many: bool) -> Any:
        """A value, or of an aggregate answer the list of values, with every problem's path."""
        if not many:
            return program.codec.decode(type_name, payload)
        if not isinstance(payload, list):
            raise PayloadError([Problem("$", f"a list of {type_name} is wanted")])
        limit = self.runtime.settings.max_result_items
        if len(payload) > limit > 0:
            raise TooLarge(f"the answer has {len(payload)} items; await.aggregate-max-output-items allows {limit}")
        values: list[Any] = []
        problems: list[Problem] = []
        for place, one in enumerate(payload):
            try:
                values.append(program.codec.decode(type_name, one))
            except PayloadError as error:
                problems.extend(Problem(f"$[{place}]{found.path[1:]}", found.message) for found in error.problems)
        if problems:
            raise PayloadError(problems)
        return values

    async def _completion(self, program: Program, seen: InteractionRecord, answer: Answer, value: Any) -> Completion:
        """The answer in canonical form; a large one is stored apart, before the transaction."""
        many = program.terms[seen.step_index].gives_many
        encode = functools.partial(program.encode, seen.output_type)
        text = JsonText("[" + ",".join(map(encode, value)) + "]") if many else encode(value)
        count = len(value) if many else None
        stored_id = None
        if len(text) > payloads.INLINE_CHARS:
            payload = Payload(type_name=seen.output_type, json=text, item_count=count)
            slot = f"answer.{seen.step_index}.{seen.item_index}"
            stored = await payloads.stored(self.runtime, seen.tenant_id, seen.execution_id, slot, payload)
            stored_id = stored.stored_id
        return Completion(response=text, stored_id=stored_id, item_count=count, actor=answer.actor, key=answer.key)

    def _answered(self, ended: Ended, seen: InteractionRecord) -> tuple[InteractionRecord, bool]:
        interaction = ended.interaction
        if ended.verdict is Verdict.NOT_FOUND or interaction is None:
            raise NotFound(f"there is no interaction {seen.interaction_id!r}")
        if ended.verdict in (Verdict.ADMITTED, Verdict.DUPLICATE):
            return interaction, ended.verdict is Verdict.DUPLICATE
        raise self._refusal(ended.verdict, interaction)

    def _refusal(self, verdict: Verdict, interaction: InteractionRecord) -> TpfdError:
        name = interaction.interaction_id
        if verdict is Verdict.CONFLICTING:
            return Conflict(
                f"{name} was already completed with another payload, which stands; this one is kept for the record",
                code="conflicting_completion",
            )
        if verdict is Verdict.TIMED_OUT:
            return TimedOut(f"{name} timed out before this completion came; it is kept for the record")
        return Conflict(
            f"{name} is {interaction.status} and its execution is over; this completion is kept for the record",
            code="late_completion",
        )


def _metadata(seen: InteractionRecord) -> Mapping[str, object]:
    return {
        "interactionId": seen.interaction_id,
        "executionId": seen.execution_id,
        "stepId": seen.step_id,
        "itemIndex": seen.item_index,
        **seen.transport_metadata,
    }
