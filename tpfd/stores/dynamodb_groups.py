"""Transactions of this process that meet wait for each other and then go together.

DynamoDB is optimistic: of two writes over the same reading, one is refused. Within a process that would be the rule for
the rows everything hangs on (an execution, its unit), so it is settled here first. A transaction whose keys meet those
of one in flight waits; when that one is done, all that wait for it run as one *group*: they decide one after another
over an overlay of the records, and go out as one write. The same happens when all places of the lane are taken: what
has gathered meanwhile shares the next one. Everybody resumes after the write, also who was refused: it may have seen
what a neighbour was about to write.

A group whose condition fails (another process was faster) reads again what failed and decides again. After ROUNDS times
it goes on in halves, as it does when one of its records is refused, damaged, or under a throttled key: so one member
does not hold up the rest.

While a group is on its way, those that wait for it decide already, over what it is about to write. When it has arrived
they only have to be sent; when it has not, they decide again like everybody else.

Two *lanes* keep claims, renewals and commits of executions apart from the rest, with threads of their own: slow
payloads and heavy streams must not cost anybody a lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import outcome
import trio
from attrs import define, field

from tpfd.core.kinds import EXECUTION
from tpfd.core.records import Fact
from tpfd.core.transact import Key
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_beliefs import Beliefs
from tpfd.stores.dynamodb_commit import PARTLY_THROTTLED, Committer, Kind, Write, as_it_was
from tpfd.stores.dynamodb_items import ABSENT, Items, Seen, next_version
from tpfd.stores.dynamodb_journal import Journal
from tpfd.stores.dynamodb_loader import Loader
from tpfd.stores.dynamodb_overlay import Full, Member, Overlay, Unread
from tpfd.stores.dynamodb_requests import GIVE_UP_S
from tpfd.stores.dynamodb_statistics import Counts, GroupStatistics

ROUNDS: Final = 6
"""Times that a group decides before it goes on in halves."""
CONTENDED: Final = "store_contended"
_OF_SOME: Final = frozenset({CONTENDED, PARTLY_THROTTLED})
"""Retryable errors that need not meet every member."""
MEMBERS_MAX: Final = 64
"""Decisions per group."""


@define(eq=False)
class Lane:
    """A bounded number of groups at a time.

    Attributes:
        places: groups at a time.
        backlog: the members that gather while all places are taken.
    """

    committer: Committer
    places: int
    running: int = 0
    backlog: deque[Member] = field(factory=deque)


@define(eq=False)
class _Group:
    """Members that go together.

    Attributes:
        keys: what it looks at and writes, and what those look at who come next.
        gathering: who meets it may still join.
        decided: decisions of all members, taken while the group before was on its way; None: they have to be taken.
        next: of those who wait, the decisions over what is on its way; None: nothing is.
        open: more may be decided there.
    """

    lane: Lane
    members: list[Member] = field(factory=list)
    keys: set[Key[Any]] = field(factory=set)
    gathering: bool = True
    waiting: list[Member] = field(factory=list)
    decided: Overlay | None = None
    next: Overlay | None = None
    open: bool = False


@define(eq=False)
class Groups:
    """Runs the transactions of a process.

    Attributes:
        nursery: of the store; groups run there, because nobody's cancel may hide an outcome.
        keep_fact: says which facts the journal keeps.
    """

    nursery: trio.Nursery
    items: Items
    loader: Loader
    beliefs: Beliefs
    journal: Journal
    keep_fact: Callable[[Fact], bool]
    executions: Lane
    rest: Lane
    _busy: dict[Key[Any], _Group] = field(factory=dict, init=False)
    _counts: Counts = field(factory=Counts, init=False)

    def statistics(self) -> GroupStatistics:
        counts = self._counts
        return GroupStatistics(
            member_count=counts.members,
            group_count=counts.groups,
            commit_count=counts.commits,
            largest_group_count=counts.largest,
            refused_count=counts.refused,
            split_count=counts.split,
            waiting_count=len(self.executions.backlog) + len(self.rest.backlog),
        )

    async def run(self, member: Member) -> None:
        """Runs one transaction to its end; see `Member.result`.

        **Cancellation**: not looked for; the caller does that before.
        """
        self._admit(member)
        with trio.CancelScope(shield=True):
            await member.done.wait()

    def _admit(self, member: Member) -> None:
        holder = self._holder(member)
        if holder is None:
            self._lane(member).backlog.append(member)
            self._start_waiting()
        elif holder.gathering and len(holder.members) < MEMBERS_MAX:
            holder.members.append(member)
            self._hold(holder, [read.key for read in member.reads])
        else:
            holder.waiting.append(member)
            if holder.next is not None:
                self._decide_ahead(holder, holder.next, member)

    def _decide_ahead(self, group: _Group, overlay: Overlay, member: Member) -> None:
        """Decides over what a group is about to write. Nobody does any more once somebody needs more for that: he must
        not be overtaken again and again."""
        keys = [read.key for read in member.reads]
        group.open = (
            group.open
            and len(overlay.results) < MEMBERS_MAX
            and all(self._busy.get(key, group) is group for key in keys)
            and _runs(overlay, member)
        )
        if group.open:
            self._hold(group, keys)

    async def _decide_all_ahead(self, group: _Group, members: Iterable[Member], overlay: Overlay) -> None:
        await trio.lowlevel.checkpoint()  # its request goes into a thread first
        for member in members:
            if group.next is overlay and member not in overlay.results:
                self._decide_ahead(group, overlay, member)

    def _holder(self, member: Member) -> _Group | None:
        """A group in flight that looks at one of the member's records."""
        return next((self._busy[read.key] for read in member.reads if read.key in self._busy), None)

    def _lane(self, member: Member) -> Lane:
        of_executions = bool(member.reads) and all(read.key.kind is EXECUTION for read in member.reads)
        return self.executions if of_executions else self.rest

    def _start_waiting(self) -> None:
        for lane in (self.executions, self.rest):
            while lane.backlog and lane.running < lane.places:
                group = _Group(lane)
                while lane.backlog and len(group.members) < MEMBERS_MAX:
                    member = lane.backlog.popleft()
                    holder = self._holder(member)
                    if holder is None or holder is group:
                        group.members.append(member)
                        self._hold(group, [read.key for read in member.reads])
                    else:
                        holder.waiting.append(member)
                if group.members:
                    lane.running += 1
                    self.nursery.start_soon(self._run, group)

    def _hold(self, group: _Group, keys: Iterable[Key[Any]]) -> None:
        for key in keys:
            if self._busy.setdefault(key, group) is group:
                group.keys.add(key)

    async def _run(self, group: _Group) -> None:
        left: list[Member] = group.members
        try:
            with trio.CancelScope(shield=True):  # a write's outcome must be seen; it is bounded by GIVE_UP_S
                if group.gathering:
                    await trio.lowlevel.checkpoint()  # what comes at the same moment goes with it
                group.gathering = False
                left = await self._settle(group, group.members)
        except BaseException:
            # A bug, which ends the process: nobody may wait for ever. What was sent may have been written.
            stranded = [*group.members, *group.waiting, *self.executions.backlog, *self.rest.backlog]
            _fail(stranded, StoreError("the store broke under it", code="store_broken"))
            raise
        finally:
            for key in group.keys:
                del self._busy[key]
            group.lane.running -= 1
        done_count = len(group.members) - len(left)
        self._counts.groups += 1
        self._counts.members += done_count
        self._counts.largest = max(self._counts.largest, done_count)
        ready = self._start_next(group)
        for member in reversed([*left, *group.waiting]):
            if member not in ready:
                self._lane(member).backlog.appendleft(member)
        self._start_waiting()

    def _start_next(self, group: _Group) -> Collection[Member]:
        """Starts those who have decided over what a group has written by now."""
        overlay = group.next
        if overlay is None or not overlay.results:
            return ()
        following = _Group(group.lane, [*overlay.results], gathering=False, decided=overlay)
        self._hold(following, [*(read.key for member in following.members for read in member.reads)])
        self._hold(following, [*overlay.base, *overlay.writes])
        group.lane.running += 1
        self.nursery.start_soon(self._run, following)
        return overlay.results

    async def _settle(self, group: _Group, members: list[Member]) -> list[Member]:
        """Decides and writes until every member has its result.

        Returns:
            The members for which there was no room in the transaction.
        """
        try:
            return await self._together(group, members)
        except StoreError as error:
            group.next = None
            # One damaged record, one that is refused or fought over, one throttled key must not take the others with
            # it. An outage meets all.
            if len(members) == 1 or (error.retryable and error.code not in _OF_SOME):
                _fail(members, error)
                return []
            code = error.code
        self._counts.split += 1
        halves = members[: len(members) // 2], members[len(members) // 2 :]
        if code == CONTENDED:  # one after the other, or they would fight with each other too
            for half in halves:
                await self._settle_all(group, half)
            return []
        async with trio.open_nursery() as nursery:
            for half in halves:
                nursery.start_soon(self._settle_all, group, half)
        return []

    async def _settle_all(self, group: _Group, members: list[Member]) -> None:
        while members:
            members = await self._settle(group, members)

    async def _together(self, group: _Group, members: list[Member]) -> list[Member]:
        """One write for all members; returns those for which there was no room.

        Raises:
            StoreError: nothing was written, or it is not known.
        """
        fresh: dict[Key[Any], Seen] = {}
        give_up_s = trio.current_time() + GIVE_UP_S
        attempt = 0
        while True:
            attempt += 1
            overlay, left = await self._decided(group, members, fresh)
            failed = None
            if not overlay.is_empty:
                behind = [*left, *group.waiting] if members is group.members else None
                failed = await self._write(group, overlay, behind, patient=len(members) == 1)
            if failed is None:
                for member, result in overlay.results.items():
                    member.finish(result)
                return left
            self._counts.refused += 1
            for key in failed:
                self.beliefs.drop(key)
            if (len(members) > 1 and attempt >= ROUNDS) or trio.current_time() > give_up_s:
                names = ", ".join(sorted(f"{key.kind.name} {key.record_id}" for key in failed))
                raise StoreError(f"other processes kept changing {names}; nothing was written", code=CONTENDED)
            await group.lane.committer.pause(attempt)
            await self._read(fresh, failed)

    async def _decided(
        self, group: _Group, members: list[Member], fresh: dict[Key[Any], Seen]
    ) -> tuple[Overlay, list[Member]]:
        """As `_decide`, or what was decided ahead."""
        ahead, group.decided = group.decided, None
        if ahead is not None and not ahead.unproven():
            return ahead, []
        return await self._decide(group, members, fresh)

    async def _decide(
        self, group: _Group, members: list[Member], fresh: dict[Key[Any], Seen]
    ) -> tuple[Overlay, list[Member]]:
        """Runs every decision, reading what they look at.

        Returns:
            The transaction, and the members that did not fit into it.
        """
        while True:
            overlay = Overlay(fresh, self.beliefs.get, self.items, self.keep_fact)
            wanted: set[Key[Any]] = set()
            left: list[Member] = []
            for member in members:
                try:
                    overlay.run(member)
                except Unread as unread:
                    wanted |= unread.keys
                except Full:
                    left.append(member)
            wanted |= overlay.unproven()
            if not wanted:
                self._hold(group, [*overlay.base, *overlay.writes])
                return overlay, left
            self._hold(group, [*wanted])
            await self._read(fresh, wanted)

    async def _read(self, fresh: dict[Key[Any], Seen], keys: Iterable[Key[Any]]) -> None:
        found = await self.loader.load(keys)
        self.beliefs.learn(found)
        fresh.update(found)

    async def _write(
        self, group: _Group, overlay: Overlay, behind: list[Member] | None, *, patient: bool
    ) -> frozenset[Key[Any]] | None:
        """Sends one transaction.

        Args:
            behind: who may decide meanwhile; None: nobody, because this is a part of the group only.

        Returns:
            None, or the records that were not as they were read.
        """
        lane = group.lane
        if overlay.facts:
            await self.journal.room()
        write_id = lane.committer.new_id()
        conditions = overlay.conditions
        writes: list[Write] = []
        keys: list[Key[Any]] = []
        written: dict[Key[Any], tuple[Seen, int]] = {}
        for key in dict.fromkeys([*overlay.writes, *conditions]):
            table = self.items.table_of(key.kind).spec
            key_item = self.items.key_item(key)
            condition = as_it_was(conditions[key].version, table.hash_key) if key in conditions else {}
            keys.append(key)
            if key not in overlay.writes:
                writes.append(Write(Kind.CHECK, table.name, key_item, None, condition))
            elif (put := overlay.writes[key]) is None:
                writes.append(Write(Kind.DELETE, table.name, key_item, None, condition))
                written[key] = (ABSENT, 0)
            else:
                version = next_version(write_id, overlay.base.get(key))
                item = self.items.item(key, put.record, put.body, version)
                writes.append(Write(Kind.PUT, table.name, key_item, item, condition))
                written[key] = (Seen(put.record, version), put.body.size_bytes)
        bundles = self.journal.bundles(overlay.facts, write_id)
        writes += [self.journal.write(bundle) for bundle in bundles]
        if behind is not None:
            coming = {key: seen for key, (seen, _) in written.items()}
            group.next = Overlay({}, lambda key: coming.get(key) or self.beliefs.get(key), self.items, self.keep_fact)
            group.open = True
            self.nursery.start_soon(self._decide_all_ahead, group, behind, group.next)
        failed = await lane.committer.write(writes, write_id, patient=patient)
        if failed is not None:
            group.next = None
            return frozenset(keys[place] for place in failed if place < len(keys))
        self._counts.commits += 1
        for key, (seen, size_bytes) in written.items():
            self.beliefs.keep(key, seen, size_bytes)
        self.journal.take(bundles)
        return None


def _runs(overlay: Overlay, member: Member) -> bool:
    try:
        overlay.run(member)
    except (Unread, Full):
        return False
    return True


def _fail(members: Iterable[Member], error: StoreError) -> None:
    """Ends those that have no result yet. Each gets an error of its own, because it is raised in a task of its own."""
    for member in members:
        if member.result is None:
            own = StoreError(error.message, retryable=error.retryable, code=error.code)
            own.__cause__ = error
            member.finish(outcome.Error(own))
