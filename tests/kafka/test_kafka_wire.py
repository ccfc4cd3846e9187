"""Producing to a real broker: confirmed means that it is there."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio

from tests.kafka.broker import Broker, free_port, running
from tpfd.blocking import Threads
from tpfd.errors import ConfigError
from tpfd.transports import kafka_wire
from tpfd.transports.broker import Confirmed, Postponed, Unsendable
from tpfd.transports.kafka_settings import KafkaSettings
from tpfd.transports.kafka_wire import KafkaMessage, KafkaProducer

Topics = Callable[[int], str]


def producer(broker: Broker, **properties: str) -> KafkaProducer:
    return KafkaProducer(broker.settings(**properties), Threads(1))


def message(topic: str, value: bytes, key: bytes = b"k") -> KafkaMessage:
    return KafkaMessage(topic, key, value, [("x-tpf-tenant-id", b"t1")])


async def test_what_is_confirmed_is_there_in_order(either: Broker) -> None:
    name = either.topic(1)
    values = [json.dumps(number).encode() for number in range(300)]
    outcomes = await producer(either).send([message(name, value) for value in values])
    assert outcomes == [Confirmed()] * 300
    found = either.read(name, 300)
    assert [one.value() for one in found] == values
    assert found[0].headers() == [("x-tpf-tenant-id", b"t1")]
    assert found[0].key() == b"k"


async def test_one_that_is_too_large_is_unsendable_and_holds_up_no_other(either: Broker) -> None:
    name = either.topic(1)
    outcomes = await producer(either).send([message(name, b"a"), message(name, b"x" * 2_000_000), message(name, b"b")])
    assert [type(one) for one in outcomes] == [Confirmed, Unsendable, Confirmed]
    assert "MSG_SIZE_TOO_LARGE" in str(outcomes[1])
    assert [one.value() for one in either.read(name, 2)] == [b"a", b"b"]


async def test_a_full_local_queue_slows_the_sender_and_loses_nothing(either: Broker) -> None:
    name = either.topic(1)
    narrow = producer(either, queue_buffering_max_messages="3")
    outcomes = await narrow.send([message(name, b"%d" % number) for number in range(50)])
    assert outcomes == [Confirmed()] * 50
    assert len(either.read(name, 50)) == 50


async def test_without_a_broker_all_are_postponed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KafkaSettings(
        bootstrap=f"127.0.0.1:{free_port()}", client_id="test", properties={"message.timeout.ms": "300"}
    )
    outcomes = await KafkaProducer(settings, Threads(1)).send([message("t", b"a"), message("t", b"b")])
    assert [type(one) for one in outcomes] == [Postponed, Postponed]
    assert "_MSG_TIMED_OUT" in str(outcomes[0])


async def test_a_batch_that_is_cancelled_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_wire, "CANCELLED_S", 0.1)
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{free_port()}", client_id="test")
    made = KafkaProducer(settings, Threads(1))
    with trio.fail_after(5), trio.move_on_after(0.2) as scope:
        await made.send([message("t", b"a")])
    assert scope.cancelled_caught


async def test_a_cancelled_batch_that_is_reported_is_not_forgotten(shared: Broker, topic: Topics) -> None:
    name = topic(1)
    made = producer(shared, linger_ms="500")
    with trio.move_on_after(0.1):
        outcomes = await made.send([message(name, b"a")])
    assert outcomes == [Confirmed()]


async def test_requests_wait_for_a_broker_that_comes_back() -> None:
    with running() as broker:
        broker.make_topics("t")
        made = producer(broker)
        assert await made.send([message("t", b"a")]) == [Confirmed()]
        broker.kill()
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                outcomes.extend(await made.send([message("t", b"b")]))

            nursery.start_soon(send)
            await trio.sleep(0.5)
            broker.start()
            broker.make_topics("t")
        assert outcomes == [Confirmed()]


def test_settings_that_the_library_does_not_know_are_refused() -> None:
    settings = KafkaSettings(bootstrap="localhost:1", client_id="test", properties={"no.such.thing": "1"})
    with pytest.raises(ConfigError, match=r"no\.such\.thing"):
        KafkaProducer(settings, Threads(1))


@pytest.mark.parametrize("name", ["group.id", "consumer.group.id", "enable.auto.commit", "producer.client.id"])
def test_settings_that_are_ours_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="set by tpfd itself"):
        KafkaSettings(bootstrap="localhost:1", client_id="test", properties={name: "x"})


def test_each_side_gets_its_own_settings() -> None:
    properties = {"producer.linger.ms": "1", "consumer.fetch.min.bytes": "2", "security.protocol": "ssl"}
    settings = KafkaSettings(bootstrap="localhost:1", client_id="test", properties=properties)
    assert settings.of("producer") == {"linger.ms": "1", "security.protocol": "ssl"}
    assert settings.of("consumer") == {"fetch.min.bytes": "2", "security.protocol": "ssl"}
