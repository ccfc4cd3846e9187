"""The facts: committed in bundles, then moved to their places.

A transaction that has facts writes them as they are into a *bundle*, an item of the journal's table. Soon after, the
process *moves* its bundles: one transaction gives their facts the next sequence numbers, writes each under its own key
(so that a repeat is known), writes a page that says which facts have which numbers, and removes the bundles. All moves
go through one counter, the *head*, so numbers become visible in order, whoever moves; a commit never waits for it.

Readers move first what this process has committed, so that it sees its own facts. Facts of another process show up
when that has moved them, usually within a tenth of a second; what it left behind when it died, when the history of
that execution is next read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import trio
from attrs import define, evolve, field

from tpfd.core.records import Fact
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_commit import Committer, Kind, Write
from tpfd.stores.dynamodb_facts import (
    HEAD_KEY,
    Bundle,
    FactKey,
    bundle_of,
    fact_item,
    fact_key,
    key_item,
    page_text,
    parts_of,
)
from tpfd.stores.dynamodb_requests import Requests
from tpfd.stores.dynamodb_tables import TTL, Item, TableSpec

MOVE_MAX: Final = 90
"""Facts and bundles moved by one transaction, which may have 100 items."""
PENDING_MAX: Final = 5_000
"""Facts that may wait to be moved; then commits with facts wait too."""
GATHER_S: Final = 0.02
"""How long a move waits for more facts."""
FEED_S: Final = 90 * 24 * 3600
"""How far back the feed goes. An execution's own history stays as long as it does."""
PAGES_SHIFT: Final = 16
"""Sequence numbers of one partition of the feed: 65,536."""


@define(eq=False)
class Journal:
    """What a process adds to the journal.

    Attributes:
        spec: its table.
        now_s: seconds since the epoch.
    """

    requests: Requests
    committer: Committer
    spec: TableSpec
    now_s: Callable[[], float]
    _pending: deque[Bundle] = field(factory=deque, init=False)
    _pending_count: int = field(default=0, init=False)
    _work: trio.Event = field(factory=trio.Event, init=False)
    _moved: trio.Event = field(factory=trio.Event, init=False)
    _moving: trio.Lock = field(factory=trio.Lock, init=False)
    _last: int | None = field(default=None, init=False)  # the head, as we wrote it; None: it has to be read

    @property
    def table(self) -> str:
        """Name of its table."""
        return self.spec.name

    def bundles(self, facts: Iterable[Fact], write_id: str) -> list[Bundle]:
        """The facts of one transaction, in their order, to be written with it."""
        return [
            Bundle(key_item((root, f"p#{write_id}.{number:03d}")), tuple(part))
            for number, (root, part) in enumerate(parts_of(facts))
        ]

    def write(self, bundle: Bundle) -> Write:
        """Puts a bundle."""
        return Write(Kind.PUT, self.table, bundle.key, bundle.item())

    def take(self, bundles: Iterable[Bundle]) -> None:
        """Has committed bundles moved."""
        for bundle in bundles:
            self._pending.append(bundle)
            self._pending_count += len(bundle.facts)
        if self._pending:
            self._work.set()

    async def room(self) -> None:
        """Waits while too many facts wait to be moved."""
        while self._pending_count > PENDING_MAX:
            await self._moved.wait()

    async def run(self, failed: Callable[[StoreError], None]) -> NoReturn:
        """Moves what is committed, for ever.

        Args:
            failed: told of a move that did not work; it is tried again.
        """
        attempt = 0
        while True:
            await self._work.wait()
            await trio.sleep(GATHER_S)
            try:
                await self.move()
                attempt = 0
            except StoreError as error:
                failed(error)
                attempt += 1
                await trio.sleep(self.requests.calls.delay_s(attempt))

    async def move(self) -> None:
        """Moves everything that was committed before this call. Raises StoreError."""
        async with self._moving:
            while self._pending:
                self._pending_count -= await self._move_some(self._pending)
                self._moved.set()
                self._moved = trio.Event()
            self._work = trio.Event()

    async def move_left_behind(self, root: str) -> None:
        """Moves what another process has committed about an execution and not moved, perhaps because it died.

        Raises:
            StoreError: not all of it was moved.
        """
        items = await self.requests.query_all(
            self.table,
            ConsistentRead=True,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :bundle)",
            ExpressionAttributeValues={":pk": {"S": root}, ":bundle": {"S": "p#"}},
        )
        left = deque(bundle_of(item) for item in items)
        async with self._moving:
            while left:
                await self._move_some(left)

    async def last_seq(self) -> int:
        """The last sequence number, as it is now. Raises StoreError."""
        item = await self.requests.get(self.table, HEAD_KEY)
        return 0 if item is None else int(item["seq"]["N"])

    async def _move_some(self, bundles: deque[Bundle]) -> int:
        """Moves the facts at the front, as many as go into one transaction, and takes them off. Returns how many."""
        facts: dict[FactKey, Fact] = {}
        whole: list[Bundle] = []
        room = MOVE_MAX
        for bundle in bundles:
            if len(bundle.facts) >= room:
                break
            whole.append(bundle)
            room -= len(bundle.facts) + 1
        part = bundles[0].facts[:MOVE_MAX] if not whole else ()
        moved = [*part, *(fact for bundle in whole for fact in bundle.facts)]
        for fact in moved:
            facts.setdefault(fact_key(fact), fact)  # of a repeat the first counts
        await self._write_moved(facts, whole)
        if part:
            bundles[0] = evolve(bundles[0], facts=bundles[0].facts[len(part) :])
        for _ in whole:
            bundles.popleft()
        return len(moved)

    async def _write_moved(self, facts: dict[FactKey, Fact], done: list[Bundle]) -> None:
        """One transaction: numbers, facts, page, and the end of the bundles. Leaves out what is there already."""
        attempt = 0
        while facts or done:
            last = await self.last_seq() if self._last is None else self._last
            self._last = None
            writes = self._numbered(facts, last) if facts else []
            first_bundle = len(writes)
            is_there = {"ConditionExpression": "attribute_exists(pk)"}
            writes += [Write(Kind.DELETE, self.table, bundle.key, None, is_there) for bundle in done]
            failed = await self.committer.write(writes, self.committer.new_id())
            if failed is None:
                self._last = last + len(facts)
                return
            if facts and 0 in failed:  # the head: another process moves too
                attempt += 1
                await self.committer.pause(attempt)
            else:
                self._last = last
            keys = list(facts)
            known = [keys[place - 1] for place in failed if 1 <= place <= len(keys)]
            # A bundle that is gone was moved by another process, or forgotten with its execution.
            gone = [done[place - first_bundle] for place in failed if place >= first_bundle]
            for key in (*known, *(fact_key(fact) for bundle in gone for fact in bundle.facts)):
                facts.pop(key, None)
            done = [bundle for bundle in done if bundle not in gone]

    def _numbered(self, facts: dict[FactKey, Fact], last: int) -> list[Write]:
        """The head, the facts and their page, in this order."""
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        new = Write(Kind.PUT, self.table, HEAD_KEY, {**HEAD_KEY, "seq": {"N": str(last + len(facts))}}, condition)
        if last:
            values = {":last": {"N": str(last)}}
            new = evolve(new, condition={"ConditionExpression": "seq = :last", "ExpressionAttributeValues": values})
        return [
            new,
            *(
                Write(Kind.PUT, self.table, key_item(key), fact_item(key, fact, seq), condition)
                for seq, (key, fact) in enumerate(facts.items(), last + 1)
            ),
            self._page(list(facts), last + 1),
        ]

    def _page(self, keys: Sequence[FactKey], first: int) -> Write:
        key: Item = {"pk": {"S": f"feed:{first >> PAGES_SHIFT}"}, "sk": {"S": f"{first:020d}"}}
        expires = {TTL: {"N": str(int(self.now_s()) + FEED_S)}}
        return Write(Kind.PUT, self.table, key, {**key, "facts": {"S": page_text(keys)}, **expires})
