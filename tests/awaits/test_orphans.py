"""Completions that meet no interaction: kept if they are signed, and matched by an operator."""

from __future__ import annotations

from decimal import Decimal

import pytest
from attrs import evolve

from tests.awaits.conftest import Seat
from tests.awaits.desk import TIMEOUT_MS, Desk, asked
from tests.engine.pipelines import BEGIN, FINISH, batch, begin, finish, program, waiting
from tests.engine.world import TENANT, S
from tpfd import payloads
from tpfd.core.kinds import CHUNK, EXECUTION, LATE, MANIFEST
from tpfd.core.records import ExecutionId, FactType, InteractionRecord, LateRecord, TenantId
from tpfd.core.tokens import Claims, SigningKey, claims_of, sign
from tpfd.errors import Conflict, NotFound, PayloadError, TimedOut, TokenRejected, TpfdError
from tpfd.http.service import Completed

SIGNED = waiting(transport="interaction-api", settings="correlation: {strategy: signedResumeToken}")
SCALAR = program(BEGIN + SIGNED + FINISH, {"begin": begin, "finish": finish})
KEY = SigningKey(None, b"k" * 32)
YES = {"number": 7, "text": "yes"}
GONE = asked("01GONE", 1)
STEP = 1


def token_for(interaction_id: str, tenant: str = TENANT) -> str:
    """A token that we have signed once for something that is not there any more."""
    return sign(Claims(tenant, interaction_id, interaction_id, "01GONE", "ask", 1, 0), KEY)


def token_of(record: InteractionRecord) -> str:
    return sign(claims_of(record, 0), KEY)


async def orphaned(desk: Desk, payload: object = YES) -> LateRecord:
    """Leaves an orphan behind."""
    error = await desk.refused(GONE, payload, token=token_for(GONE), actor="bank")
    assert isinstance(error, NotFound)
    found = next(record for record in reversed(await desk.late(None)) if record.late_id in error.message)
    assert (found.reason, found.interaction_id, found.execution_id, found.actor) == ("orphan", GONE, None, "bank")
    return found


async def match(desk: Desk, late_id: str, interaction_id: str, tenant: TenantId = TENANT) -> Completed:
    return await desk.process.coordinator.match_orphan(tenant, late_id, interaction_id=interaction_id, actor="ops")


async def unmatched(desk: Desk, late_id: str, interaction_id: str, tenant: TenantId = TENANT) -> TpfdError:
    try:
        done = await match(desk, late_id, interaction_id, tenant)
    except TpfdError as error:
        return error
    raise AssertionError(f"it was matched: {done}")


async def test_a_signed_completion_without_an_interaction_is_kept_once(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    first = await orphaned(desk)
    desk.clock.now += 1
    assert await orphaned(desk) == first
    await orphaned(desk, {"number": 7, "text": "no"})
    assert len(await desk.late(None)) == 2
    assert b'completion_dropped_total{reason="orphan"} 3.0' in desk.process.runtime.metrics.exposition()


async def test_an_unsigned_one_is_not_kept(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    assert isinstance(await desk.refused(GONE, YES), NotFound)
    assert await desk.late(None) == ()


async def test_a_token_keeps_no_orphan_under_another_name_or_tenant(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    for named in ({"interaction_id": "01OTHER"}, {"interaction_id": None, "correlation_id": "01OTHER"}):
        error = await desk.refused(payload=YES, token=token_for(GONE), **named)
        assert isinstance(error, TokenRejected)
    assert isinstance(await desk.refused(GONE, YES, token=token_for(GONE, "t2")), TokenRejected)
    assert await desk.late(None) == ()


async def test_a_match_admits_the_body_and_the_execution_goes_on(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    orphan = await orphaned(desk)
    execution = await desk.submit(batch(7))
    done = await match(desk, orphan.late_id, asked(execution, STEP))
    assert (done.interaction_id, done.status, done.duplicate) == (asked(execution, STEP), "COMPLETED", False)
    assert (await desk.interaction(execution, STEP)).actor == "ops"
    assert await desk.late(None) == ()
    (kept,) = await desk.late(execution)
    assert kept == evolve(
        orphan,
        reason="matched",
        interaction_id=asked(execution, STEP),
        execution_id=ExecutionId(execution),
        step_id="ask",
    )
    await desk.work()
    assert await desk.result(execution) == YES
    assert await desk.facts(execution, FactType.COMPLETION_ADMITTED) == [
        {"interactionId": asked(execution, STEP), "actor": "ops"}
    ]


async def test_a_repeated_match_is_a_duplicate_and_another_one_refused(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    orphan = await orphaned(desk)
    first, second = await desk.submit(batch(7)), await desk.submit(batch(7))
    await match(desk, orphan.late_id, asked(first, STEP))
    await desk.work()
    assert (await match(desk, orphan.late_id, asked(first, STEP))).duplicate
    error = await unmatched(desk, orphan.late_id, asked(second, STEP))
    assert (type(error), error.code) == (Conflict, "orphan_matched")
    assert (await desk.interaction(second, STEP)).status.open
    await desk.refused(GONE, YES, token=token_for(GONE))
    assert await desk.late(None) == (), "the same completion again is no new orphan"


async def test_a_match_that_was_cut_off_after_the_admission_is_finished_by_the_next(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    orphan = await orphaned(desk)
    execution = await desk.submit(batch(7))
    await desk.process.coordinator.admission._admit(await desk.interaction(execution, STEP), YES, actor="ops", key=None)
    assert (await match(desk, orphan.late_id, asked(execution, STEP))).duplicate
    assert await desk.late(None) == ()


async def test_a_match_gets_every_answer_that_a_completion_gets_and_the_orphan_stays(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    orphan, unfit = await orphaned(desk), await orphaned(desk, {"number": "seven"})
    answered, timed_out, over, waiting_ = [await desk.submit(batch(7)) for _ in range(4)]
    other = token_of(await desk.interaction(answered, STEP))
    await desk.complete(None, {"number": 7, "text": "first"}, token=other)
    await desk.process.cancel(over)

    conflicting = await unmatched(desk, orphan.late_id, asked(answered, STEP))
    assert (type(conflicting), conflicting.code) == (Conflict, "conflicting_completion")
    late = await unmatched(desk, orphan.late_id, asked(over, STEP))
    assert (type(late), late.code) == (Conflict, "late_completion")
    misfit = await unmatched(desk, unfit.late_id, asked(waiting_, STEP))
    assert isinstance(misfit, PayloadError)
    assert [problem.path for problem in misfit.problems] == ["$.number", "$.text"]
    desk.clock.now += TIMEOUT_MS
    assert isinstance(await unmatched(desk, orphan.late_id, asked(timed_out, STEP)), TimedOut)
    assert await desk.status(timed_out) is S.FAILED

    assert {record.late_id for record in await desk.late(None)} == {orphan.late_id, unfit.late_id}
    for execution in (answered, over, timed_out):
        assert len(await desk.late(execution)) == 1, "what the match was refused is kept there, too"


async def test_what_is_not_there_cannot_be_matched(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    orphan = await orphaned(desk)
    execution = await desk.submit(batch(7))
    assert isinstance(await unmatched(desk, "nothing", asked(execution, STEP)), NotFound)
    assert isinstance(await unmatched(desk, orphan.late_id, asked(execution, 5)), NotFound)
    assert isinstance(await unmatched(desk, orphan.late_id, asked(execution, STEP), TenantId("t2")), NotFound)
    await desk.process.cancel(execution)
    await desk.refused(None, YES, token=token_of(await desk.interaction(execution, STEP)))
    (late,) = await desk.late(execution)
    assert isinstance(await unmatched(desk, late.late_id, asked(execution, STEP)), NotFound), "it is no orphan"


@pytest.mark.parametrize("text", ["short", "long" * 20_000], ids=["inline", "stored-apart"])
async def test_a_body_is_kept_to_the_digit_and_goes_with_its_execution(desk_for: Seat, text: str) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    body = {"number": 7, "text": text, "unknown": [Decimal("9.70"), Decimal("1E+2"), None]}
    orphan = await orphaned(desk, body)
    assert orphan.body == f'{{"number":7,"text":"{text}","unknown":[9.70,1E+2,null]}}'
    execution = await desk.submit(batch(7))
    await match(desk, orphan.late_id, asked(execution, STEP))
    await desk.work()
    assert await desk.result(execution) == {"number": 7, "text": text}
    row = await desk.store.get(LATE.key(TENANT, orphan.late_id))
    assert row is not None
    assert (row.stored_id is None) == (text == "short")
    await desk.pass_time(desk.process.runtime.policy.succeeded_ttl_ms)
    assert await desk.store.get(EXECUTION.key(TENANT, execution)) is None
    assert await desk.store.get(LATE.key_of(row)) is None
    if row.stored_id is not None:
        assert await desk.store.get(MANIFEST.key(TENANT, row.stored_id)) is None
        assert await desk.store.get(CHUNK.key(TENANT, payloads.chunk_id(row.stored_id, 0))) is None


async def test_the_orphans_are_not_to_be_had_as_an_executions(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    await orphaned(desk)
    with pytest.raises(NotFound):
        await desk.late("orphan")
