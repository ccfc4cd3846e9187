"""Guards of the engine that can be taken out, one for each invariant: the simulation must notice each time.

Each is replaced as a whole by what a careless change could have left in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from attrs import evolve, frozen

from tests.sim.coverage import Fault
from tpfd.aws import sqs_held
from tpfd.core import (
    admission,
    awaits,
    budget,
    cleanup,
    commit,
    execution,
    hinting,
    ids,
    itemised,
    lease,
    moves,
    publication,
)
from tpfd.core.events import Cancel, Release
from tpfd.core.execution import TABLE, Rule
from tpfd.core.records import ExecutionStatus, InteractionRecord, InteractionStatus
from tpfd.core.transact import Decision, Key, Snapshot
from tpfd.daemon import dispatching
from tpfd.engine import claims, continuations, segment
from tpfd.objects import publisher
from tpfd.transports import permits

S = ExecutionStatus
Replaced = tuple[Any, str, Any]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _changed(module: Any, name: str, change: Callable[[Any], Any]) -> Replaced:
    """A function whose result is changed."""
    usual = getattr(module, name)
    return module, name, lambda *args, **named: change(usual(*args, **named))


def _rows(event: type[Any], like: ExecutionStatus, *statuses: ExecutionStatus) -> Replaced:
    """The status table with an event allowed in more statuses."""
    rule: Rule = TABLE[like, event]
    return execution, "TABLE", {**TABLE, **{(status, event): rule for status in statuses}}


class _Reopened(Snapshot):
    """Shows answered interactions as if they were still out."""

    def get(self, key: Key[Any]) -> Any:
        record = super().get(key)
        if isinstance(record, InteractionRecord) and record.status is InteractionStatus.COMPLETED:
            return evolve(record, status=InteractionStatus.DISPATCHED)
        return record


def _admit_again() -> Replaced:
    usual = admission.admit
    return admission, "admit", lambda snapshot, **rest: usual(_Reopened(snapshot._records), **rest)


def _keys_of_their_own() -> Replaced:
    numbers = itertools.count()
    return ids, "idempotency_key", lambda *parts: ":".join(map(str, (*parts, next(numbers))))


async def _none_unfinished(*_: object) -> None:
    return None


def _half_a_submit() -> Replaced:
    """Every submit is acknowledged, every second one is kept."""
    usual, numbers = commit.submit, itertools.count()

    def submit(*args: Any, **named: Any) -> Any:
        decision = usual(*args, **named)
        return decision if next(numbers) % 2 else Decision(decision.result)

    return commit, "submit", submit


def _take_for_placed() -> Replaced:
    """What was prepared counts as put in place."""
    module: Any = publisher
    usual = module.next_step

    def next_step(**named: Any) -> Any:
        return publication.Complete() if named["prepared"] is not None else usual(**named)

    return publisher, "next_step", next_step


def _as_they_come() -> Replaced:
    usual = segment.Segment._encoded

    async def encoded(self: Any, receive: Any, type_name: str, *rest: Any) -> list[Any]:
        texts = await usual(self, receive, type_name, *rest)
        return texts[::-1]

    return segment.Segment, "_encoded", encoded


@frozen
class Guard:
    """One guard.

    Attributes:
        removed: what stands in its place.
        faults: without them nothing would try it.
    """

    removed: Callable[[], tuple[Replaced, ...]]
    faults: frozenset[Fault] = frozenset()


DEATHS = frozenset({Fault.FROZEN, Fault.KILL, Fault.STEP_SLOW})
ENDS = frozenset({Fault.CANCELLED, Fault.STEP_FATAL, Fault.ANSWER_SLOW, Fault.BROKER_DELAYS})

GUARDS: Mapping[str, Guard] = {
    # 1: an accepted submit is never lost
    "submit-is-kept": Guard(lambda: (_half_a_submit(),)),
    "one-execution-per-key": Guard(
        lambda: (_changed(commit, "execution_key_id", _numbered()),), frozenset({Fault.SUBMITTED_TWICE})
    ),
    "retry-comes-due": Guard(
        lambda: (_changed(moves, "moved", lambda after: evolve(after, next_check_epoch_ms=None)),)
    ),
    # 2: versions and fences
    "fence": Guard(lambda: ((moves, "own", _always(None)),), DEATHS),
    "version": Guard(
        lambda: (_changed(awaits, "moved_unit", lambda after: evolve(after, version=after.version - 1)),)
    ),
    "witness": Guard(lambda: ((lease.Witness, "unmoved", _always(True)),), DEATHS | {Fault.CLOCK_OFF}),
    # 3: one release, one completion, one end
    "one-release": Guard(
        lambda: (
            _rows(Release, S.WAITING_EXTERNAL, S.WAITING_EXTERNAL, S.QUEUED, S.RUNNING),
            (itemised, "is_parked_on", lambda parent, unit: unit.itemised and unit.dispatch_complete),
        ),
        frozenset({Fault.SLOW_STORE}),
    ),
    "one-completion": Guard(lambda: (_admit_again(),), frozenset({Fault.ANSWER_DIFFERENT})),
    "terminal-is-final": Guard(lambda: (_rows(Cancel, S.RUNNING, S.SUCCEEDED, S.FAILED),), ENDS),
    # 4: children
    "all-children-succeeded": Guard(
        lambda: (
            (itemised, "is_full", _always(True)),
            (continuations.Continuations, "_first_unfinished", _none_unfinished),
        )
    ),
    "order": Guard(lambda: (_as_they_come(),)),
    # 5: nothing is left below an end
    "nothing-admitted-after-the-end": Guard(
        lambda: (
            _changed(admission, "scene_of", lambda seen: evolve(seen, over=False) if hasattr(seen, "over") else seen),
        ),
        ENDS,
    ),
    "clean-up": Guard(lambda: ((cleanup, "release_page", _always(Decision(()))),), ENDS),
    "slots-in-use": Guard(lambda: ((permits, "is_held", _always(False)),)),
    # work hints
    "hint-takes-no-lease": Guard(
        lambda: ((hinting, "CLAIMABLE", (*hinting.CLAIMABLE, S.RUNNING)),), DEATHS | {Fault.HINT_LATE}
    ),
    "sweep-after-hints": Guard(lambda: ((claims, "HINT_PATIENCE_MS", 86_400_000),), frozenset({Fault.HINT_LATE})),
    "hints-are-given-back": Guard(
        lambda: ((sqs_held.HeldMessages, "show", _always(None)),), frozenset({Fault.DRAIN, Fault.HINT_DOUBLED})
    ),
    "due-work-is-told": Guard(
        lambda: ((dispatching.Hinting, "told_by", lambda _, runtime: runtime),),
        frozenset({Fault.DRAIN, Fault.HINT_LATE}),
    ),
    # 6: whole objects
    "object-in-place": Guard(lambda: (_take_for_placed(),)),
    # the budget, and names for the outside
    "budget": Guard(lambda: ((budget.Takings, "take", _take_anyway),)),
    "idempotency-key": Guard(lambda: (_keys_of_their_own(),)),
}
"""By name."""


def _numbered() -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda key: f"{key}{next(numbers)}"


def _take_anyway(self: Any, interaction_id: Any, kept_slot: int | None = None) -> Any:
    """The first place, whether its slot is free or not."""
    return self.places.pop(0) if self.places else None


@contextmanager
def without(name: str | None) -> Iterator[None]:
    """Runs the block without a guard; None: with all of them."""
    with ExitStack() as stack:
        for module, attribute, replacement in GUARDS[name].removed() if name else ():
            stack.enter_context(mock.patch.object(module, attribute, replacement))
        yield
