"""Why an execution may fail: only for something that has gone wrong in its run."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.coverage import Fault

LOSSES = frozenset(
    {
        Fault.KILL,
        Fault.KILL_BEFORE_EFFECT,
        Fault.KILL_AFTER_EFFECT,
        Fault.DRAIN,
        Fault.DRAIN_ALL,
        Fault.CUT_OFF,
        Fault.FROZEN,
        Fault.STORE_ERROR_BEFORE,
        Fault.STORE_ERROR_AFTER,
        Fault.SLOW_STORE,
        Fault.CLOCK_OFF,
        Fault.CLOCK_STEPS,
    }
)
"""What can cost a worker its lease, or a request its socket."""
SILENCE = LOSSES | {
    Fault.ANSWER_SLOW,
    Fault.ANSWER_LATE,
    Fault.ANSWER_NEVER,
    Fault.BROKER_DELAYS,
    Fault.BROKER_DROPS,
    Fault.DISCONNECT,
    Fault.HOOK_REFUSED,
    Fault.HOOK_LOST,
    Fault.SLOW_DISK,
    Fault.STEP_SLOW,
    Fault.STEP_RETRYABLE,
    Fault.STEP_STUBBORN,
    Fault.OUTCOME_LOST,
    Fault.DEFERRED,
}
"""What can keep an answer away until the deadline."""

EXPLAINED: Mapping[str, frozenset[Fault]] = {
    "step_retryable": frozenset({Fault.STEP_RETRYABLE, Fault.STEP_STUBBORN}),
    "step_non_retryable": frozenset({Fault.STEP_FATAL}),
    "internal": frozenset({Fault.STEP_BUG}),
    "worker_lost": LOSSES,
    "store_unavailable": frozenset({Fault.STORE_ERROR_BEFORE, Fault.STORE_ERROR_AFTER, Fault.CUT_OFF}),
    "circuit_open": frozenset({Fault.DEFERRED}),
    "cancelled": frozenset({Fault.CANCELLED, Fault.CANCELLED_CHILD}),
    "await_timeout": SILENCE,
    "await_failed": frozenset({Fault.HOOK_NEVER}),
}
"""By error code, what has to have been drawn. Any other code is one too many."""


def is_explained(error_code: str | None, faults: frozenset[Fault]) -> bool:
    """Whether a run with these faults may have an execution that ended so."""
    return not EXPLAINED.get(error_code or "", frozenset()).isdisjoint(faults)
