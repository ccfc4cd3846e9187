"""What can happen to an execution. Each event carries all that its transition needs but the time."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from tpfd.core.records import FactType, FactValue, Payload, Publication, TerminalReason, UnitId
from tpfd.core.retry import Backoff


@frozen(kw_only=True)
class ExecutionPolicy:
    """The settings that transitions depend on.

    Attributes:
        lease_ms: length of a lease.
        skew_ms: wait after its end before another may take it.
        max_retries: failed runs after which the next failure is final; 3 means four runs.
        max_worker_losses: lost workers after which the next loss is final.
        backoff: wait between runs.
        max_deferral_ms: longest time that uncounted delays may add up to.
        succeeded_ttl_ms: how long a SUCCEEDED execution is kept.
        failed_ttl_ms: how long one that ended otherwise is kept.
    """

    lease_ms: int = 30_000
    skew_ms: int = 2_000
    max_retries: int = 3
    max_worker_losses: int = 5
    backoff: Backoff = field(factory=lambda: Backoff(10_000, 2.0, 300_000, 0.2))
    max_deferral_ms: int = 900_000
    succeeded_ttl_ms: int = 7 * 86_400_000
    failed_ttl_ms: int = 30 * 86_400_000


@frozen
class Event:
    """Base of all events."""


@frozen(kw_only=True)
class Claim(Event):
    """A worker asks for it.

    Attributes:
        owner: name of the claimer, for people.
        witnessed: the claimer may take over an expired lease (see ``tpfd.core.lease.Witness``).
        unit_ended: how the unit it is to go on from ended meanwhile; None: it did not.
    """

    owner: str
    witnessed: bool = True
    unit_ended: TerminalReason | None = None


@frozen(kw_only=True)
class AttemptEvent(Event):
    """Something that only the attempt holding `fence` may commit."""

    fence: int


@frozen(kw_only=True)
class Renew(AttemptEvent):
    """Extend the lease."""


@frozen(kw_only=True)
class Complete(AttemptEvent):
    """The terminal output is there.

    Attributes:
        result: None when it was published as an object.
        published: the prepared object is in place.
    """

    result: Payload | None
    published: bool = False


@frozen(kw_only=True)
class Advance(AttemptEvent):
    """The segment ended before the pipeline did."""

    step_index: int
    input: Payload


@frozen(kw_only=True)
class OpenUnit(AttemptEvent):
    """The attempt starts to wait on this unit, still running."""

    unit_id: UnitId


@frozen(kw_only=True)
class Suspend(AttemptEvent):
    """Nothing to do until the unit goes on.

    Attributes:
        step_index: where a re-drive would start again, with `input`.
    """

    unit_id: UnitId
    step_index: int
    input: Payload


@frozen(kw_only=True)
class PreparePublication(AttemptEvent):
    """The output object is staged; its key and digest are decided."""

    publication: Publication


@frozen(kw_only=True)
class NoteFact(AttemptEvent):
    """Progress inside the attempt, for people."""

    type: FactType
    key: str
    data: Mapping[str, FactValue] = field(factory=dict)


@frozen(kw_only=True)
class Fail(AttemptEvent):
    """The attempt failed.

    Attributes:
        reason: terminal reason if it is not retried.
        draw: uniform in [0, 1), for the spread of the wait.
        floor_ms: shortest wait before the next run.
    """

    code: str
    message: str
    retryable: bool
    reason: TerminalReason = TerminalReason.NON_RETRYABLE
    draw: float = 0.0
    floor_ms: int = 0


@frozen(kw_only=True)
class Break(AttemptEvent):
    """A broken invariant: our own fault."""

    message: str


@frozen(kw_only=True)
class HandBack(AttemptEvent):
    """Let go of it uncharged (drain)."""

    reason: str


@frozen(kw_only=True)
class LoseOutcome(AttemptEvent):
    """A remote worker was asked and nobody knows what it did."""

    message: str


@frozen(kw_only=True)
class Defer(AttemptEvent):
    """Not now (an open circuit); not counted as an attempt."""

    code: str
    message: str
    not_before_epoch_ms: int
    draw: float = 0.0


@frozen(kw_only=True)
class Release(Event):
    """The unit is complete: go on behind it."""

    unit_id: UnitId
    step_index: int
    input: Payload


@frozen(kw_only=True)
class UnitEnded(Event):
    """The unit it is parked on failed or timed out."""

    unit_id: UnitId
    reason: TerminalReason
    code: str
    message: str


@frozen(kw_only=True)
class Redrive(Event):
    """An operator wants another go."""

    expected_version: int
    reason: str
    actor: str
    allow_failed: bool = False
    confirmed_stopped: bool = False


@frozen(kw_only=True)
class Cancel(Event):
    """Somebody calls it off."""

    reason: str
    actor: str


@frozen(kw_only=True)
class DeadLetterSent(Event):
    """Its dead letter is out.

    Attributes:
        redrive_count: that of the end it tells of; it may have been re-driven and have ended again meanwhile.
    """

    redrive_count: int


@frozen(kw_only=True)
class CleanedUp(Event):
    """Nothing below it is open any more.

    Attributes:
        redrive_count: that of the end that was cleaned up after.
    """

    redrive_count: int
