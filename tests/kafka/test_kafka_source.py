"""Consuming from a real broker: what is not dealt with comes again, whatever happens to its partition."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.kafka.broker import Broker
from tpfd.errors import TransportError
from tpfd.transports.broker import Inbound
from tpfd.transports.kafka_source import ROOM_COUNT, KafkaSource

Topics = Callable[[int], str]
ROOT = Path(__file__).parents[2]


def source(broker: Broker, topic: str, **properties: str) -> KafkaSource:
    """A member of a group named after the topic."""
    return KafkaSource(settings=broker.settings(**properties), topics=(topic,), group=f"g-{topic}")


@asynccontextmanager
async def opened(made: KafkaSource) -> AsyncIterator[KafkaSource]:
    async with made.opened():
        yield made


async def take(made: KafkaSource, count: int, within_s: float = 20.0) -> list[Inbound]:
    found: list[Inbound] = []
    with trio.fail_after(within_s):
        while len(found) < count:
            found.extend(await made.receive(count - len(found)))
    return found


def values(found: list[Inbound]) -> list[bytes | None]:
    return [one.body for one in found]


async def test_messages_come_in_order_with_their_place(either: Broker) -> None:
    name = either.topic(1)
    either.put(name, b"a", b"", None, b"\xff\xfe\x00")
    async with opened(source(either, name)) as made:
        found = await take(made, 4)
    assert values(found) == [b"a", b"", None, b"\xff\xfe\x00"]
    assert [one.position for one in found] == [f"{name}[0]@{number}" for number in range(4)]


async def test_only_the_prefix_without_a_gap_is_committed(either: Broker) -> None:
    name = either.topic(1)
    either.put(name, *(b"%d" % number for number in range(5)))
    async with opened(source(either, name)) as made:
        found = await take(made, 5)
        for number in (0, 2, 3):
            made.done(found[number])
        await either.until_committed(f"g-{name}", name, 1)
        made.done(found[1])
        await either.until_committed(f"g-{name}", name, 4)


async def test_what_was_not_dealt_with_comes_again(shared: Broker, topic: Topics) -> None:
    name = topic(1)
    shared.put(name, *(b"%d" % number for number in range(6)))
    async with opened(source(shared, name)) as made:
        for one in (await take(made, 6))[:2]:
            made.done(one)
    # The last commit is made on closing, without waiting for the next in passing.
    assert shared.committed(f"g-{name}", name) == 2
    async with opened(source(shared, name)) as made:
        assert values(await take(made, 4)) == [b"2", b"3", b"4", b"5"]


async def test_a_source_that_is_cancelled_still_commits_what_is_dealt_with(shared: Broker, topic: Topics) -> None:
    name = topic(1)
    shared.put(name, b"0", b"1")
    with trio.CancelScope() as scope:
        async with opened(source(shared, name)) as made:
            first, second = await take(made, 2)
            made.done(first)
            scope.cancel("drain")
            try:
                await trio.sleep_forever()
            finally:
                made.done(second)  # as a shielded transaction does that ends meanwhile
    assert shared.committed(f"g-{name}", name) == 2


async def test_where_there_is_no_room_nothing_more_is_taken_and_the_group_is_kept(
    shared: Broker, topic: Topics
) -> None:
    name = topic(1)
    count = 3 * ROOM_COUNT
    shared.put(name, *(b"%d" % number for number in range(count)))
    # Whoever does not poll for three seconds is thrown out of the group.
    quick = {"consumer_max_poll_interval_ms": "3000", "consumer_session_timeout_ms": "2000"}
    async with opened(source(shared, name, **quick)) as made:
        await trio.sleep(5)
        assert made.waiting_count == ROOM_COUNT
        found = await take(made, count)
        assert values(found) == [b"%d" % number for number in range(count)], "none twice, none left out"
        for one in found:
            made.done(one)
        await shared.until_committed(f"g-{name}", name, count)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_a_partition_that_goes_in_mid_admission_is_read_again_by_its_next_owner(
    shared: Broker, strategy: str
) -> None:
    # The client library's own cluster takes no commit during an eager rebalance; what was dealt with then comes again.
    name = shared.topic(2)
    for partition in (0, 1):
        shared.put(name, b"a", b"b", b"c", partition=partition)
    properties = {"consumer_partition_assignment_strategy": strategy}
    async with opened(source(shared, name, **properties)) as first:
        found = await take(first, 6)
        dealt_with = [one for one in found if one.body == b"a"]
        for one in dealt_with:
            first.done(one)
        async with opened(source(shared, name, **properties)) as second:
            again = await take(second, 2)
            assert values(again) == [b"b", b"c"], "what was dealt with was committed before the partition went"
            moved = again[0].position.split("@")[0]
            # The first is done with them only now: it must not say so any more.
            for one in found:
                if one.position.startswith(moved):
                    first.done(one)
            await trio.sleep(1.5)
            assert shared.committed(f"g-{name}", name, int(moved[-2])) == 1
            second.done(again[0])
            await shared.until_committed(f"g-{name}", name, 2, int(moved[-2]))


HOARDER = """
import sys, trio
from tests.kafka.broker import Broker
from tests.kafka.test_kafka_source import source, opened
async def main():
    broker = Broker(port=int(sys.argv[1]))
    async with opened(source(broker, sys.argv[2])) as made:
        count = 0
        while True:
            count += len(await made.receive(100))
            print(count, flush=True)
trio.run(main)
"""


async def test_what_a_killed_member_had_in_hand_goes_to_another(shared: Broker, topic: Topics) -> None:
    name = topic(1)
    shared.put(name, b"a", b"b")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOARDER, str(shared.port), name]
    hoarder = await trio.lowlevel.open_process(command, env=environ, stdout=subprocess.PIPE)
    assert hoarder.stdout is not None
    heard = b""
    with trio.fail_after(20):
        while not heard.endswith(b"2\n"):
            heard += await hoarder.stdout.receive_some()
    async with opened(source(shared, name)) as made:
        hoarder.kill()
        await hoarder.wait()
        await hoarder.stdout.aclose()
        assert values(await take(made, 2)) == [b"a", b"b"]


async def test_a_topic_that_is_not_there_is_told_and_read_when_it_is(shared: Broker) -> None:
    name = "made-later"
    properties = {"consumer_topic_metadata_refresh_interval_ms": "200"}
    async with opened(source(shared, name, **properties)) as made:
        with pytest.raises(TransportError, match="Unknown topic"):
            await take(made, 1)
        shared.make_topics(name)
        shared.put(name, b"a")
        found: list[Inbound] = []
        with trio.fail_after(20):
            while not found:
                try:
                    found = list(await made.receive(1))
                except TransportError:
                    await trio.sleep(0.1)
        assert values(found) == [b"a"]
