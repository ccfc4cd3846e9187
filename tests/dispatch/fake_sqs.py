"""A queue as SQS keeps it, on Trio's clock: visibility, receipts, delays, batches; and the ways in which it fails."""

# ruff: noqa: N803 - the names are those of the service

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import botocore.exceptions as sdk
import trio
from attrs import define, field

from tests.engine.gate import Gate
from tpfd.aws.calls import AwsCalls
from tpfd.aws.sqs_queue import SqsQueue

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/work"
LIMIT_BYTES = 262_144


def refusal(code: str, operation: str = "SendMessageBatch") -> sdk.ClientError:
    return sdk.ClientError({"Error": {"Code": code, "Message": "said so"}}, operation)


@define(eq=False)
class Stored:
    """One message.

    Attributes:
        shown_at: when it can be received (again).
    """

    message_id: str
    body: str
    shown_at: float
    receipts: list[str] = field(factory=list)


@define(eq=False)
class FakeSqs:
    """The service, and one of its queues.

    Attributes:
        failing: raised by every call as long as it is set.
        entry_failure: for each entry of a batch, how it fails; None: it does not.
        log: operation and its number of entries.
        credentials_made: clients that were made.
        slow_s: how long a message takes to appear.
        fail_count: calls that fail from now on, before others work.
    """

    stored: dict[str, Stored] = field(factory=dict)
    failing: sdk.ClientError | sdk.BotoCoreError | None = None
    entry_failure: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda _operation, _entry: None
    log: list[tuple[str, int]] = field(factory=list)
    deleted: list[str] = field(factory=list)
    credentials_made: int = 0
    slow_s: float = 0.0
    fail_count: int = 0
    _numbers: itertools.count[int] = field(factory=itertools.count)

    # ── what a client offers ──

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        assert sum(len(entry["MessageBody"].encode()) for entry in Entries) <= LIMIT_BYTES
        return self._batch("send", Entries, self._send)

    def delete_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        return self._batch("delete", Entries, self._delete)

    def change_message_visibility_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        return self._batch("hide", Entries, self._hide)

    def receive_message(
        self, QueueUrl: str, MaxNumberOfMessages: int, WaitTimeSeconds: int, VisibilityTimeout: int, **_: Any
    ) -> dict[str, Any]:
        self._called("receive", MaxNumberOfMessages)
        assert 1 <= MaxNumberOfMessages <= 10
        found = []
        for one in self.chosen(MaxNumberOfMessages):
            receipt = f"{one.message_id}/{len(one.receipts)}"
            one.receipts.append(receipt)
            one.shown_at = self.shown_again_at(one, VisibilityTimeout)
            attributes = {"ApproximateReceiveCount": str(len(one.receipts))}
            found.append(
                {"MessageId": one.message_id, "ReceiptHandle": receipt, "Body": one.body, "Attributes": attributes}
            )
        return {"Messages": found} if found else {}

    def chosen(self, limit: int) -> list[Stored]:
        """What a receive gets."""
        return self.shown()[:limit]

    def shown_again_at(self, message: Stored, visibility_s: float) -> float:
        """When a message comes back that was just received."""
        return trio.current_time() + visibility_s

    # ── looking ──

    def shown(self) -> list[Stored]:
        return [one for one in self.stored.values() if one.shown_at <= trio.current_time()]

    def receive_counts(self) -> list[int]:
        return [len(one.receipts) for one in self.stored.values()]

    def put(self, body: str) -> str:
        message_id = f"m{next(self._numbers)}"
        self.stored[message_id] = Stored(message_id, body, trio.current_time() + self.slow_s)
        return message_id

    # ── inside ──

    def _called(self, operation: str, count: int) -> None:
        self.log.append((operation, count))
        if self.failing is not None:
            raise self.failing
        if self.fail_count:
            self.fail_count -= 1
            raise refusal("ServiceUnavailable")

    def _batch(
        self, operation: str, entries: list[dict[str, Any]], do: Callable[[dict[str, Any]], str | None]
    ) -> dict[str, Any]:
        self._called(operation, len(entries))
        assert 1 <= len(entries) <= 10
        assert len({entry["Id"] for entry in entries}) == len(entries)
        done, failed = [], []
        for entry in entries:
            failure = self.entry_failure(operation, entry)
            if failure is None and (code := do(entry)) is not None:
                failure = {"Code": code, "SenderFault": True}
            if failure is None:
                done.append({"Id": entry["Id"]})
            else:
                failed.append({"Id": entry["Id"], "Message": "said so", **failure})
        return {"Successful": done, "Failed": failed}

    def _send(self, entry: dict[str, Any]) -> str | None:
        message_id = self.put(entry["MessageBody"])
        self.stored[message_id].shown_at += entry.get("DelaySeconds", 0)
        return None

    def _delete(self, entry: dict[str, Any]) -> str | None:
        one = self._by_receipt(entry)
        if one is None:
            return "ReceiptHandleIsInvalid"
        self.deleted.append(one.message_id)
        del self.stored[one.message_id]
        return None

    def _hide(self, entry: dict[str, Any]) -> str | None:
        one = self._by_receipt(entry)
        if one is None or one.shown_at <= trio.current_time():
            return "InvalidParameterValue"
        one.shown_at = trio.current_time() + entry["VisibilityTimeout"]
        return None

    def _by_receipt(self, entry: dict[str, Any]) -> Stored | None:
        one = self.stored.get(entry["ReceiptHandle"].partition("/")[0])
        return one if one is not None and one.receipts[-1] == entry["ReceiptHandle"] else None


@define(eq=False)
class OnTrioTime:
    """Calls in place. A receive that finds nothing waits, as a thread with a long poll would."""

    gate: Gate
    waited_out: bool = False

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=self.waited_out):
            return await self._run(call, *args)
        raise AssertionError("a scope that nobody cancels")

    async def _run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        wait_s = getattr(call, "keywords", {}).get("WaitTimeSeconds", 0)
        ends_at = trio.current_time() + wait_s
        while True:
            if self.gate.dead:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            answer = call(*args)
            if not wait_s or answer or trio.current_time() >= ends_at:
                return answer
            await trio.sleep(0.05)


def queue_over(
    service: FakeSqs,
    gate: Gate | None = None,
    *,
    within_s: float = 10.0,
    waited_out: bool = False,
) -> SqsQueue:
    """A queue of a process; a receive that is open when it is cancelled may be `waited_out`."""
    gate = Gate("p") if gate is None else gate

    def connect() -> FakeSqs:
        service.credentials_made += 1
        return service

    return SqsQueue(
        url=URL,
        calls=AwsCalls("sqs", connect, OnTrioTime(gate)),
        receives=AwsCalls("sqs", connect, OnTrioTime(gate, waited_out)),
        max_message_bytes=LIMIT_BYTES,
        within_s=within_s,
    )
