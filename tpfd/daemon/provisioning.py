"""Makes the tables and queues that a configuration uses. What is there is left as it is, so it may be run at any time.

A table that is there but lacks an index or its time-to-live gets it; nothing is ever removed or changed otherwise.
Buckets are not made: they belong to whoever owns the objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import AwsFailure
from tpfd.aws.queue_urls import queue_account, queue_name
from tpfd.daemon.aws_sites import WITHIN_S, Clients, described, expires, is_active, queue_state, queue_there
from tpfd.daemon.resources import Queue, Resources
from tpfd.daemon.templates import queue_attributes
from tpfd.errors import ConfigError, Problem, StoreError
from tpfd.stores.dynamodb_tables import TTL, TableSpec

ACTIVE_WITHIN_S = 900.0
"""How long a table, or an index on a large table, may take to come up."""
LOOK_AGAIN_S = 0.5
LOOK_AGAIN_MAX_S = 10.0

_TABLE_THERE = "ResourceInUseException"

Tell = Callable[[str, str, bool], None]
"""Told of each thing: what, its name, whether it was made now."""


@define(eq=False)
class Provisioner:
    """Makes what is missing.

    Attributes:
        tell: told of each thing as soon as it is there.
    """

    tell: Tell
    _clients: Clients = field(factory=Clients, init=False)

    async def make(self, resources: Resources) -> None:
        """Makes everything that is missing, and waits until it can be used.

        Raises:
            AwsFailure: a call failed; what was made until then stays.
            ConfigError: no client can be made, or a queue's URL names another account than that of the credentials.
            StoreError: a table did not come up.
        """
        if resources.tables:
            dynamodb = await self._clients.at("dynamodb", resources.tables_site)
            for table in resources.tables:
                await self._table(dynamodb, table)
        for queue in resources.queues:
            await self._queue(queue)

    async def _table(self, dynamodb: AwsCalls, table: TableSpec) -> None:
        found = await described(dynamodb, table.name)
        if found is None:
            try:
                await dynamodb.repeated("create_table", within_s=WITHIN_S, **table.create_parameters())
            except AwsFailure as error:
                if error.aws_code != _TABLE_THERE:  # somebody else was quicker, or our own try whose answer was lost
                    raise
            await self._until_active(dynamodb, table)
        self.tell("table", table.name, found is None)
        if found is not None:
            await self._missing_indexes(dynamodb, table, found)
        await self._time_to_live(dynamodb, table)

    async def _missing_indexes(self, dynamodb: AwsCalls, table: TableSpec, found: dict[str, Any]) -> None:
        there = {index["IndexName"] for index in found.get("GlobalSecondaryIndexes", ())}
        wanted = table.create_parameters()
        for index in wanted.get("GlobalSecondaryIndexes", ()):
            if index["IndexName"] in there:
                continue
            await dynamodb.repeated(  # one at a time: the service takes no more
                "update_table",
                within_s=WITHIN_S,
                TableName=table.name,
                AttributeDefinitions=wanted["AttributeDefinitions"],
                GlobalSecondaryIndexUpdates=[{"Create": index}],
            )
            await self._until_active(dynamodb, table)
            self.tell("index", f"{table.name}/{index['IndexName']}", True)

    async def _time_to_live(self, dynamodb: AwsCalls, table: TableSpec) -> None:
        if await expires(dynamodb, table.name) != TTL:
            await dynamodb.repeated("update_time_to_live", within_s=WITHIN_S, **table.ttl_parameters())
            self.tell("time to live", f"{table.name}.{TTL}", True)

    async def _until_active(self, dynamodb: AwsCalls, table: TableSpec) -> None:
        pause_s = LOOK_AGAIN_S
        with trio.move_on_after(ACTIVE_WITHIN_S):
            while not is_active(await described(dynamodb, table.name)):
                await trio.sleep(pause_s)
                pause_s = min(LOOK_AGAIN_MAX_S, 2 * pause_s)
            return
        raise StoreError(f"table {table.name} is not ACTIVE after {ACTIVE_WITHIN_S:.0f} s; look at it in the console")

    async def _queue(self, queue: Queue) -> None:
        sqs = await self._clients.at("sqs", queue.site)
        name = queue_name(queue.url)
        if await queue_there(sqs, queue.url):
            self.tell("queue", name, False)
            return
        # The queue that it redrives to stands before it in the list, so it is there by now.
        arn = None if queue.redrive_to is None else (await queue_state(sqs, queue.redrive_to))["QueueArn"]
        attributes = queue_attributes(queue, arn)
        answer = await sqs.repeated("create_queue", within_s=WITHIN_S, QueueName=name, Attributes=attributes)
        self.tell("queue", name, True)
        made, wanted = queue_account(answer["QueueUrl"]), queue_account(queue.url)
        if made and wanted and made != wanted:
            message = f"names account {wanted}, but these credentials made {name} in {made}; use those of {wanted}, or "
            raise ConfigError([Problem(queue.path, f"{message}name {answer['QueueUrl']}")])
