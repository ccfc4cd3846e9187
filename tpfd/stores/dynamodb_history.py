"""Reading the journal: the history of one execution, the feed of all, and forgetting what is over."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.stores.dynamodb_facts import FactKey, key_item, page_keys, place_of, root_of, sequenced
from tpfd.stores.dynamodb_journal import PAGES_SHIFT, Journal
from tpfd.stores.dynamodb_requests import BATCH_GET_MAX, Requests
from tpfd.stores.dynamodb_tables import Item, escaped
from tpfd.stores.paging import check_limit

_HIGHEST = 10**19


@frozen
class History:
    """What all processes have added to the journal. Each call moves first what this one has committed."""

    journal: Journal
    requests: Requests

    async def last_seq(self) -> int:
        """See ``Store.last_seq``."""
        await self.journal.move()
        return await self.journal.last_seq()

    async def of_execution(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        """See ``Store.history``."""
        check_limit(limit)
        await self.journal.move()
        root = root_of(tenant_id, execution_id)
        await self.journal.move_left_behind(root)
        items = await self.requests.query_all(
            self.journal.table,
            limit,
            IndexName=self.journal.spec.local_index,
            ConsistentRead=True,
            KeyConditionExpression="pk = :pk AND place BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":pk": {"S": root},
                ":first": {"S": place_of(execution_id, after + 1)},
                ":last": {"S": place_of(execution_id, _HIGHEST)},
            },
        )
        return [sequenced(item) for item in items]

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        """See ``Store.feed``."""
        check_limit(limit)
        await self.journal.move()
        # Every page up to here was written before the pages are read, so none of them can be missed.
        last = await self.journal.last_seq()
        found: list[SequencedFact] = []
        while after < last and len(found) < limit:
            named = await self._named(after, last, limit - len(found))
            if named:
                facts = await self._facts(list(named.values()))
                found += [facts[key] for key in named.values() if key in facts]  # what is not there was forgotten
                after = max(named)
            else:  # older than the feed goes back: on to the next partition
                after = (((after + 1) >> PAGES_SHIFT) + 1 << PAGES_SHIFT) - 1
        return found

    async def _named(self, after: int, last: int, limit: int) -> dict[int, FactKey]:
        """The keys of the next facts of the feed, by number."""
        partition = (after + 1) >> PAGES_SHIFT
        named: dict[int, FactKey] = {}
        # The page that the next number stands on may have begun before it, even in the partition before.
        begun = await self._pages(partition, 0, after + 1, 1, descending=True)
        if not begun and partition:
            begun = await self._pages(partition - 1, 0, after + 1, 1, descending=True)
        for page in begun + await self._pages(partition, after + 2, last, limit):
            for seq, key in enumerate(page_keys(page), int(page["sk"]["S"])):
                if after < seq <= last and len(named) < limit:
                    named[seq] = key
        return named

    async def _pages(
        self, partition: int, first: int, last: int, limit: int, *, descending: bool = False
    ) -> list[Item]:
        if first > last:
            return []
        return await self.requests.query_all(
            self.journal.table,
            limit,
            ConsistentRead=True,
            ScanIndexForward=not descending,
            KeyConditionExpression="pk = :pk AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":pk": {"S": f"feed:{partition}"},
                ":first": {"S": f"{first:020d}"},
                ":last": {"S": f"{last:020d}"},
            },
        )

    async def _facts(self, keys: Sequence[FactKey]) -> dict[FactKey, SequencedFact]:
        found = {}
        for first in range(0, len(keys), BATCH_GET_MAX):
            asked = [key_item(key) for key in keys[first : first + BATCH_GET_MAX]]
            for item in (await self.requests.get_many({self.journal.table: asked}))[self.journal.table]:
                found[item["pk"]["S"], item["sk"]["S"]] = sequenced(item)
        return found

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        """See ``Store.forget``."""
        await self.journal.move()
        root = root_of(tenant_id, execution_id)
        await self.journal.move_left_behind(root)
        for start in (f"f#{escaped(execution_id)}#", f"f#{escaped(execution_id)}."):
            items = await self.requests.query_all(
                self.journal.table,
                ConsistentRead=True,
                KeyConditionExpression="pk = :pk AND begins_with(sk, :start)",
                ExpressionAttributeValues={":pk": {"S": root}, ":start": {"S": start}},
                ProjectionExpression="pk, sk",
            )
            await self.requests.write_all([(self.journal.table, {"DeleteRequest": {"Key": item}}) for item in items])
