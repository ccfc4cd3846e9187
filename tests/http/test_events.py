"""The fact feed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio

from tests.http.conftest import Edge, Start
from tests.http.double import fact, store_down
from tests.http.raw import Closed, Socket, websocket
from tpfd.http import events

FEED = "/pipeline/events"


async def facts(socket: Socket, count: int) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    while len(seen) < count:
        data = orjson.loads(await socket.receive())
        seen += data if isinstance(data, list) else [data]
    return seen


async def test_facts_come_as_they_happen(edge: Edge) -> None:
    edge.service.add_facts(fact(1), fact(2))
    async with websocket(edge, FEED) as socket:
        assert [item["seq"] for item in await facts(socket, 2)] == [1, 2]
        edge.service.add_facts(fact(5))
        (item,) = await facts(socket, 1)
        assert item == {
            "seq": 5,
            "type": "RunSubmitted",
            "atEpochMs": 1_700_000_000_005,
            "executionId": "E0001",
            "pipelineId": "orders",
            "key": "fact-5",
            "data": {"n": 5},
        }


async def test_the_feed_is_resumed_by_sequence(edge: Edge) -> None:
    edge.service.add_facts(*(fact(seq) for seq in range(1, 11)))
    async with websocket(edge, f"{FEED}?after=7") as socket:
        assert [item["seq"] for item in await facts(socket, 3)] == [8, 9, 10]


async def test_a_long_journal_comes_in_pages_without_a_gap(edge: Edge) -> None:
    edge.service.add_facts(*(fact(seq) for seq in range(1, 1001)))
    async with websocket(edge, FEED) as socket:
        assert [item["seq"] for item in await facts(socket, 1000)] == list(range(1, 1001))


async def test_filters_and_tenants_keep_others_facts_out(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FILTERED_PAUSE_S", 0.01)
    edge.service.add_facts(fact(1), fact(2, execution_id="E0002"), fact(3, "acme"), fact(4, execution_id="E0002"))
    async with websocket(edge, f"{FEED}?executionId=E0002&pipeline=orders") as socket:
        assert [item["seq"] for item in await facts(socket, 2)] == [2, 4]
    async with websocket(edge, FEED, "x-tenant-id: acme") as socket:
        assert [item["seq"] for item in await facts(socket, 1)] == [3]


async def test_others_facts_are_looked_at_once(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FILTERED_PAUSE_S", 0.0)
    edge.service.add_facts(*(fact(seq, "acme") for seq in range(1, 1001)))
    async with websocket(edge, f"{FEED}?executionId=E0009") as socket:
        edge.service.add_facts(fact(1001, "acme"), fact(1002, execution_id="E0009"))
        assert [item["seq"] for item in await facts(socket, 1)] == [1002]
    looked = [after for name, after in edge.service.calls if name == "feed"]
    assert looked[:5] == [0, 256, 512, 768, 1000]
    assert len(looked) < 10, "a look that finds nothing new waits for more"


async def test_a_feed_from_now_says_where_it_begins(edge: Edge) -> None:
    edge.service.add_facts(fact(1), fact(7))
    async with websocket(edge, f"{FEED}?after=now") as socket:
        assert orjson.loads(await socket.receive()) == {"type": "FeedStarted", "seq": 7}
        edge.service.add_facts(fact(8))
        assert [item["seq"] for item in await facts(socket, 1)] == [8]


async def test_a_feed_from_now_on_an_empty_journal_begins_before_the_first_fact(edge: Edge) -> None:
    async with websocket(edge, f"{FEED}?after=now") as socket:
        assert orjson.loads(await socket.receive()) == {"type": "FeedStarted", "seq": 0}
        edge.service.add_facts(fact(1))
        assert [item["seq"] for item in await facts(socket, 1)] == [1]


@pytest.mark.parametrize("after", ["-1", "x", "1.0"])
async def test_a_place_that_is_none_is_told(edge: Edge, after: str) -> None:
    async with websocket(edge, f"{FEED}?after={after}") as socket:
        error = orjson.loads(await socket.receive())
        assert (error["type"], error["code"]) == ("error", "bad_query")
        with pytest.raises(Closed) as closed:
            await socket.receive()
        assert closed.value.code == 1008


async def test_a_store_that_is_down_ends_the_feed_with_try_again(edge: Edge) -> None:
    edge.service.fail = store_down()
    async with websocket(edge, FEED) as socket:
        assert orjson.loads(await socket.receive())["code"] == "store_unavailable"
        with pytest.raises(Closed) as closed:
            await socket.receive()
        assert closed.value.code == 1013


async def test_a_client_that_does_not_read_is_dropped_and_held_no_more_than_a_page(start: Start) -> None:
    async with start(request_timeout_ms=300) as edge:
        edge.service.add_facts(*(fact(seq) for seq in range(1, 100_001)))
        async with websocket(edge, FEED):
            while b'tpf_http_websockets{route="/pipeline/events"} 0.0' not in edge.metrics.exposition():
                await trio.sleep(0.01)
            read = max(after for name, after in edge.service.calls if name == "feed")
            assert read < 100_000  # it was not read ahead of the client


async def test_what_a_client_says_is_ignored_and_its_leaving_noticed(edge: Edge) -> None:
    async with websocket(edge, FEED) as socket:
        await socket.send("hello?")
        edge.service.add_facts(fact(1))
        assert len(await facts(socket, 1)) == 1
    while b'tpf_http_websockets{route="/pipeline/events"} 0.0' not in edge.metrics.exposition():
        await trio.sleep(0.01)
