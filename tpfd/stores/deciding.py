"""How a decide function is asked until it has decided: the part of ``transact`` that is the same in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tpfd.core.kinds import KIND_OF
from tpfd.core.records import Fact
from tpfd.core.transact import MAX_NEED_ROUNDS, MAX_TOUCHED, Decide, Decision, Key, Need, Read, Snapshot
from tpfd.errors import InternalError

T = TypeVar("T")


def settle(reads: Iterable[Read], decide: Decide[T], load: Callable[[Key[Any]], Any]) -> Decision[T]:
    """Loads what `decide` declared, then what it asks for, until it decides. Writes nothing.

    Args:
        load: gives the record under a key as the transaction sees it, or None.

    Raises:
        InternalError: it asked more than MAX_NEED_ROUNDS times, or its decision cannot be made atomic (`check`).
        Exception: whatever `decide` or `load` raised.
    """
    records: dict[Key[Any], Any] = {}
    for _ in range(MAX_NEED_ROUNDS + 1):
        for read in reads:
            if read.key not in records:
                records[read.key] = load(read.key)
        answer = decide(Snapshot(records))
        if not isinstance(answer, Need):
            check(answer)
            return answer
        reads = answer.reads
    raise InternalError(f"a decision asked for more records {MAX_NEED_ROUNDS + 1} times, {MAX_NEED_ROUNDS} are allowed")


def check(decision: Decision[Any]) -> None:
    """Refuses what some store could not write atomically.

    Raises:
        InternalError: more than MAX_TOUCHED records, one record twice, or something that is not a record.
    """
    if decision.touched_count > MAX_TOUCHED:
        raise InternalError(f"a decision writes {decision.touched_count} records, {MAX_TOUCHED} are allowed")
    if decision.touched_count < 2:
        return
    touched = [key_of(record) for record in decision.puts]
    touched.extend(decision.deletes)
    if len(set(touched)) < len(touched):
        twice = next(key for key in touched if touched.count(key) > 1)
        raise InternalError(f"a decision writes the {twice.kind.name} {twice.record_id!r} twice")


def key_of(record: Any) -> Key[Any]:
    """The key a record is stored under.

    Raises:
        InternalError: it is not of a stored kind.
    """
    kind = KIND_OF.get(type(record))
    if kind is None:
        raise InternalError(f"{type(record).__name__} is not a record that stores keep")
    return kind.key_of(record)


def keep_all_facts(_fact: Fact) -> bool:
    """The journal's filter that keeps everything."""
    return True
