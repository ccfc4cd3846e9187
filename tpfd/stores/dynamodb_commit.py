"""Sends one conditional write until its outcome is known.

A failed condition, a conflict, too much at once and an unknown outcome are four different things:

* a *condition* that failed: somebody else was faster; the caller decides again on what is there now. Unless an attempt
  before had an unknown outcome: then it may be our own write that stands in the way, which its id tells.
* a *conflict*, *throttling*, no connection, refused credentials: nothing was written; the same write goes out again.
* *unknown*: it may have been written. The same write goes out again, a transaction under the same token, by which
  DynamoDB knows it; a single put meets its own condition, and is known by its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import Any, Final

import trio
from attrs import define, frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import TRANSIENT, AwsFailure, Failure
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_items import names_write
from tpfd.stores.dynamodb_requests import GIVE_UP_S, RequestCounts, store_error
from tpfd.stores.dynamodb_tables import Item

PATIENCE: Final = 3
"""Attempts of a transaction of which some items are throttled, before its members are told to go apart."""
PARTLY_THROTTLED: Final = "store_partly_throttled"


class Kind(StrEnum):
    """What a write does, in the words of TransactWriteItems."""

    PUT = "Put"
    DELETE = "Delete"
    CHECK = "ConditionCheck"


_ALONE: Final = {Kind.PUT: "put_item", Kind.DELETE: "delete_item"}


@frozen
class Write:
    """One member of a transaction.

    Attributes:
        item: the whole item to put; None where nothing is put.
        condition: expression, names and values; empty: none.
    """

    kind: Kind
    table: str
    key: Item
    item: Item | None = None
    condition: Mapping[str, Any] = {}

    def params(self) -> dict[str, Any]:
        """As the wire has it."""
        what = {"Key": self.key} if self.item is None else {"Item": self.item}
        return {"TableName": self.table, **what, **self.condition}


def as_it_was(version: str | None, hash_key: str) -> dict[str, Any]:
    """The condition that an item is as it was read.

    Args:
        version: its token; None: there was no item.
        hash_key: an attribute that every item has.
    """
    if version is None:
        return {"ConditionExpression": f"attribute_not_exists({hash_key})"}
    return {"ConditionExpression": "v = :v", "ExpressionAttributeValues": {":v": {"S": version}}}


@define(eq=False)
class Committer:
    """Sends writes.

    Attributes:
        random: makes the ids of writes.
    """

    calls: AwsCalls
    counts: RequestCounts
    random: Random

    def new_id(self) -> str:
        """An id that no other write has."""
        return f"{self.random.getrandbits(80):020x}"

    async def write(self, writes: Sequence[Write], write_id: str, *, patient: bool = True) -> frozenset[int] | None:
        """Writes all or nothing.

        Args:
            writes: at most 100, no item twice, 4 MB together.
            write_id: in the version token of every put of a record; the token of the transaction.
            patient: False: give up soon when only some of the items are throttled, so that the others can go without.

        Returns:
            None when it is written; else the places in `writes` whose condition said no.

        Raises:
            StoreError: refused for good, or not settled within GIVE_UP_S: the message says if it may have been written;
                with the code PARTLY_THROTTLED: see `patient`; nothing was written.
        """
        give_up_s = trio.current_time() + GIVE_UP_S
        uncertain = False
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._send(writes, write_id)
            except AwsFailure as error:
                failed = error
            else:
                return None
            if uncertain and failed.failure in {Failure.CONDITION, Failure.REFUSED} and await self._landed(
                writes, write_id
            ):
                return None
            if failed.failure is Failure.CONDITION:
                return _failed_places(failed, len(writes))
            if failed.failure not in TRANSIENT:
                raise store_error(failed) from failed
            if not patient and attempt >= PATIENCE and not uncertain and _is_partly_throttled(failed):
                raise StoreError(failed.message, code=PARTLY_THROTTLED) from failed
            if failed.failure is Failure.UNKNOWN:
                uncertain = True
            delay_s = self.calls.delay_s(attempt)
            if trio.current_time() + delay_s > give_up_s:
                raise _given_up(failed, uncertain=uncertain) from failed
            await self.calls.sleep(delay_s)

    async def pause(self, attempt: int) -> None:
        """Waits a moment before a decision is taken again, so that those who fight over a record fall out of step."""
        await self.calls.sleep(self.calls.delay_s(attempt) / 10)

    async def _send(self, writes: Sequence[Write], write_id: str) -> None:
        operation = _ALONE.get(writes[0].kind) if len(writes) == 1 else None
        if operation is not None:
            await self.calls(operation, **writes[0].params())
        else:
            operation = "transact_write_items"
            members = [{write.kind.value: write.params()} for write in writes]
            await self.calls(operation, TransactItems=members, ClientRequestToken=write_id)
        self.counts.count(operation, [write.table for write in writes])

    async def _landed(self, writes: Sequence[Write], write_id: str) -> bool:
        """Whether a write of unknown outcome has happened: its first record, as it is now, says so."""
        for write in writes:
            if write.item is not None and "v" in write.item:
                found = await self._read(write)
                return found is not None and names_write(found["v"]["S"], write_id)
        deleted = next((write for write in writes if write.kind is Kind.DELETE), None)
        return deleted is not None and await self._read(deleted) is None

    async def _read(self, write: Write) -> Item | None:
        try:
            answer = await self.calls.repeated(
                "get_item", within_s=GIVE_UP_S, TableName=write.table, Key=write.key, ConsistentRead=True
            )
        except AwsFailure as error:
            raise _given_up(error, uncertain=True) from error
        item: Item | None = answer.get("Item")
        return item


def _failed_places(failed: AwsFailure, count: int) -> frozenset[int]:
    """Where the conditions said no; everywhere, if the answer does not say."""
    places = frozenset(place for place, reason in enumerate(failed.reasons) if reason != "None")
    return places or frozenset(range(count))


def _is_partly_throttled(failed: AwsFailure) -> bool:
    return failed.failure is Failure.THROTTLED and "None" in failed.reasons


def _given_up(failed: AwsFailure, *, uncertain: bool) -> StoreError:
    outcome = "it may have been written" if uncertain else "nothing was written"
    return StoreError(f"{failed.message}; given up after {GIVE_UP_S:.0f} s, {outcome}")
