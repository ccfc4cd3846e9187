"""The one mapping from errors to exit codes.

======  =====================================================================================================
code    meaning
======  =====================================================================================================
0       done
1       the execution, the check or the demo failed
2       wrong usage of the command line
64      the daemon refused the request, or what was given to it cannot be taken; the same call will be refused again
69      the daemon (or something else that is needed) cannot be reached
75      try again: busy, not ready, or not finished in the time given
78      the configuration or a pipeline definition cannot be used
130     interrupted by Ctrl-C
======  =====================================================================================================
"""

from __future__ import annotations

from enum import IntEnum

from tpfd.errors import AdmissionError, ConfigError, Conflict, NotFound, OutsideError, TpfdError


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 64
    UNREACHABLE = 69
    TRY_AGAIN = 75
    CONFIGURATION = 78
    INTERRUPTED = 130


TRY_AGAIN_STATUSES = frozenset({408, 429, 502, 503, 504})
"""502 and 504 are a proxy's way to say that the daemon is not there just now."""


class NotYet(TpfdError):
    """What was waited for did not happen in the time given; it may still."""

    code = "not_yet"


def exit_code(error: TpfdError) -> Exit:
    """The exit code for an error that ended a command."""
    # Imported here: it pulls in the HTTP client, which `tpfd --help` and the configuration commands do not need.
    from tpfd.client.errors import ExecutionFailed, ServerRefused

    match error:
        case ConfigError():
            return Exit.CONFIGURATION
        case NotYet():
            return Exit.TRY_AGAIN
        case ExecutionFailed():
            return Exit.FAILED
        case ServerRefused():
            if error.status in TRY_AGAIN_STATUSES:
                return Exit.TRY_AGAIN
            return Exit.REFUSED if error.status < 500 else Exit.FAILED
        case OutsideError():
            return Exit.UNREACHABLE
        case AdmissionError() | NotFound() | Conflict():
            return Exit.REFUSED
        case _:
            return Exit.FAILED
