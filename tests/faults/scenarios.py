"""The scenarios of the crash matrix."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import evolve

from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    INLINE,
    PARSE,
    Functions,
    Line,
    Row,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import TENANT, Envelope, Process, S, echo
from tests.faults.around import ingest
from tests.faults.stage import FAST, Scenario, Stage, row
from tpfd.core.kinds import CHUNK, EXECUTION, KINDS, MANIFEST
from tpfd.core.records import InteractionStatus, TerminalReason
from tpfd.errors import Conflict, TimedOut
from tpfd.payloads import INLINE_CHARS

API = "interaction-api"
ROWS = 6


def to_line(row: Row) -> Line:
    return Line(row.number, row.text)


async def slowly(row: Row) -> Line:
    await trio.sleep(10)
    return to_line(row)


async def fail(row: Row) -> Line:
    raise ValueError("the provider is down")


def only(*numbers: int):  # type: ignore[no-untyped-def]
    return lambda envelope: echo(envelope) if envelope["requestPayload"]["number"] in numbers else None


def whole(count: int) -> list[str]:
    return [f"{number},ok row-{number}" for number in range(count)]


SCALAR = program(BEGIN + waiting(transport=API, timeout="PT1M") + FINISH, {"begin": begin, "finish": finish})
LIVE = program(
    PARSE + waiting(more="maxConcurrency: 3", timeout="PT1M") + FINISH, {"parse": parse, "finish": finish}, publish=True
)
PATIENT = program(
    PARSE + waiting(more="maxConcurrency: 3", timeout="PT10M") + FINISH,
    {"parse": parse, "finish": finish},
    publish=True,
)
QUICK = program(BEGIN + service("to_line", "Row", "Line", more=INLINE), {"begin": begin, "to_line": to_line})
SLOW = program(BEGIN + service("slowly", "Row", "Line"), {"begin": begin, "slowly": slowly}, publish=True)
BROKEN = program(BEGIN + service("fail", "Row", "Line"), {"begin": begin, "fail": fail})


def one(stage: Stage) -> str:
    (execution,) = dict.fromkeys(stage.promises.submitted)
    return execution


# ── submit ──


async def submit(stage: Stage) -> None:
    execution = await stage.submit(batch(1))
    await stage.until_status(execution, S.SUCCEEDED)


def submitted(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert record.status is S.SUCCEEDED
    assert record.result is not None
    assert record.result.json == '{"number":1,"text":"row"}'


async def submit_large(stage: Stage) -> None:
    execution = await stage.submit(batch(1, "x" * (INLINE_CHARS + 1)))
    await stage.until_status(execution, S.SUCCEEDED)


def submitted_large(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert record.status is S.SUCCEEDED
    assert record.result is not None
    assert record.result.stored_id is not None


# ── awaits ──


async def scalar(stage: Stage) -> None:
    execution = await stage.submit(batch(1))
    await stage.until(lambda: bool(stage.interactions(is_open=True)))
    await stage.complete(stage.interactions()[0].interaction_id, row(1, "yes"))
    await stage.until_status(execution, S.SUCCEEDED)


def answered(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert record.status is S.SUCCEEDED
    assert record.result is not None
    assert record.result.json == '{"number":1,"text":"yes"}'


async def live(stage: Stage) -> None:
    stage.provider()
    await stage.until_status(await stage.submit(batch(ROWS)), S.SUCCEEDED)


def published(stage: Stage) -> None:
    assert stage.record(one(stage)).status is S.SUCCEEDED
    assert stage.lines() == whole(ROWS)
    assert len(stage.world.disk.placed) == 1


async def demotion(stage: Stage) -> None:
    stage.provider(only(0, 1, 2, 3))
    execution = await stage.submit(batch(ROWS))
    await stage.until_status(execution, S.WAITING_EXTERNAL)
    await trio.sleep(5)
    for number in (5, 4):
        await stage.complete(f"{execution}.s001.{number:09d}", row(number, f"ok row-{number}"))
    await stage.until_status(execution, S.SUCCEEDED)


async def timeout(stage: Stage) -> None:
    await stage.until_status(await stage.submit(batch(1)), S.FAILED)


def timed_out(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert (record.status, record.terminal_reason) == (S.FAILED, TerminalReason.AWAIT_TIMEOUT)
    assert [one.status for one in stage.interactions()] == [InteractionStatus.TIMED_OUT]


async def live_timeout(stage: Stage) -> None:
    stage.provider(only(0, 1, 2))
    await stage.until_status(await stage.submit(batch(ROWS)), S.FAILED)


def live_timed_out(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert (record.status, record.terminal_reason) == (S.FAILED, TerminalReason.AWAIT_TIMEOUT)
    assert stage.world.disk.objects == {}


# ── failures ──


async def retry(stage: Stage) -> None:
    await stage.until_status(await stage.submit(batch(1)), S.DLQ)


def exhausted(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert (record.status, record.terminal_reason) == (S.DLQ, TerminalReason.RETRY_EXHAUSTED)
    assert record.attempt == 2


async def redrive(stage: Stage) -> None:
    """A row is not answered in time; once the provider answers, an operator drives it again."""
    mended = trio.Event()

    def answer(envelope: Envelope) -> object:
        return echo(envelope) if mended.is_set() or envelope["requestPayload"]["number"] != 2 else None

    stage.provider(answer)
    execution = await stage.submit(batch(ROWS))
    await stage.until_status(execution, S.FAILED)
    mended.set()
    while stage.record(execution).status is not S.SUCCEEDED:
        if stage.record(execution).status is S.FAILED:
            await stage.redrive(execution)
        await trio.sleep(1)


async def redrive_parked(stage: Stage) -> None:
    """The same where the stream was parked: the unanswered item times out below a parked parent."""
    stage.provider(only(0, 1, 2, 3))
    execution = await stage.submit(batch(ROWS))
    await stage.until_status(execution, S.FAILED)
    await stage.redrive(execution)
    # A crash may cost so much time that it times out again.
    while (status := stage.record(execution).status) is not S.SUCCEEDED:
        if status is S.FAILED:
            await stage.redrive(execution)
        for interaction in stage.interactions(is_open=True):
            if interaction.item_index > 3 and interaction.redrive_count == stage.record(execution).redrive_count:
                with suppress(Conflict, TimedOut):
                    number = interaction.item_index
                    await stage.complete(interaction.interaction_id, row(number, f"ok row-{number}"))
        await trio.sleep(1)


async def cancel(stage: Stage) -> None:
    stage.provider(only(0, 1))
    execution = await stage.submit(batch(ROWS))
    await stage.until(lambda: len(stage.interactions(is_open=False)) == 2)
    await stage.cancel(execution)


def cancelled(stage: Stage) -> None:
    assert stage.record(one(stage)).status is S.CANCELLED
    assert stage.world.disk.objects == {}


async def drain(stage: Stage) -> None:
    """A slow step and a live session are in the middle when the process is told to go."""
    stage.provider(latency_s=8.0)
    first = await stage.submit(batch(ROWS), pipeline="live")
    second = await stage.submit(batch(1), key="k2", pipeline="test")
    await trio.sleep(3)
    stage.world.processes[0].grace_s = 2.0
    stage.world.processes[0].draining.set()
    for execution in (first, second):
        await stage.until_status(execution, S.SUCCEEDED)


def drained(stage: Stage) -> None:
    for execution in stage.promises.submitted:
        record = stage.record(execution)
        assert (record.status, record.attempt) == (S.SUCCEEDED, 0)
    assert len(stage.world.disk.objects) == 2


NAMED_LIVE = program(
    PARSE + waiting(more="maxConcurrency: 3", timeout="PT10M") + FINISH,
    {"parse": parse, "finish": finish},
    publish=True,
    name="Live",
)

async def retention(stage: Stage) -> None:
    """It lives, fails for an item that is late, and is removed with everything below it when its time is over."""
    stage.provider(only(0, 1, 2))
    await stage.submit(batch(ROWS, "x" * (INLINE_CHARS + 1)))
    await stage.until(lambda: not stage.world.observed.rows(EXECUTION))


def removed(stage: Stage) -> None:
    # A crash in the middle of a submit leaves the large input of an execution that was never there.
    left = {kind.name for kind in KINDS if stage.world.observed.rows(kind)}
    assert left <= {"payload_chunk", "payload_manifest", "permit", "socket"}
    owners = {one.stored_id[:26] for one in stage.world.observed.rows(MANIFEST)}
    assert owners.isdisjoint(stage.promises.submitted)
    assert {one.chunk_id[:26] for one in stage.world.observed.rows(CHUNK)} <= owners


# ── lists ──

LISTS: Functions = {"begin": begin, "parse": parse, "finish": finish}
IN_ORDER = service("finish", "Answer", "Line", more=f"{INLINE}, parallelism: SEQUENTIAL")


def asking(cardinality: str) -> str:
    return waiting(transport=API, more=f"cardinality: {cardinality}")


SPREAD = program(BEGIN + asking("ONE_TO_MANY") + IN_ORDER, LISTS, publish=True)
COLLECT = program(PARSE + asking("MANY_TO_ONE") + FINISH, LISTS)
TRADE = program(PARSE + asking("MANY_TO_MANY") + IN_ORDER, LISTS, publish=True)


async def answer_only(stage: Stage, text: str) -> None:
    """Answers the one request of a list, in these words."""
    execution = await stage.submit(batch(ROWS))
    await stage.until(lambda: bool(stage.interactions(is_open=True)))
    (interaction,) = stage.interactions()
    await stage.complete(interaction.interaction_id, text)
    await stage.until_status(execution, S.SUCCEEDED)


async def answered_by_list(stage: Stage) -> None:
    await answer_only(stage, "[" + ",".join(row(number, f"ok row-{number}") for number in range(ROWS)) + "]")


async def list_answered(stage: Stage) -> None:
    await answer_only(stage, row(1, "yes"))


# ── objects in, webhooks out ──


async def objects(stage: Stage) -> None:
    """Three objects, one of them large, become executions."""
    texts = ("first", "x" * (INLINE_CHARS + 1), "third")
    stage.folder.objects = {f"{number}.json": batch(number, text) for number, text in enumerate(texts)}
    await stage.until(lambda: len(stage.folder.done) == len(texts))


async def take_in(stage: Stage, process: Process) -> None:
    await ingest(process, stage.folder, QUICK).run()


def taken_in(stage: Stage) -> None:
    records = stage.world.observed.rows(EXECUTION)
    assert sorted(one.source_key or "" for one in records) == ["0.json", "1.json", "2.json"]
    assert {one.status for one in records} == {S.SUCCEEDED}
    assert sorted(stage.folder.done) == ["0.json", "1.json", "2.json"]


HOOK = 'webhook, request: {url: "https://hooks.example/ask"}'
SCALAR_HOOK = program(BEGIN + waiting(transport=HOOK) + FINISH, {"begin": begin, "finish": finish})
HOOKS = program(PARSE + waiting(transport=HOOK) + FINISH, {"parse": parse, "finish": finish}, publish=True)
HOOKED = 3


async def hook(stage: Stage) -> None:
    await stage.until_status(await stage.submit(batch(1)), S.SUCCEEDED)


async def hooks(stage: Stage) -> None:
    await stage.until_status(await stage.submit(batch(HOOKED)), S.SUCCEEDED)


async def send_webhooks(stage: Stage, process: Process) -> None:
    (sent,) = process.runtime.programs.values()
    await stage.receiver.serve(process, sent, "ask")


def hook_answered(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert record.status is S.SUCCEEDED
    assert record.result is not None
    assert record.result.json == '{"number":1,"text":"ok row"}'
    assert set(stage.receiver.asked) == {one.interaction_id for one in stage.interactions()}


def hooks_answered(stage: Stage) -> None:
    assert stage.record(one(stage)).status is S.SUCCEEDED
    assert stage.lines() == whole(HOOKED)
    assert set(stage.receiver.asked) == {one.interaction_id for one in stage.interactions()}


SCALAR_BROKER = program(BEGIN + waiting(transport="kafka") + FINISH, {"begin": begin, "finish": finish})
BROKER = program(
    PARSE + waiting(transport="kafka", more="maxConcurrency: 3") + FINISH,
    {"parse": parse, "finish": finish},
    publish=True,
)


async def ask_through_broker(stage: Stage, process: Process) -> None:
    (asking,) = process.runtime.programs.values()
    await stage.topics.serve(process, asking, "ask")


async def brokered(stage: Stage) -> None:
    await stage.until_status(await stage.submit(batch(ROWS)), S.SUCCEEDED)


async def brokered_parked(stage: Stage) -> None:
    """The provider keeps two answers back until the execution is parked and its requests are let go."""
    stage.topics.answer = only(0, 1, 2, 3)
    execution = await stage.submit(batch(ROWS))
    await stage.until_status(execution, S.WAITING_EXTERNAL)
    await trio.sleep(10)
    for number in (5, 4):
        await stage.complete(f"{execution}.s001.{number:09d}", row(number, f"ok row-{number}"))
    await stage.until_status(execution, S.SUCCEEDED)


REJECTING = program(
    PARSE + waiting(transport="kafka", more="maxConcurrency: 3, recoverOnFailure: true") + FINISH,
    {"parse": parse, "finish": finish},
    publish=True,
)
REFUSED = (1, 4)
"""Rows that the broker does not take."""


async def brokered_rejecting(stage: Stage) -> None:
    """Two rows can never be sent; an answer is kept back until the execution is parked."""
    stage.topics.refused = frozenset(REFUSED)
    stage.topics.answer = only(0, 2, 3)
    execution = await stage.submit(batch(ROWS))
    await stage.until_status(execution, S.WAITING_EXTERNAL)
    await trio.sleep(10)
    await stage.complete(f"{execution}.s001.{5:09d}", row(5, "ok row-5"))
    await stage.until_status(execution, S.SUCCEEDED)


def rejected(stage: Stage) -> None:
    """The rest is published, and the sink of some process has each row that could not be sent."""
    execution = one(stage)
    assert stage.record(execution).status is S.SUCCEEDED
    assert stage.lines() == [line for number, line in enumerate(whole(ROWS)) if number not in REFUSED]
    found = {reject.idempotency_key for process in stage.world.processes for reject in process.rejects.rejects}
    assert found == {f"{TENANT}:{execution}:ask:{number}" for number in REFUSED}
    nothing_waits_at_the_broker(stage)


def brokered_scalar_answered(stage: Stage) -> None:
    record = stage.record(one(stage))
    assert record.status is S.SUCCEEDED
    assert record.result is not None
    assert record.result.json == '{"number":1,"text":"ok row"}'
    nothing_waits_at_the_broker(stage)


def brokered_answered(stage: Stage) -> None:
    published(stage)
    nothing_waits_at_the_broker(stage)


def nothing_waits_at_the_broker(stage: Stage) -> None:
    """Every request arrived, and every answer was dealt with."""
    assert set(stage.topics.asked) == {one.interaction_id for one in stage.interactions()}
    assert stage.topics.committed == len(stage.topics.answers)


BRIEF = evolve(FAST, failed_ttl_ms=60_000)

SCENARIOS: Sequence[Scenario] = (
    Scenario("submit", (QUICK,), submit, submitted),
    Scenario("submit-large", (QUICK,), submit_large, submitted_large),
    Scenario("scalar-await", (SCALAR,), scalar, answered),
    Scenario("live-stream", (LIVE,), live, published),
    Scenario("demotion", (PATIENT,), demotion, published),
    Scenario("timeout", (SCALAR,), timeout, timed_out),
    Scenario("live-timeout", (LIVE,), live_timeout, live_timed_out),
    Scenario("retry", (BROKEN,), retry, exhausted),
    Scenario("re-drive", (LIVE,), redrive, published),
    Scenario("re-drive-parked", (LIVE,), redrive_parked, published),
    Scenario("cancel", (LIVE,), cancel, cancelled),
    Scenario("drain", (NAMED_LIVE, SLOW), drain, drained),
    Scenario("one-to-many", (SPREAD,), answered_by_list, published),
    Scenario("many-to-one", (COLLECT,), list_answered, answered),
    Scenario("many-to-many", (TRADE,), answered_by_list, published),
    Scenario("ingest", (QUICK,), objects, taken_in, serve=take_in),
    Scenario("webhook", (SCALAR_HOOK,), hook, hook_answered, serve=send_webhooks),
    Scenario("webhook-stream", (HOOKS,), hooks, hooks_answered, serve=send_webhooks),
    Scenario("broker", (SCALAR_BROKER,), hook, brokered_scalar_answered, serve=ask_through_broker),
    Scenario("broker-stream", (BROKER,), brokered, brokered_answered, serve=ask_through_broker),
    Scenario("broker-parked", (BROKER,), brokered_parked, brokered_answered, serve=ask_through_broker),
    Scenario("broker-rejects", (REJECTING,), brokered_rejecting, rejected, serve=ask_through_broker),
    Scenario("retention", (LIVE,), retention, removed, policy=BRIEF),
    Scenario("live-beside", (LIVE,), live, published, beside=True),
    Scenario("demotion-beside", (PATIENT,), demotion, published, beside=True),
)
