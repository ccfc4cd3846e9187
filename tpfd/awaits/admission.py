"""Takes completions in: one road for every transport.

Everything that can be slow or wrong happens before the transaction: finding the interaction, checking the token,
decoding and validating. The transaction is a pure decision on three rows; what it admitted is durable before anybody
hears of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from attrs import define, frozen

from tpfd import payloads
from tpfd.awaits import answers
from tpfd.awaits.ports import Outlet, UnsentSink
from tpfd.awaits.sessions import Sessions
from tpfd.codec.strict_json import parse_json
from tpfd.core import admission, awaits, late, tokens
from tpfd.core.admission import Ended, Verdict
from tpfd.core.contracts import held_reason, runs_here
from tpfd.core.kinds import INTERACTION, LATE
from tpfd.core.late import LateReason
from tpfd.core.records import InteractionRecord, TenantId
from tpfd.core.tokens import Claims, SigningKey
from tpfd.core.transact import Read
from tpfd.errors import Conflict, DispatchError, MalformedError, NotFound, TimedOut, TokenRejected, TpfdError
from tpfd.pipeline.model import Correlation
from tpfd.program import Program
from tpfd.runtime import CommitDue, Runtime


@frozen(kw_only=True)
class Answer:
    """A completion as it came from outside.

    Attributes:
        payload: parsed JSON data.
        actor: who says so; None: not told.
        by_broker: it came through a broker, to which not everybody can write: it is kept whatever it names.
    """

    tenant_id: TenantId
    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    key: str | None = None
    payload: object = None
    actor: str | None = None
    by_broker: bool = False


@define(eq=False, kw_only=True)
class Admission:
    """Admits completions and deadlines for this process.

    Attributes:
        commit: commits what makes executions due, and may begin with them at once.
        rejects: where items go that can never be sent, of steps that recover.
        keys: secrets of resume tokens; the first signs, all verify.
    """

    runtime: Runtime
    sessions: Sessions
    outlet: Outlet
    commit: CommitDue
    rejects: UnsentSink
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
            Conflict: another answer was admitted, the execution is over, or it was submitted under another contract
                than the one that is loaded here (``contract_changed``).
            StoreError: nothing was stored; send it again.
        """
        claims = None if answer.resume_token is None else tokens.verify(answer.resume_token, self.keys)
        name = answer.interaction_id or answer.correlation_id or (claims and claims.interaction_id)
        if not name:
            raise MalformedError("a completion names its interactionId, correlationId or resumeToken")
        seen = await self._find(answer.tenant_id, name)
        if seen is None:
            raise await self._unknown(answer, name, claims)
        program = self.runtime.program(seen.pipeline_id)
        if claims is not None:
            tokens.check_identity(claims, seen)
        if (reason := held_reason(seen, self.runtime.contracts)) is not None:
            raise await self._not_read(answer, seen, claims, reason)
        if claims is None and self._needs_token(program, seen):
            raise TokenRejected("this step takes completions only with its resume token")
        return await self._admit(seen, answer.payload, actor=answer.actor, key=answer.key)

    async def match(
        self, tenant_id: TenantId, orphan_id: str, interaction_id: str, actor: str | None
    ) -> tuple[InteractionRecord, bool]:
        """Admits the body of an orphan as the answer to an interaction, on an operator's word instead of a token.

        Once it is admitted the orphan stands with the late completions of that execution. To match it again with the
        same interaction is the same as to send the same answer again.

        Raises:
            NotFound: there is no such orphan, or no such interaction.
            Conflict: the orphan was matched with another interaction, or this one cannot be answered here.
            TpfdError: as `complete`; the orphan then stays.
        """
        key = LATE.key(tenant_id, orphan_id)
        orphan = await self.runtime.store.get(key)
        if orphan is None or orphan.reason not in (LateReason.ORPHAN, LateReason.MATCHED):
            raise NotFound(f"there is no orphan {orphan_id!r}")
        if orphan.reason == LateReason.MATCHED and orphan.interaction_id != interaction_id:
            raise Conflict(f"{orphan_id} was matched with {orphan.interaction_id} before", code="orphan_matched")
        seen = await self._find(tenant_id, interaction_id)
        if seen is None:
            raise NotFound(f"there is no interaction {interaction_id!r}")
        if (reason := held_reason(seen, self.runtime.contracts)) is not None:
            raise Conflict(f"{interaction_id} cannot be answered here: {reason}", code="contract_changed")
        body = await payloads.text_of(self.runtime, tenant_id, late.body_of(orphan))
        admitted = await self._admit(seen, parse_json(body), actor=actor, key=None)
        await self.runtime.store.transact((Read(key),), functools.partial(late.match, key=key, interaction=seen))
        return admitted

    async def _admit(
        self, seen: InteractionRecord, payload: object, *, actor: str | None, key: str | None
    ) -> tuple[InteractionRecord, bool]:
        """Admits what is known to be meant for this interaction."""
        program = self.runtime.program(seen.pipeline_id)
        answer = await answers.read(self.runtime, program, seen, payload, actor=actor, key=key)
        admit = functools.partial(
            admission.admit,
            seen=seen,
            completion=answer.completion,
            now=self.runtime.now(),
            policy=self.runtime.policy,
        )
        if self.sessions.find(seen.interaction_id) is None:
            ended = await self.commit(admission.reads(seen), admit, 1)
        else:  # it goes to a live session
            ended = await self.runtime.store.transact(admission.reads(seen), admit)
        self.tell(seen, ended, answer.value)
        if ended.verdict is not Verdict.ADMITTED:
            self.runtime.metrics.completions_dropped.add(ended.verdict)
        return self._answered(ended, seen)

    async def expire(self, seen: InteractionRecord) -> Ended:
        """Does what is due by time for one interaction. Raises StoreError."""
        expire = functools.partial(admission.expire, seen=seen, now=self.runtime.now(), policy=self.runtime.policy)
        ended = await self.commit(admission.reads(seen), expire, 1)
        self.tell(seen, ended, None)
        return ended

    async def give_up(self, seen: InteractionRecord, message: str) -> Ended:
        """Ends an interaction that can never be sent: with its execution, or with its item if the step recovers.

        An item is in the reject sink before anything says that it is done. If this process dies in between, the
        request comes back with its lease, cannot be sent again, and the item is rejected once more.

        Raises:
            StoreError: nothing was decided; doing it again is harmless.
        """
        rejected = False
        if self._recovers(seen):
            asks = await self.runtime.store.transact(
                admission.reads(seen), functools.partial(admission.item_of, seen=seen)
            )
            if asks is not None:
                try:
                    await self.rejects.reject_unsent(asks, seen, message)
                    rejected = True
                except DispatchError as error:
                    message = f"{message}; and its item could not be rejected: {error.message}"
        fail = functools.partial(
            admission.fail,
            seen=seen,
            message=message,
            now=self.runtime.now(),
            policy=self.runtime.policy,
            rejected=rejected,
        )
        ended = await self.commit(admission.reads(seen), fail, 1)
        self.tell(seen, ended, None)
        return ended

    def _recovers(self, seen: InteractionRecord) -> bool:
        """Whether the step that asks hands items on which it fails to the reject sink."""
        if not runs_here(seen, self.runtime.contracts):
            return False
        program = self.runtime.program(seen.pipeline_id)
        return program.recovers(program.step(seen.step_index))

    def tell(self, seen: InteractionRecord, ended: Ended, value: Any) -> None:
        """Passes on, as hints, what a transaction has made of an interaction."""
        runtime = self.runtime
        step = (seen.pipeline_id, seen.step_id)
        if ended.verdict is Verdict.ADMITTED:
            runtime.metrics.completions_admitted.add(*step)
        if ended.verdict in (Verdict.ADMITTED, Verdict.REJECTED):
            self._count(seen, ended)
        if ended.interaction is not None and not ended.interaction.status.open:
            if ended.verdict is Verdict.ADMITTED:
                runtime.metrics.completion_latency_s.observe((runtime.now() - seen.created_epoch_ms) / 1000, *step)
            self.sessions.tell(ended.interaction, value if ended.verdict is Verdict.ADMITTED else None)
            self.outlet.settled(ended.interaction)
        if ended.unit_ended:
            runtime.metrics.units_terminal.add(*step, ended.verdict.upper())
            # Its execution may have failed with it.
            runtime.bells.ended.ring()
            runtime.bells.tidy.ring()
        if ended.queued:
            runtime.bells.queue.ring()
        if not seen.itemised:
            runtime.bells.facts.ring()

    def _count(self, seen: InteractionRecord, ended: Ended) -> None:
        """What an admitted answer, or a rejected item, is beyond that."""
        metrics, step = self.runtime.metrics, (seen.pipeline_id, seen.step_id)
        if not seen.itemised:
            metrics.units_terminal.add(*step, "COMPLETED")
            metrics.unit_duration_s.observe((self.runtime.now() - seen.created_epoch_ms) / 1000, *step)
            return
        metrics.items_completed.add(*step)
        held = ended.verdict is Verdict.ADMITTED and not ended.due
        if held and self.sessions.find(seen.interaction_id) is None:
            # No session of ours waits for it and it is not parked yet: it is kept until it is wanted.
            metrics.completions_held.add(*step)

    async def _find(self, tenant_id: TenantId, name: str) -> InteractionRecord | None:
        """The interaction by its id; a correlation id is the interaction's id, too."""
        live = self.sessions.find(name)
        if live is not None and live.tenant_id == tenant_id:
            return live
        return await self.runtime.store.get(INTERACTION.key(tenant_id, name))

    async def _unknown(self, answer: Answer, name: str, claims: Claims | None) -> TpfdError:
        """What to say to an answer that meets no interaction; a signed one, or a broker's, is kept first."""
        if claims is None and not answer.by_broker:
            return NotFound(f"there is no interaction {name!r}")
        if claims is not None and (claims.tenant_id, claims.interaction_id) != (answer.tenant_id, name):
            return TokenRejected("the resume token is not valid for this interaction")
        late_id = await self._keep(answer, name)
        return NotFound(f"there is no interaction {name!r}; the completion is kept as orphan {late_id}")

    async def _not_read(
        self, answer: Answer, seen: InteractionRecord, claims: Claims | None, reason: str
    ) -> TpfdError:
        """What to say to an answer that cannot be read under the contract loaded here.

        Whoever waits for our reply is told to send it again; a signed one, or a broker's, is kept first.
        """
        message = f"{seen.interaction_id} cannot be answered here: {reason}"
        if claims is None and not answer.by_broker:
            return Conflict(f"{message}. Send the answer again after that", code="contract_changed")
        late_id = await self._keep(answer, seen.interaction_id)
        return Conflict(f"{message}. It is kept as orphan {late_id}, to be matched after that", code="contract_changed")

    async def _keep(self, answer: Answer, name: str) -> str:
        """Keeps an answer as an orphan; its id."""
        body, digest = await answers.keep_raw(self.runtime, answer.tenant_id, name, answer.payload)
        record = late.orphan(answer.tenant_id, name, body, digest, answer.actor, self.runtime.now())
        await self.runtime.store.transact((Read(LATE.key_of(record)),), functools.partial(late.keep, record=record))
        self.runtime.metrics.completions_dropped.add(LateReason.ORPHAN)
        return record.late_id

    def _needs_token(self, program: Program, seen: InteractionRecord) -> bool:
        spec = program.step(seen.step_index).await_spec
        return spec is not None and spec.correlation is Correlation.SIGNED_RESUME_TOKEN

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
        if awaits.was_rejected(interaction):
            return Conflict(
                f"{name} could not be sent and its item was rejected; this completion is kept for the record",
                code="late_completion",
            )
        if verdict is Verdict.TIMED_OUT:
            return TimedOut(f"{name} timed out before this completion came; it is kept for the record")
        return Conflict(
            f"{name} is {interaction.status} and its execution is over; this completion is kept for the record",
            code="late_completion",
        )
