"""Each check of ``invariants`` finds what it is there for: good books with one thing made wrong are no good books."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.e2e.books import Books, read_books
from tests.e2e.invariants import (
    CHECKS,
    Problems,
    answers_are_whole,
    everything_has_ended,
    nothing_is_left_below_an_end,
    output_violations,
    the_journal_tells_one_life,
    units_went_on_with_every_item,
    violations,
    what_was_taken_in_is_found,
)
from tests.e2e.processes import Daemon, configure, serving, wait_until
from tests.e2e.soaking import answer_to, batch_of
from tpfd.core.budget import SHARED, scope_of
from tpfd.core.kinds import (
    BLOCK,
    CHUNK,
    EXECUTION,
    EXECUTION_KEY,
    INTERACTION,
    KIND_OF,
    LATE,
    PERMIT,
    UNIT,
)
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionId,
    InteractionStatus,
    PermitRecord,
    UnitStatus,
)
from tpfd.core.transact import Kind

PIPELINES = ("ask-live", "ask-twice", "ask-lists")
LARGE = 3
"""Number of a batch with long rows."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Books]:
    """A store in which each pipeline ran once, undisturbed, and its books."""
    folder = tmp_path_factory.mktemp("good")
    trio.run(run_each_once, folder)
    return folder, trio.run(read_books, folder / "tpfd.db")


async def run_each_once(folder: Path) -> None:
    (folder / "out").mkdir()
    pipelines = [f"{name}.yaml" for name in PIPELINES]
    config = configure(folder, "a", *pipelines, **{"await": {"live-idle": "200ms", "live-poll": "100ms"}})
    async with serving(folder, config, OUTPUT_FOLDER=str(folder / "out")) as daemon:
        submitted = [await daemon.submit(batch_of(name, LARGE), pipeline=name, key=f"{name}-1") for name in PIPELINES]
        await wait_until("the live session to be parked", lambda: is_parked(daemon, submitted[0]))
        await wait_until("everything to end", lambda: all_answered(daemon, submitted))
        assert await daemon.stop() == 0


async def is_parked(daemon: Daemon, execution_id: str) -> bool:
    return bool((await daemon.status(execution_id))["status"] == "WAITING_EXTERNAL")


async def all_answered(daemon: Daemon, submitted: list[str]) -> bool:
    """Answers what waits, the other way round a second time."""
    for request in (await daemon.client.get("/pipeline/interactions/pending")).json():
        for yes, status in ((True, 200), (False, 409)):
            payload = answer_to(request["stepId"], request["requestPayload"], yes=yes)
            body = {"interactionId": request["interactionId"], "responsePayload": payload}
            answer = await daemon.client.post("/pipeline/interactions/complete", json=body)
            assert answer.status_code == status, answer.text
    return all([(await daemon.status(one))["status"] == "SUCCEEDED" for one in submitted])


# ── one thing made wrong ──


def with_record(books: Books, record: Any, **changes: Any) -> Books:
    changed = evolve(record, **changes)
    return evolve(books, rows={**books.rows, KIND_OF[type(record)].key_of(changed): changed})


def without(books: Books, record: Any) -> Books:
    gone = KIND_OF[type(record)].key_of(record)
    return evolve(books, rows={key: one for key, one in books.rows.items() if key != gone})


def one_of(books: Books, kind: Kind[Any], **wanted: Any) -> Any:
    return next(
        one for one in books.all_of(kind) if all(getattr(one, name) == value for name, value in wanted.items())
    )


def root(books: Books, pipeline_id: str = "ask-twice") -> ExecutionRecord:
    return books.roots(pipeline_id)[0]


def an_item(books: Books) -> Any:
    return one_of(books, INTERACTION, step_id="ask-first", item_index=1)


def a_child(books: Books) -> ExecutionRecord:
    return next(one for one in books.all_of(EXECUTION) if one.item_index == 1)


def with_facts(books: Books, change: Callable[[list[Fact]], list[Fact]]) -> Books:
    owner = root(books).execution_id
    return evolve(books, facts={**books.facts, owner: change(books.facts[owner])})


def again(fact_type: FactType, key: str) -> Callable[[list[Fact]], list[Fact]]:
    """The journal with a second fact of a type."""

    def change(facts: list[Fact]) -> list[Fact]:
        at = max(place for place, one in enumerate(facts) if one.type is fact_type)
        return [*facts[: at + 1], evolve(facts[at], key=key), *facts[at + 1 :]]

    return change


def leave_out(fact_type: FactType) -> Callable[[list[Fact]], list[Fact]]:
    return lambda facts: [one for one in facts if one.type is not fact_type]


def stolen_permit(books: Books) -> Books:
    holder = one_of(books, INTERACTION, step_id="ask-live")
    books = with_record(books, holder, status=OPEN, permit_slot=0)
    permit = PermitRecord(
        tenant_id=SHARED,
        scope=scope_of("ask-live", "ask-live"),
        slot=0,
        version=1,
        owner_tenant_id=holder.tenant_id,
        interaction_id=InteractionId("another"),
        redrive_count=0,
        acquired_epoch_ms=0,
    )
    return evolve(books, rows={**books.rows, PERMIT.key_of(permit): permit})


def refused_although_admitted(books: Books) -> Books:
    admitted = one_of(books, INTERACTION, step_id="ask-first")
    return with_record(books, one_of(books, LATE, interaction_id=admitted.interaction_id), body=admitted.response)


Check = Callable[[Books], Problems]
OPEN, WAITS = InteractionStatus.DISPATCHED, UnitStatus.WAITING_EXTERNAL
DAMAGES: dict[Check, dict[str, Callable[[Books], Books]]] = {
    everything_has_ended: {
        "an execution still runs": lambda books: with_record(books, root(books), status=ExecutionStatus.RUNNING),
        "clean-up is left": lambda books: with_record(books, root(books), cleanup_due=True),
    },
    what_was_taken_in_is_found: {
        "a key is lost": lambda books: without(books, one_of(books, EXECUTION_KEY)),
        "a key leads elsewhere": lambda books: with_record(books, one_of(books, EXECUTION_KEY), execution_id="other"),
        "an execution is lost": lambda books: without(books, root(books)),
        "an object has no execution": lambda books: with_record(books, root(books), source_key="object"),
    },
    nothing_is_left_below_an_end: {
        "an interaction is open": lambda books: with_record(books, one_of(books, INTERACTION), status=OPEN),
        "a unit waits": lambda books: with_record(books, one_of(books, UNIT), status=WAITS),
        "a child runs": lambda books: with_record(books, a_child(books), status=ExecutionStatus.RUNNING),
        "a permit was given to another": stolen_permit,
    },
    answers_are_whole: {
        "an answer is another": lambda books: with_record(books, an_item(books), response="{}"),
        "a request is another": lambda books: with_record(books, an_item(books), request="{}"),
        "an answer is missing": lambda books: with_record(books, an_item(books), response=None),
        "a chunk is lost": lambda books: without(books, one_of(books, CHUNK)),
        "the admitted answer was refused": refused_although_admitted,
    },
    units_went_on_with_every_item: {
        "an item is lost": lambda books: without(books, an_item(books)),
        "an item is open": lambda books: with_record(books, an_item(books), status=OPEN),
        "a child is lost": lambda books: without(books, a_child(books)),
        "a child failed": lambda books: with_record(books, a_child(books), status=ExecutionStatus.FAILED),
        "a child counts twice": lambda books: with_record(books, one_of(books, BLOCK), continued_count=99),
        "a unit counts wrongly": lambda books: with_record(
            books, one_of(books, UNIT, itemised=True), full_block_count=9
        ),
    },
    the_journal_tells_one_life: {
        "a fence is missing": lambda books: with_record(books, root(books), fence=root(books).fence + 1),
        "writes were lost": lambda books: with_record(books, root(books), version=1),
        "an old fence committed": lambda books: with_facts(books, again(FactType.SEGMENT_SUSPENDED, "suspended-0")),
        "it was claimed twice": lambda books: with_facts(books, again(FactType.SEGMENT_ATTEMPT_STARTED, "attempt-9")),
        "it was released twice": lambda books: with_facts(books, again(FactType.RESUME_RELEASED, "released-again")),
        "it succeeded twice": lambda books: with_facts(books, again(FactType.RUN_SUCCEEDED, "run-succeeded-9")),
        "nobody submitted it": lambda books: with_facts(books, leave_out(FactType.RUN_SUBMITTED)),
        "it never succeeded": lambda books: with_facts(books, leave_out(FactType.RUN_SUCCEEDED)),
    },
}


def test_an_undisturbed_run_breaks_nothing(good: tuple[Path, Books]) -> None:
    folder, books = good
    assert violations(books) == []
    assert output_violations(books, {"ask-live": folder / "out"}, set()) == []
    kinds: tuple[Kind[Any], ...] = (BLOCK, LATE, CHUNK)
    assert all(books.all_of(kind) for kind in kinds), "a check had nothing to check"


def test_every_check_is_tried() -> None:
    assert set(DAMAGES) == set(CHECKS)


@pytest.mark.parametrize(
    ("check", "damage"),
    [pytest.param(check, damage, id=name) for check, damages in DAMAGES.items() for name, damage in damages.items()],
)
def test_damage_is_found(good: tuple[Path, Books], check: Check, damage: Callable[[Books], Books]) -> None:
    assert list(check(damage(good[1]))) != []


def test_an_object_that_is_not_the_published_one_is_found(good: tuple[Path, Books], tmp_path: Path) -> None:
    published = root(good[1], "ask-live").publication
    assert published is not None
    content = (good[0] / "out" / published.object_key).read_bytes()
    assert output_violations(good[1], {"ask-live": tmp_path}, set()) != []
    (tmp_path / published.object_key).write_bytes(content[:-1])
    assert output_violations(good[1], {"ask-live": tmp_path}, set()) != []
    (tmp_path / published.object_key).write_bytes(content)
    assert output_violations(good[1], {"ask-live": tmp_path}, set()) == []
    (tmp_path / "left.tmp").touch()
    assert output_violations(good[1], {"ask-live": tmp_path}, set()) != []


async def test_a_row_that_its_index_does_not_show_is_found(good: tuple[Path, Books], tmp_path: Path) -> None:
    path = tmp_path / "tpfd.db"
    path.write_bytes((good[0] / "tpfd.db").read_bytes())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE execution SET by_status_p = NULL WHERE id = ?", (root(good[1]).execution_id,))
    connection.commit()
    connection.close()
    assert len((await read_books(path)).damage) == 2  # it stands wrongly, and it is not listed
