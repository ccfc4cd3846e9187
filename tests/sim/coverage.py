"""What a run has exercised, and what of it must be: every transition, every edge case of an await, every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from attrs import define, field

from tpfd.core.execution import TABLE


class Fault(StrEnum):
    """What goes wrong. A run draws some of them."""

    KILL = "a replica is killed between two instructions"
    KILL_BEFORE_EFFECT = "a replica dies before an effect"
    KILL_AFTER_EFFECT = "a replica dies after an effect"
    SAME_NAME = "a replica comes back under its old name"
    NEW_NAME = "a replica comes back under a new name"
    DRAIN = "a replica is drained"
    DRAIN_ALL = "all replicas are drained at once"
    CUT_OFF = "a replica cannot reach the store for a while"
    FROZEN = "a replica's calls are held up for longer than a lease"
    STORE_ERROR_BEFORE = "a store call fails before its effect"
    STORE_ERROR_AFTER = "a store call fails after its effect"
    SLOW_STORE = "the store is slow for a while"
    SLOW_DISK = "the output location is slow for a while"
    CLOCK_OFF = "a replica's clock is off from the start"
    CLOCK_STEPS = "a replica's clock is set"
    STEP_RETRYABLE = "a step fails and may be retried"
    STEP_STUBBORN = "a step fails every time"
    STEP_FATAL = "a step fails for good"
    STEP_SLOW = "a step takes longer than a lease"
    STEP_BUG = "a step breaks an invariant"
    OUTCOME_LOST = "a remote call's outcome is lost"
    DEFERRED = "a remote call is put off"
    ADVANCED = "a segment ends before its pipeline does"
    ANSWER_EARLY = "a provider answers at once"
    ANSWER_SLOW = "a provider answers when its live session has given up"
    ANSWER_LATE = "a provider answers behind the deadline"
    ANSWER_NEVER = "a provider keeps silent"
    ANSWER_TWICE = "a provider answers twice"
    ANSWER_DIFFERENT = "a provider answers again, differently"
    ANSWER_ELSEWHERE = "an answer comes through another replica"
    DISCONNECT = "a provider's socket is closed"
    HOOK_REFUSED = "a webhook is not taken now"
    HOOK_NEVER = "a webhook is refused for good"
    HOOK_LOST = "a webhook is taken, and the word of it is lost"
    BROKER_DELAYS = "an answer is delayed on its way"
    BROKER_DOUBLES = "an answer is doubled on its way"
    BROKER_REORDERS = "an answer overtakes an older one"
    BROKER_DROPS = "an answer is lost on its way"
    CANCELLED = "an operator cancels an execution"
    CANCELLED_CHILD = "an operator cancels a child"
    REDRIVEN = "an operator re-drives an execution"
    REDRIVEN_STALE = "an operator re-drives what has moved meanwhile"
    SUBMITTED_TWICE = "a client submits twice under one key"
    KEY_REUSED = "a client submits another input under a used key"
    LETTERS_FAIL = "dead letters cannot be sent for a while"
    HINT_LATE = "a hint is late"
    HINT_DOUBLED = "a hint is doubled"
    HINT_REFUSED = "a hint is not taken by the queue"
    HINT_UNSENT = "a replica dies before it has sent a hint"
    HINT_HELD = "a replica dies with a hint in hand"
    HINT_ASTRAY = "a hint goes to a receive that nobody waits for"
    RECEIVE_FAILS = "a receive of hints fails"
    QUEUE_AWAY = "the work queue is out of reach for a while"


OF_HINTS = (
    Fault.HINT_LATE,
    Fault.HINT_DOUBLED,
    Fault.HINT_REFUSED,
    Fault.HINT_UNSENT,
    Fault.HINT_HELD,
    Fault.HINT_ASTRAY,
    Fault.RECEIVE_FAILS,
    Fault.QUEUE_AWAY,
)
"""What goes wrong only in runs over work hints."""


class Case(StrEnum):
    """The rows of the design's table of edge cases of the durable fallback."""

    DUPLICATE = "duplicate completion"
    CONFLICTING = "conflicting completion"
    BEFORE_PARKED = "completion before the parent is parked"
    CHILD_MISSING = "last completion while children have still to succeed"
    CHILD_MOVED = "a worker claimed the child meanwhile"
    CHILD_DONE = "child already SUCCEEDED"
    CHILD_FAILED = "child failed: the parent fails"
    TWO_RELEASES = "two parent releases"
    RESTART = "released by a process that did not park it"
    PARENT_ENDED = "parent terminal: what is below is called off"


def transitions() -> list[str]:
    """Every cell of the status table with each of its targets."""
    return [
        transition(source, event.__name__, target)
        for (source, event), rule in TABLE.items()
        for target in rule.targets
    ]


def transition(source: str, event: str, target: str) -> str:
    """The name of one."""
    return f"{source} + {event} → {target}"


@define(eq=False)
class Coverage:
    """How often each thing happened."""

    counts: Counter[str] = field(factory=Counter)

    def add(self, name: str) -> None:
        self.counts[name] += 1

    def merge(self, other: Coverage) -> None:
        self.counts.update(other.counts)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that never happened."""
        return [name for name in names if not self.counts[name]]

    def holes(self) -> list[str]:
        """Everything that should have happened and never did."""
        return self.missing([*transitions(), *Case, *Fault])
