"""Each invariant can fail: with a guard taken out, the check that watches over the crash matrix finds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.engine import virtual
from tests.engine.gate import When
from tests.engine.pipelines import BEGIN, batch, begin, program, service, waiting
from tests.faults.scenarios import API, LIVE, QUICK, SCALAR, SLOW, demotion, live, scalar, slowly, submit
from tests.faults.stage import Point, Scenario, Stage, row
from tests.faults.stores import memory
from tpfd.core import admission, cleanup, commit, dispatching, endings, itemised, moves
from tpfd.core.publication import Complete, next_step
from tpfd.core.records import InteractionStatus
from tpfd.core.transact import Decision, Need, Snapshot
from tpfd.engine import continuations
from tpfd.errors import Conflict
from tpfd.objects import publisher
from tpfd.service import coordinator


def violations(scenario: Scenario, crash_at: Point | None = None) -> set[int]:
    """The invariants that are violated; what the scenario itself makes of it is no matter here."""

    async def tolerant(stage: Stage) -> None:
        with trio.move_on_after(500), suppress(Conflict):
            await scenario.act(stage)

    _, found = virtual.run(partial(Stage.play, evolve(scenario, act=tolerant), crash_at, memory()))
    return {int(sentence.partition(":")[0]) for sentence in found}


def nothing(_: Stage) -> None:
    """Expects nothing."""


async def slow_owner(stage: Stage) -> None:
    """An owner whose commit is on its way until another runs the same step."""
    await stage.world.start("beside")
    execution = await stage.submit(batch(1))
    await stage.until(lambda: any(execution in one.running() for one in stage.world.processes))
    (owner,) = (one for one in stage.world.processes if execution in one.running())
    # Its step takes 10 s; the lease is taken over 32 s after the claim, and the step runs again until 42 s.
    owner.gate.delay_s = lambda: 27.0
    await trio.sleep(120)


async def two_answers(stage: Stage) -> None:
    await stage.submit(batch(1))
    await stage.until(lambda: bool(stage.interactions(is_open=True)))
    (interaction,) = stage.interactions()
    await stage.complete(interaction.interaction_id, row(1, "yes"))
    with suppress(Conflict):
        await stage.complete(interaction.interaction_id, row(1, "no"))


async def cancel_and_answer(stage: Stage) -> None:
    stage.provider(lambda envelope: None)
    execution = await stage.submit(batch(3))
    await stage.until(lambda: len(stage.interactions(is_open=True)) == 3)
    await stage.cancel(execution)
    with suppress(Conflict):
        await stage.complete(stage.interactions()[0].interaction_id, row(0, "late"))


SUBMIT = Scenario("submit", (QUICK,), submit, nothing)
AWAIT = Scenario("scalar", (SCALAR,), scalar, nothing)
LIVE_STREAM = Scenario("live", (LIVE,), live, nothing)
PARKED = Scenario("demotion", (LIVE,), demotion, nothing)
OVERTAKEN = Scenario("slow owner", (SLOW,), slow_owner, nothing)
SLOW_END = program(
    BEGIN + waiting(output_type="Row", transport=API) + service("slowly", "Row", "Line"),
    {"begin": begin, "slowly": slowly},
)
"""What follows the answer takes so long that another one comes before the end, in any order of tasks."""
ANSWERED_TWICE = Scenario("two answers", (SLOW_END,), two_answers, nothing)
CANCELLED = Scenario("cancel", (LIVE,), cancel_and_answer, nothing, quiet_s=20)


@pytest.mark.parametrize(
    ("scenario", "crash_at"),
    [
        (SUBMIT, None),
        (AWAIT, None),
        (LIVE_STREAM, None),
        (PARKED, None),
        (OVERTAKEN, None),
        (ANSWERED_TWICE, None),
        (CANCELLED, None),
        (LIVE_STREAM, (18, When.AFTER)),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_with_all_guards_in_place_nothing_is_found(scenario: Scenario, crash_at: Point | None) -> None:
    assert violations(scenario, crash_at) == set()


Patch = Callable[[pytest.MonkeyPatch], None]


def without_due_time(patch: pytest.MonkeyPatch) -> None:
    """1: an accepted execution that nobody will ever look at."""
    original = commit.submit

    def forgetful(*args: Any, **named: Any) -> Any:
        decision = original(*args, **named)
        puts = tuple(evolve(put, next_check_epoch_ms=None) if hasattr(put, "fence") else put for put in decision.puts)
        return evolve(decision, puts=puts)

    patch.setattr(commit, "submit", forgetful)


def without_fence(patch: pytest.MonkeyPatch) -> None:
    """2: whoever once owned it may commit for ever."""
    patch.setattr(moves, "own", lambda record, fence: None)
    patch.setattr(dispatching, "owned", lambda record, fence: None)


def without_first_answer(patch: pytest.MonkeyPatch) -> None:
    """3: the second answer replaces the first."""
    original = admission.admit

    def forgiving(snapshot: Any, seen: Any, *args: Any, **named: Any) -> Any:
        return original(_Reopened(snapshot._records), seen, *args, **named)

    patch.setattr(admission, "admit", forgiving)


class _Reopened(Snapshot):
    """A snapshot in which nothing was answered."""

    def get(self, key: Any) -> Any:
        record = super().get(key)
        if key.kind.name == "interaction" and record is not None and record.status is InteractionStatus.COMPLETED:
            return evolve(record, status=InteractionStatus.DISPATCHED)
        return record


def without_all_children(patch: pytest.MonkeyPatch) -> None:
    """4: a parent is released as soon as its items were looked at."""
    patch.setattr(itemised, "is_full", lambda unit: True)

    async def satisfied(self: Any, unit: Any) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(continuations.Continuations, "_first_unfinished", satisfied)


def without_clean_up(patch: pytest.MonkeyPatch) -> None:
    """5: what hangs below an ended execution stays."""
    patch.setattr(cleanup, "release_page", lambda *args, **named: Decision(()))


def without_look_at_the_parent(patch: pytest.MonkeyPatch) -> None:
    """5: an answer is admitted although its execution is over."""
    original = endings.scene_of

    def blind(*args: Any) -> Any:
        scene = original(*args)
        return scene if scene is None or isinstance(scene, Need) else evolve(scene, over=False)

    patch.setattr(admission, "scene_of", blind)
    patch.setattr(cleanup, "release_page", lambda *args, **named: Decision(()))


def without_look_at_the_object(patch: pytest.MonkeyPatch) -> None:
    """6: what was prepared counts as placed."""

    def hasty(**named: Any) -> Any:
        return Complete() if named["prepared"] is not None else next_step(**named)

    patch.setattr(publisher, "next_step", hasty)


def without_commit_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    """7: a 2xx before anything is stored."""

    async def hasty(self: Any, completion: Any) -> Any:
        await trio.lowlevel.checkpoint()

    patch.setattr(coordinator.Coordinator, "complete", hasty)


@pytest.mark.parametrize(
    ("invariant", "take_out", "scenario"),
    [
        (1, without_due_time, SUBMIT),
        (2, without_fence, OVERTAKEN),
        (3, without_first_answer, ANSWERED_TWICE),
        (4, without_all_children, PARKED),
        (5, without_clean_up, CANCELLED),
        (5, without_look_at_the_parent, CANCELLED),
        (6, without_look_at_the_object, LIVE_STREAM),
        (7, without_commit_before_the_answer, AWAIT),
    ],
    ids=lambda one: getattr(one, "__name__", getattr(one, "name", one)),
)
def test_without_a_guard_the_check_finds_it(
    monkeypatch: pytest.MonkeyPatch, invariant: int, take_out: Patch, scenario: Scenario
) -> None:
    take_out(monkeypatch)
    assert invariant in violations(scenario)
