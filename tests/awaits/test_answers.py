"""Every answer that a completion can get, through the real admission, on every store; and what is kept of it."""

from __future__ import annotations

import pytest
import trio

from tests.awaits.conftest import Seat
from tests.awaits.desk import TIMEOUT_MS, Desk, asked
from tests.engine.pipelines import BEGIN, FINISH, PARSE, Batch, Row, batch, begin, finish, program, waiting
from tests.engine.world import TENANT, S
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import FactType, InteractionStatus, TerminalReason
from tpfd.core.tokens import SigningKey, claims_of, sign
from tpfd.errors import Conflict, MalformedError, NotFound, PayloadError, TimedOut, TokenRejected, TooLarge

ASK = waiting(transport="interaction-api")
SIGNED = waiting(transport="interaction-api", settings="correlation: {strategy: signedResumeToken}")
SCALAR = program(BEGIN + ASK + FINISH, {"begin": begin, "finish": finish})
STRICT = program(BEGIN + SIGNED + FINISH, {"begin": begin, "finish": finish})
KEY = SigningKey(None, b"k" * 32)
YES = {"number": 7, "text": "yes"}
NO = {"number": 7, "text": "no"}
STEP = 1


async def parked(desk: Desk) -> str:
    execution = await desk.submit(batch(7))
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    return execution


async def dropped(desk: Desk, reason: str) -> bool:
    return f'tpf_await_completion_dropped_total{{reason="{reason}"}} 1.0'.encode() in (
        desk.process.runtime.metrics.exposition()
    )


# ── the five statuses of 03 ──


async def test_an_answer_is_admitted_and_the_execution_goes_on(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    done = await desk.complete(asked(execution, STEP), YES, key="k1")
    assert (done.interaction_id, done.execution_id, done.status, done.duplicate) == (
        asked(execution, STEP),
        execution,
        "COMPLETED",
        False,
    )
    await desk.work()
    assert await desk.result(execution) == YES
    record = await desk.interaction(execution, STEP)
    assert (record.actor, record.completion_key, record.completed_epoch_ms) == ("ann", "k1", desk.clock.now)
    assert await desk.late(execution) == ()


@pytest.mark.parametrize("later", [False, True], ids=["before-it-goes-on", "after-its-end"])
async def test_1_a_duplicate_changes_nothing(desk_for: Seat, later: bool) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    await desk.complete(asked(execution, STEP), YES)
    if later:
        await desk.work()
        await desk.pass_time(2 * TIMEOUT_MS)
    before = await desk.interaction(execution, STEP), await desk.execution(execution)
    again = await desk.complete(None, {"text": "yes", "number": 7}, correlation_id=asked(execution, STEP), actor="bob")
    assert (again.duplicate, again.status) == (True, "COMPLETED")
    assert before == (await desk.interaction(execution, STEP), await desk.execution(execution))
    assert await desk.late(execution) == ()
    assert await dropped(desk, "duplicate")


@pytest.mark.parametrize("later", [False, True], ids=["before-it-goes-on", "after-its-end"])
async def test_1_another_answer_is_refused_and_kept_and_the_first_stands(desk_for: Seat, later: bool) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    await desk.complete(asked(execution, STEP), YES)
    if later:
        await desk.work()
    before = await desk.interaction(execution, STEP), await desk.execution(execution)
    for _ in range(2):
        error = await desk.refused(asked(execution, STEP), NO, actor="bob")
        assert (type(error), error.code) == (Conflict, "conflicting_completion")
    assert before == (await desk.interaction(execution, STEP), await desk.execution(execution))
    (kept,) = await desk.late(execution)
    assert (kept.reason, kept.body, kept.actor, kept.interaction_id, kept.step_id) == (
        "conflicting",
        '{"number":7,"text":"no"}',
        "bob",
        asked(execution, STEP),
        "ask",
    )
    assert await desk.facts(execution, FactType.COMPLETION_CONFLICTING) == [{"actor": "bob"}]
    await desk.work()
    assert await desk.result(execution) == YES


async def test_2_an_answer_past_the_deadline_performs_the_timeout_itself(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    desk.clock.now += TIMEOUT_MS
    assert isinstance(await desk.refused(asked(execution, STEP), YES), TimedOut)
    ended = await desk.execution(execution)
    assert (ended.status, ended.terminal_reason, ended.error_code) == (
        S.FAILED,
        TerminalReason.AWAIT_TIMEOUT,
        "await_timeout",
    )
    assert [kept.reason for kept in await desk.late(execution)] == ["late"]


async def test_2_one_millisecond_before_the_deadline_it_counts(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    desk.clock.now += TIMEOUT_MS - 1
    await desk.complete(asked(execution, STEP), YES)
    await desk.pass_time(1)
    assert await desk.result(execution) == YES


async def test_a10_3_an_answer_after_the_timeout_is_refused_kept_and_counted(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    await desk.pass_time(TIMEOUT_MS)
    before = await desk.interaction(execution, STEP), await desk.execution(execution)
    assert before[0].status is InteractionStatus.TIMED_OUT
    desk.clock.now += 2_000
    error = await desk.refused(asked(execution, STEP), YES, actor="bank")
    assert isinstance(error, TimedOut)
    assert "timed out before" in error.message
    assert before == (await desk.interaction(execution, STEP), await desk.execution(execution))
    (kept,) = await desk.late(execution)
    assert (kept.reason, kept.body, kept.actor, kept.created_epoch_ms) == (
        "late",
        '{"number":7,"text":"yes"}',
        "bank",
        desk.clock.now,
    )
    assert await desk.facts(execution, FactType.COMPLETION_LATE) == [{"actor": "bank"}]
    assert await dropped(desk, "timed_out")


@pytest.mark.parametrize("cleaned_up", [False, True])
async def test_4_an_answer_after_the_end_of_its_execution_is_late(desk_for: Seat, cleaned_up: bool) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    await desk.process.cancel(execution)
    if cleaned_up:
        await desk.sweep()
    status = (await desk.interaction(execution, STEP)).status
    assert status is (InteractionStatus.CANCELLED if cleaned_up else InteractionStatus.DISPATCHED)
    error = await desk.refused(asked(execution, STEP), YES)
    assert (type(error), error.code) == (Conflict, "late_completion")
    assert "over" in error.message
    assert (await desk.interaction(execution, STEP)).response is None
    assert [kept.reason for kept in await desk.late(execution)] == ["late"]
    assert await dropped(desk, "ended")


async def test_a_refused_answer_does_not_stand_in_the_way_of_a_redrive(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    await desk.pass_time(TIMEOUT_MS)
    await desk.refused(asked(execution, STEP), YES)
    await desk.process.redrive(await desk.execution(execution))
    await desk.work()
    await desk.complete(asked(execution, STEP), YES)
    await desk.work()
    assert await desk.result(execution) == YES


# ── what is no answer at all ──


async def test_a11_what_does_not_exist_is_404_and_nothing_is_kept(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    for name in (
        asked("01UNKNOWN", STEP),  # an unknown execution
        asked(execution, 9),  # an unknown step
        asked(execution, 0),  # a step that is no await
        asked(execution, STEP, 1),  # an item of a scalar await
        "",
        "  ",
        "x",
        f"{asked(execution, STEP)} ",
        "/../" * 20,
    ):
        error = await desk.refused(name or None, YES, correlation_id=None if name else "nobody")
        assert isinstance(error, NotFound), name
    assert await desk.late(None) == ()
    assert await desk.late(execution) == ()
    assert (await desk.interaction(execution, STEP)).status.open


async def test_another_tenants_is_as_unknown_as_one_that_never_was(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    execution = await parked(desk)
    token = sign(claims_of(await desk.interaction(execution, STEP), desk.clock.now), KEY)
    theirs = await desk.refused(asked(execution, STEP), YES, tenant="t2")
    nobodys = await desk.refused(asked("01UNKNOWN", STEP), YES, tenant="t2")
    assert type(theirs) is type(nobodys) is NotFound
    assert theirs.message.replace(execution, "X") == nobodys.message.replace("01UNKNOWN", "X")
    assert isinstance(await desk.refused(asked(execution, STEP), YES, tenant="t2", token=token), TokenRejected)
    assert (await desk.interaction(execution, STEP)).status.open


async def test_a_completion_that_names_nothing_is_malformed(desk_for: Seat) -> None:
    assert isinstance(await desk_for(SCALAR).refused(None, YES), MalformedError)


@pytest.mark.parametrize(
    ("payload", "paths"),
    [
        ({}, ["$.number", "$.text"]),
        ({"number": "seven", "text": 7}, ["$.number", "$.text"]),
        ({"number": 7}, ["$.text"]),
        ([YES], ["$"]),
        ("yes", ["$"]),
        (None, ["$"]),
    ],
)
async def test_a11_what_does_not_fit_is_422_with_every_path(desk_for: Seat, payload: object, paths: list[str]) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    before = await desk.interaction(execution, STEP)
    error = await desk.refused(asked(execution, STEP), payload)
    assert isinstance(error, PayloadError)
    assert [problem.path for problem in error.problems] == paths
    assert await desk.interaction(execution, STEP) == before
    assert await desk.late(execution) == ()


async def test_an_answer_over_the_size_limit_is_413_and_nothing_is_stored(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, max_payload_bytes=100_000)
    execution = await parked(desk)
    error = await desk.refused(asked(execution, STEP), {"number": 7, "text": "x" * 100_001})
    assert isinstance(error, TooLarge)
    assert "execution.max-payload allows 100,000" in error.message
    assert (await desk.interaction(execution, STEP)).status.open


CHANGED = program(
    BEGIN + waiting("ask_again", transport="interaction-api") + FINISH, {"begin": begin, "finish": finish}
)


async def test_an_answer_where_the_contract_was_changed_is_to_be_sent_again(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await parked(desk)
    before = await desk.interaction(execution, STEP)
    error = await desk_for(CHANGED).refused(asked(execution, STEP), YES)
    assert (type(error), error.code) == (Conflict, "contract_changed")
    assert "put the pipeline file of its time back" in error.message
    assert (await desk.interaction(execution, STEP), await desk.late(None)) == (before, ())
    await desk.complete(asked(execution, STEP), YES)
    await desk.work()
    assert await desk.status(execution) is S.SUCCEEDED


async def test_a_signed_answer_where_the_contract_was_changed_is_kept_and_matched_later(desk_for: Seat) -> None:
    desk, other = desk_for(STRICT, keys=(KEY,)), desk_for(CHANGED, keys=(KEY,))
    execution = await parked(desk)
    name = asked(execution, STEP)
    error = await other.refused(None, YES, token=sign(claims_of(await desk.interaction(execution, STEP), 0), KEY))
    assert (type(error), error.code) == (Conflict, "contract_changed")
    (kept,) = await desk.late(None)
    assert kept.late_id in error.message
    with pytest.raises(Conflict, match="cannot be answered here"):
        await other.process.coordinator.match_orphan(TENANT, kept.late_id, interaction_id=name, actor="ops")
    await desk.process.coordinator.match_orphan(TENANT, kept.late_id, interaction_id=name, actor="ops")
    await desk.work()
    assert await desk.status(execution) is S.SUCCEEDED


async def test_a_token_for_something_else_is_rejected_whatever_the_contract(desk_for: Seat) -> None:
    desk, other = desk_for(STRICT, keys=(KEY,)), desk_for(CHANGED, keys=(KEY,))
    first, second = await parked(desk), await parked(desk)
    token = sign(claims_of(await desk.interaction(first, STEP), 0), KEY)
    assert isinstance(await other.refused(asked(second, STEP), YES, token=token), TokenRejected)
    assert await desk.late(None) == ()


# ── tokens ──


async def test_a_step_that_wants_a_token_takes_nothing_without_one(desk_for: Seat) -> None:
    desk = desk_for(STRICT, keys=(KEY,))
    execution = await parked(desk)
    assert isinstance(await desk.refused(asked(execution, STEP), YES), TokenRejected)
    token = sign(claims_of(await desk.interaction(execution, STEP), desk.clock.now), KEY)
    await desk.complete(None, YES, token=token)
    assert isinstance(await desk.refused(asked(execution, STEP), NO), TokenRejected), "nothing of its state is told"
    assert (await desk.complete(None, YES, token=token)).duplicate


async def test_a_token_is_for_one_interaction_only(desk_for: Seat) -> None:
    desk = desk_for(STRICT, keys=(KEY,))
    first, second = await parked(desk), await parked(desk)
    token = sign(claims_of(await desk.interaction(first, STEP), desk.clock.now), KEY)
    assert isinstance(await desk.refused(asked(second, STEP), YES, token=token), TokenRejected)
    assert isinstance(await desk.refused(None, YES, correlation_id=asked(second, STEP), token=token), TokenRejected)
    assert (await desk.interaction(second, STEP)).status.open


@pytest.mark.parametrize("where", [0, 10, -1])
async def test_a_token_that_was_tampered_with_is_refused(desk_for: Seat, where: int) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    execution = await parked(desk)
    token = sign(claims_of(await desk.interaction(execution, STEP), desk.clock.now), KEY)
    wrong = list(token)
    wrong[where] = "A" if wrong[where] != "A" else "B"
    for bad in ("".join(wrong), token.partition(".")[0], f"{token}.x", "", "ä.ö"):
        if bad:
            assert isinstance(await desk.refused(asked(execution, STEP), YES, token=bad), TokenRejected), bad
    assert (await desk.interaction(execution, STEP)).status.open


async def test_a_late_answer_with_a_good_token_is_late_and_no_token_error(desk_for: Seat) -> None:
    desk = desk_for(STRICT, keys=(KEY,))
    execution = await parked(desk)
    token = sign(claims_of(await desk.interaction(execution, STEP), desk.clock.now), KEY)
    await desk.pass_time(TIMEOUT_MS)
    assert isinstance(await desk.refused(None, YES, token=token), TimedOut)


# ── early ──


async def test_an_answer_that_comes_while_the_stream_is_still_asked_is_kept_and_used(desk_for: Seat) -> None:
    answered: list[int] = []

    async def parse(source: Batch) -> object:
        for number in range(source.count):
            if number == 3:
                first = asked(execution_of[0], STEP)
                while await desk.store.get(INTERACTION.key(TENANT, first)) is None:
                    await trio.lowlevel.checkpoint()
                done = await desk.complete(first, {"number": 0, "text": "early"})
                answered.append(done.duplicate)
                assert await desk.status(execution_of[0]) is S.RUNNING
                assert not (await desk.unit(execution_of[0], STEP)).dispatch_complete
            yield Row(number, "")

    desk = desk_for(program(PARSE + ASK + FINISH, {"parse": parse, "finish": finish}))
    execution_of = [(await desk.process.submit(batch(5))).execution_id]
    await desk.work()
    (execution,) = execution_of
    assert answered == [False]
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    for item in range(1, 5):
        await desk.complete(asked(execution, STEP, item), {"number": item, "text": "later"})
    await desk.sweep()
    assert [line["text"] for line in await desk.result(execution)] == ["early", *["later"] * 4]


async def test_before_anybody_was_asked_there_is_nothing_to_answer(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(KEY,))
    submitted = await desk.process.submit(batch(7))
    name = asked(submitted.execution_id, STEP)
    assert isinstance(await desk.refused(name, YES), NotFound)
    await desk.work()
    await desk.complete(name, YES)
    await desk.work()
    assert await desk.result(submitted.execution_id) == YES
