"""The stream for providers, over real WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from tests.http.conftest import Edge, Start
from tests.http.double import DoubleSocket, interaction, store_down
from tests.http.raw import Closed, Rejected, Socket, until, websocket
from tpfd.core.records import InteractionStatus
from tpfd.http import websocket as module
from tpfd.http.auth import API_ROLES, parse_tokens

SUBSCRIBE = {"type": "subscribe", "tenantId": "default", "pipeline": "orders", "stepIds": ["pay"], "credit": 3}
YES = {"accepted": True}


STREAM = "/pipeline/interactions/stream"


def opened(edge: Edge, *headers: str) -> AbstractAsyncContextManager[Socket]:
    return websocket(edge, STREAM, *headers)


class Provider:
    """A provider that takes messages one by one, whatever frames they came in."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.frames: list[int] = []
        self._messages: list[dict[str, Any]] = []

    async def say(self, *messages: object) -> None:
        await self.socket.send(orjson.dumps(messages[0] if len(messages) == 1 else messages).decode())

    async def hear(self) -> dict[str, Any]:
        while not self._messages:
            data = orjson.loads(await self.socket.receive())
            self._messages += data if isinstance(data, list) else [data]
            self.frames.append(len(data) if isinstance(data, list) else 1)
        return self._messages.pop(0)

    async def close_code(self) -> int:
        """Waits for the close; messages before it are kept."""
        while True:
            try:
                data = orjson.loads(await self.socket.receive())
            except Closed as closed:
                return closed.code or 0
            self._messages += data if isinstance(data, list) else [data]

    @property
    def last_words(self) -> dict[str, Any]:
        return self._messages[-1]


@asynccontextmanager
async def attached(edge: Edge, **changes: object) -> AsyncIterator[tuple[Provider, DoubleSocket]]:
    async with opened(edge) as socket:
        provider = Provider(socket)
        await provider.say({**SUBSCRIBE, **changes})
        yield provider, await edge.service.attached()


def complete(number: int, payload: object = YES) -> dict[str, object]:
    return {"type": "complete", "interactionId": f"I{number:04d}", "responsePayload": payload}


async def test_requests_go_out_within_the_credit_and_answers_come_back(edge: Edge) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    async with attached(edge) as (provider, socket):
        assert edge.service.calls == [("attach", ("default", "orders", ("pay",), 3))]
        socket.push(*({"interactionId": f"I{number:04d}"} for number in range(1, 6)))
        for number in (1, 2, 3):
            assert await provider.hear() == {"type": "request", "interactionId": f"I{number:04d}"}
        assert len(socket.waiting) == 2
        await provider.say(complete(1))
        answer = await provider.hear()
        assert answer == {
            "type": "completed",
            "interactionId": "I0001",
            "executionId": "E0001",
            "duplicate": False,
        }
        assert (await provider.hear())["interactionId"] == "I0004"  # the answer made room
        await provider.say({"type": "credit", "credit": 50})
        assert (await provider.hear())["interactionId"] == "I0005"
        assert socket.credit == 49
    await socket.detached.wait()


async def test_what_is_ready_together_travels_together(edge: Edge) -> None:
    async with attached(edge, credit=1000) as (provider, socket):
        socket.push(*({"interactionId": str(number)} for number in range(600)))
        for number in range(600):
            assert (await provider.hear())["interactionId"] == str(number)
        assert provider.frames == [256, 256, 88]


async def test_an_array_of_completions_is_admitted_side_by_side_but_not_without_bound(edge: Edge) -> None:
    for number in range(300):
        edge.service.interactions["default", f"I{number:04d}"] = interaction(number)
    edge.service.hold = trio.Event()
    async with attached(edge) as (provider, _):
        await provider.say(*(complete(number) for number in range(300)))
        await until(lambda: edge.service.completing_at_once == 64)
        await trio.testing.wait_all_tasks_blocked()
        edge.service.hold.set()
        answered = {(await provider.hear())["interactionId"] for _ in range(300)}
        assert len(answered) == 300
        assert edge.service.most_at_once == 64


async def test_refusals_say_which_and_why_and_free_what_is_over(edge: Edge) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    edge.service.interactions["default", "I0002"] = interaction(2, status=InteractionStatus.TIMED_OUT)
    async with attached(edge) as (provider, socket):
        await provider.say(complete(1, {}))
        unfit = await provider.hear()
        assert (unfit["type"], unfit["interactionId"], unfit["code"]) == ("rejected", "I0001", "payload_invalid")
        assert unfit["errors"] == [{"path": "$.responsePayload.accepted", "message": "is required"}]
        assert unfit["status"] == 422
        assert socket.freed == []  # it still waits for an answer that fits
        await provider.say(complete(2), complete(9))
        late, unknown = await provider.hear(), await provider.hear()
        assert (late["code"], unknown["code"]) == ("timed_out", "not_found")
        assert socket.freed == ["I0002", "I0009"]
        edge.service.fail = store_down()
        await provider.say(complete(1))
        busy = await provider.hear()
        assert (busy["code"], busy["status"]) == ("store_unavailable", 503)
        assert socket.freed == ["I0002", "I0009"]
        edge.service.fail = None
        await provider.say(complete(1))
        assert (await provider.hear())["type"] == "completed"
        assert socket.freed[-1] == "I0001"


async def test_messages_that_make_no_sense_are_answered_and_the_socket_goes_on(edge: Edge) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    async with attached(edge) as (provider, _):
        await provider.say(
            {"type": "complete", "correlationId": "c"},
            {"type": "complete", "responsePayload": 1},
            {"type": "complete", "interactionId": 1, "responsePayload": 1},
            {"type": "complete", "tenantId": "other", "interactionId": "I0001", "responsePayload": YES},
            {"type": "credit", "credit": 0},
            {"type": "credit"},
            SUBSCRIBE,
            {"type": "nonsense"},
            {},
            17,
            complete(1),
        )
        answers = [await provider.hear() for _ in range(11)]
        assert [(answer["type"], answer.get("code")) for answer in answers] == [
            ("rejected", "body_invalid"),
            ("rejected", "body_invalid"),
            ("rejected", "body_invalid"),
            ("rejected", "not_found"),
            ("error", "payload_invalid"),
            ("error", "payload_invalid"),
            ("error", "already_subscribed"),
            ("error", "unknown_message"),
            ("error", "unknown_message"),
            ("error", "unknown_message"),
            ("completed", None),
        ]
        assert answers[0]["correlationId"] == "c"


@pytest.mark.parametrize(
    ("frame", "close_code", "error_code"),
    [
        ("{not json", 1007, "malformed"),
        ('{"type":"credit","type":"credit"}', 1007, "malformed"),
        (b"\x00\x01", 1003, "binary_message"),
        ('"' + "x" * 2000 + '"', 1009, "message_too_big"),
    ],
)
async def test_a_frame_that_cannot_be_read_ends_this_socket_only(
    start: Start, frame: str | bytes, close_code: int, error_code: str
) -> None:
    async with start(max_body_bytes=1000) as edge:
        edge.service.interactions["default", "I0001"] = interaction(1)
        async with attached(edge) as (healthy, _), attached(edge) as (provider, _):
            await provider.socket.send(frame)
            assert await provider.close_code() == close_code
            assert provider.last_words["type"] == "error"
            assert provider.last_words["code"] == error_code
            await healthy.say(complete(1))
            assert (await healthy.hear())["type"] == "completed"


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "complete"}, "not_subscribed"),
        ([], "no_subscription"),
        ([17], "not_subscribed"),
        ({"type": "subscribe", "stepIds": []}, "body_invalid"),
        ({"type": "subscribe", "stepIds": ["pay", " "]}, "body_invalid"),
        ({"type": "subscribe", "stepIds": ["pay"], "credit": 10_001}, "body_invalid"),
        ({"type": "subscribe", "stepIds": ["no-such-step"]}, "not_found"),
        ({"type": "subscribe", "stepIds": ["pay"], "tenantId": "a/b"}, "tenant_invalid"),
    ],
)
async def test_a_subscription_that_cannot_be_had_is_told_why(edge: Edge, first: object, code: str) -> None:
    async with opened(edge) as socket:
        provider = Provider(socket)
        await provider.say(first)
        assert await provider.close_code() == 1008
        assert provider.last_words["code"] == code


async def test_who_does_not_subscribe_in_time_is_closed(start: Start) -> None:
    async with start(header_timeout_ms=100) as edge, opened(edge) as socket:
        provider = Provider(socket)
        assert await provider.close_code() == 1008
        assert provider.last_words["code"] == "no_subscription"


async def test_messages_behind_the_subscription_in_one_frame_count(edge: Edge) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    async with opened(edge) as socket:
        provider = Provider(socket)
        await provider.say(SUBSCRIBE, complete(1))
        assert (await provider.hear())["type"] == "completed"


async def test_what_was_sent_before_leaving_is_admitted(edge: Edge) -> None:
    for number in range(400):
        edge.service.interactions["default", f"I{number:04d}"] = interaction(number)
    edge.service.hold = trio.Event()
    async with attached(edge) as (provider, socket):
        await provider.say(*(complete(number) for number in range(400)))
        await until(lambda: edge.service.completing_at_once == 64)  # and the reader waits for room
    edge.service.hold.set()
    await socket.detached.wait()
    done = [record for record in edge.service.interactions.values() if record.status is InteractionStatus.COMPLETED]
    assert len(done) == 400


async def test_a_provider_that_does_not_read_is_dropped(start: Start) -> None:
    async with start(request_timeout_ms=300) as edge, opened(edge) as client:
        await client.send(orjson.dumps({**SUBSCRIBE, "credit": 10_000}).decode())
        socket = await edge.service.attached()
        socket.push(*({"requestPayload": "x" * 10_000} for _ in range(5_000)))
        with trio.fail_after(module.PING_AFTER_S / 2):  # the next ping would find out too
            await socket.detached.wait()


async def test_requests_that_cannot_be_had_end_the_socket_with_try_again(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_socket: DoubleSocket) -> list[bytes]:
        raise store_down()

    monkeypatch.setattr(DoubleSocket, "next_requests", fail)
    async with attached(edge) as (provider, _):
        assert await provider.close_code() == 1013
        assert provider.last_words["code"] == "store_unavailable"


async def test_a_fault_of_ours_ends_one_socket_with_1011(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_socket: DoubleSocket, _count: int) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(DoubleSocket, "add_credit", fail)
    async with attached(edge) as (provider, _):
        await provider.say({"type": "credit", "credit": 1})
        assert await provider.close_code() == 1011
        assert provider.last_words["code"] == "internal"
        assert "secret" not in str(provider.last_words)
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()
    async with attached(edge):
        pass


async def test_the_handshake_asks_for_the_role_and_the_tenant_of_the_token(start: Start) -> None:
    tokens = parse_tokens(
        "submitter-0123456789 submit\nprovider-0123456789 complete acme", origin="t", usual_roles=API_ROLES
    )
    async with start(tokens=tokens) as edge:
        for token, status in (("nobody", 401), ("submitter-0123456789", 403)):
            with pytest.raises(Rejected) as rejected:
                async with opened(edge, f"Authorization: Bearer {token}"):
                    pass
            assert rejected.value.answer.status == status
            assert orjson.loads(rejected.value.answer.body)["status"] == status
        async with opened(edge, "Authorization: Bearer provider-0123456789") as socket:
            provider = Provider(socket)
            await provider.say({**SUBSCRIBE, "tenantId": "other"})
            assert await provider.close_code() == 1008
            assert provider.last_words["code"] == "tenant_forbidden"
        async with opened(edge, "Authorization: Bearer provider-0123456789") as socket:
            await Provider(socket).say({"type": "subscribe", "stepIds": ["pay"]})
            await edge.service.attached()
            assert edge.service.calls == [("attach", ("acme", None, ("pay",), 100))]


async def test_one_client_has_so_many_sockets_and_no_more(start: Start) -> None:
    async with start(max_sockets_per_client=2) as edge:
        async with opened(edge), opened(edge):
            with pytest.raises(Rejected) as rejected:
                async with opened(edge):
                    pass
            assert rejected.value.answer.status == 429
        gone = f'tpf_http_websockets{{route="{STREAM}"}} 0.0'.encode()
        await until(lambda: gone in edge.metrics.exposition())
        async with opened(edge):
            pass
