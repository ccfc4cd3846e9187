"""Answers over a real broker into a real admission: what is bad, comes twice, or changes hands in the middle."""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio

from tests.engine.asking import LIVE
from tests.engine.expected import Expected
from tests.engine.pipelines import batch
from tests.engine.world import S, World
from tests.kafka.broker import Broker
from tests.transports.broker_double import Taking
from tpfd.core.kinds import INTERACTION, LATE
from tpfd.core.records import FactType, InteractionStatus
from tpfd.transports.broker import Inbound
from tpfd.transports.broker_envelope import ENVELOPE_BYTES
from tpfd.transports.kafka_source import KafkaSource

Topics = Callable[[int], str]


@pytest.fixture
def expected(caplog: pytest.LogCaptureFixture) -> Iterator[Expected]:
    """Which errors the log may hold."""
    caplog.set_level(logging.INFO)
    announced = Expected(caplog)
    yield announced
    assert announced.surprises() == []


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    """Its time is the real one: a broker has no other."""
    made = World(nursery=nursery)
    made.load(LIVE)
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")


class Mute(KafkaSource):
    """Its commits never reach the broker, as if each were refused."""

    def done(self, inbound: Inbound) -> None:
        pass


def source(broker: Broker, topic: str, kind: type[KafkaSource] = KafkaSource) -> KafkaSource:
    return kind(settings=broker.settings(), topics=(topic,), group=f"g-{topic}")


async def asked(world: World, reader: Taking[KafkaSource], count: int) -> tuple[str, list[str]]:
    """An execution whose rows wait for answers: its id and theirs."""
    execution = (await reader.process.submit(batch(count))).execution_id

    async def all_out() -> bool:
        return len(world.observed.rows(INTERACTION)) == count

    await world.until(all_out, within_s=10)
    return execution, sorted(str(row.interaction_id) for row in world.observed.rows(INTERACTION))


def good(number: int) -> dict[str, object]:
    return {"number": number, "text": f"ok row-{number}"}


async def test_a28_bad_records_are_kept_and_passed_by(world: World, shared: Broker, topic: Topics) -> None:
    name = topic(1)
    reader = Taking(await world.start(), source(shared, name))
    world.nursery.start_soon(reader.run)
    execution, ids = await asked(world, reader, 2)
    nameless = json.dumps({"tenantId": "t1", "responsePayload": good(0)}).encode()
    shared.answer(name, ids[0], good(0))
    shared.put(name, b"\xff\xfe\x00", b"", nameless)
    shared.answer(name, ids[1], good(1))
    await world.until_status(execution, S.SUCCEEDED, within_s=20)
    await shared.until_committed(f"g-{name}", name, 5)
    kept = sorted(reader.grave.kept, key=lambda letter: letter.position)
    assert [base64.b64decode(letter.body_base64) for letter in kept] == [b"\xff\xfe\x00", b"", nameless]
    assert [letter.position for letter in kept] == [f"{name}[0]@{offset}" for offset in (1, 2, 3)]
    assert [letter.reason for letter in kept] == ["malformed", "malformed", "envelope_invalid"]
    assert {letter.transport for letter in kept} == {f"kafka:{name}"}
    assert reader.process.runtime.trouble == {}
    assert b'completion_dropped_total{reason="unreadable"} 3.0' in reader.process.runtime.metrics.exposition()


async def test_an_oversize_record_and_an_unknown_name_are_passed_by(
    world: World, shared: Broker, topic: Topics
) -> None:
    name = topic(1)
    reader = Taking(await world.start(max_payload_bytes=50_000), source(shared, name))
    world.nursery.start_soon(reader.run)
    execution, ids = await asked(world, reader, 1)
    shared.put(name, b"x" * (50_000 + ENVELOPE_BYTES + 1))
    shared.answer(name, "01GONE.s001.000000000", good(0))
    shared.answer(name, ids[0], good(0))
    await world.until_status(execution, S.SUCCEEDED, within_s=20)
    await shared.until_committed(f"g-{name}", name, 3)
    assert [letter.reason for letter in reader.grave.kept] == ["too_large"]
    assert [row.reason for row in world.observed.rows(LATE)] == ["orphan"]


async def test_a27_a_partition_that_goes_between_admission_and_commit_makes_no_twin(
    world: World, shared: Broker, topic: Topics
) -> None:
    """The first consumer has admitted an answer and may not say so any more; the second reads it again."""
    name = topic(1)
    first = Taking(await world.start("a"), source(shared, name, Mute))
    world.nursery.start_soon(first.run)
    execution, ids = await asked(world, first, 2)
    shared.answer(name, ids[0], good(0))

    async def admitted() -> bool:
        return (await world.interaction(ids[0])).status is InteractionStatus.COMPLETED

    await world.until(admitted, within_s=20)
    version = (await world.interaction(ids[0])).version
    await first.stop()
    second = Taking(await world.start("b"), source(shared, name))
    world.nursery.start_soon(second.run)
    await shared.until_committed(f"g-{name}", name, 1)
    assert (await world.interaction(ids[0])).version == version, "read again, and nothing changed"
    assert b'completion_dropped_total{reason="duplicate"} 1.0' in second.process.runtime.metrics.exposition()
    shared.answer(name, ids[1], good(1))
    await world.until_status(execution, S.SUCCEEDED, within_s=20)
    facts = Counter(fact.type for fact in await world.facts(execution))
    assert facts[FactType.RUN_SUCCEEDED] == 1
    assert (second.grave.kept, first.grave.kept) == ([], [])
    assert world.observed.rows(LATE) == []


async def test_while_the_store_is_away_the_offset_stays_and_the_group_is_kept(
    world: World, shared: Broker, topic: Topics, expected: Expected
) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed",
                   "attempt_failed")  # fmt: skip
    name = topic(1)
    reader = Taking(await world.start(), source(shared, name))
    world.nursery.start_soon(reader.run)
    shared.answer(name, "01GONE.s001.000000000", good(0))
    await shared.until_committed(f"g-{name}", name, 1)
    reader.process.gate.failing = "the store is away"
    shared.answer(name, "01GONE.s001.000000001", good(1))
    shared.answer(name, "01GONE.s001.000000002", good(2))
    with trio.fail_after(20):
        while f"admit_kafka:{name}" not in reader.process.runtime.trouble:
            await trio.sleep(0.05)
    await trio.sleep(3)  # longer than a member may be silent
    assert shared.committed(f"g-{name}", name) == 1
    reader.process.gate.failing = None
    await shared.until_committed(f"g-{name}", name, 3)
    assert len(world.observed.rows(LATE)) == 3
    assert expected.logged("kafka_partitions_revoked") == []
