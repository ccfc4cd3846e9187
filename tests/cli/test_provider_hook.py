"""The provider as a web service: what it takes, what it refuses, and how its answers find their way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from attrs import define, field

from tests.cli.provider_double import request_message
from tests.transports.endpoint import Answer, Endpoint, Heard, always, listening, response
from tpfd.cli.main import run
from tpfd.core import signing
from tpfd.errors import OutsideError
from tpfd.examples.provider.decision import Manners
from tpfd.examples.provider.hook import Service, WebhookProvider, unsigned
from tpfd.examples.provider.log import open_log
from tpfd.http.messages import Request

SECRET = b"a secret of the provider's tests"
STEP = request_message(1)["stepId"]
PATH = "/payments?a=b"
DUPLICATE = always(200, b'{"duplicate":true}')


@define
class Shop:
    """A running provider and a client for it."""

    provider: WebhookProvider
    client: httpx.AsyncClient
    said: list[str] = field(factory=list)

    async def post(self, envelope: Any, **headers: str) -> httpx.Response:
        body = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
        return await self.client.post(PATH, content=body, headers={**signed(body), **headers})


def signed(body: bytes, at_s: float | None = None, secret: bytes = SECRET) -> dict[str, str]:
    """The headers of a request with this body."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if at_s is None else at_s))
    made = signing.signature(secret, method="POST", path=PATH, timestamp=stamp, nonce="n1", body=body)
    return {
        "content-type": "application/json",
        "x-tpf-webhook-timestamp": stamp,
        "x-tpf-webhook-nonce": "n1",
        "x-tpf-webhook-signature": made,
    }


def asking(number: int, callback: Endpoint | None = None, **changes: Any) -> dict[str, Any]:
    """An envelope."""
    url = "http://127.0.0.1:1/complete" if callback is None else f"http://127.0.0.1:{callback.port}/complete"
    return {**request_message(number), "callback": {"completionUrl": url}, **changes}


@asynccontextmanager
async def open_shop(
    manners: Manners | None = None, log: Path | None = None, places: int = 10, secret: bytes | None = SECRET
) -> AsyncIterator[Shop]:
    service = Service(host="127.0.0.1", port=0, step=STEP, secret=secret, places=places)
    said: list[str] = []
    async with trio.open_nursery() as nursery, open_books(log) as books:
        listens = trio.Event()

        def say(text: str) -> None:
            said.append(text)
            listens.set()

        provider = WebhookProvider(service, manners or Manners(), books, random.Random(1), say)
        nursery.start_soon(provider.run)
        await listens.wait()
        url = said[0].split()[2].rstrip(",")
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            yield Shop(provider, client, said)
        nursery.cancel_scope.cancel("the test is over")


@asynccontextmanager
async def open_books(log: Path | None) -> AsyncIterator[Any]:
    if log is None:
        yield None
        return
    async with open_log(log) as books:
        yield books


async def until_heard(callback: Endpoint, count: int) -> list[Any]:
    with trio.fail_after(20):
        while len(callback.heard) < count:
            await trio.sleep(0.01)
    return [heard.json() for heard in callback.heard]


async def test_a_request_is_taken_at_once_and_answered_at_its_callback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with listening(always(200, b"{}")) as callback, open_shop(log=log) as shop:
        taken = await shop.post(asking(7, callback, resumeToken="the token"))
        assert (taken.status_code, taken.json()) == (202, {"interactionId": request_message(7)["interactionId"]})
        (answer,) = await until_heard(callback, 1)
    assert callback.heard[0].target == "/complete"
    assert answer["interactionId"] == request_message(7)["interactionId"]
    assert answer["resumeToken"] == "the token"
    assert answer["responsePayload"]["approved"]["status"] == "approved"
    (line,) = log.read_text("utf-8").splitlines()
    assert json.loads(line)["outcome"] == "approved"


@pytest.mark.parametrize(
    ("envelope", "headers", "status"),
    [
        (b"{broken", {}, 400),
        (b"[]", {}, 422),
        (asking(1, stepId="another"), {}, 422),
        (asking(1, inputType="Order"), {}, 422),
        ({**asking(1), "callback": None}, {}, 422),
        ({**asking(1), "callback": {"completionUrl": 5}}, {}, 422),
        (asking(1), {"content-type": "text/plain"}, 415),
        (asking(1), {"x-tpf-webhook-signature": "0" * 64}, 401),
        (asking(1), {"x-tpf-webhook-nonce": "n2"}, 401),
        (asking(1), {"x-tpf-webhook-timestamp": "yesterday"}, 401),
    ],
)
async def test_what_is_no_good_request_is_refused_and_noted_nowhere(
    envelope: Any, headers: dict[str, str], status: int
) -> None:
    async with open_shop() as shop:
        refused = await shop.post(envelope, **headers)
        assert refused.status_code == status, refused.text
        assert refused.headers["content-type"] == "application/problem+json"
        assert (await shop.client.get(PATH)).status_code == 405
        assert shop.provider.tally.asked_count == 0


def test_a_signature_counts_for_two_minutes_and_only_for_what_was_signed() -> None:
    def request(headers: dict[str, str], path: str = "/payments") -> Request:
        async def read() -> bytes:
            return b""

        return Request("POST", path, "a=b", headers, "client", read)

    now_s = 1_800_000_000
    headers = signed(b"{}", now_s)
    assert unsigned(request(headers), b"{}", SECRET, now_s * 1000) is None
    assert unsigned(request(headers), b"{}", SECRET, now_s * 1000 + 120_000) is None
    assert unsigned(request(headers), b"{}", SECRET, now_s * 1000 + 120_001) is not None
    assert unsigned(request(headers), b"{}", SECRET, now_s * 1000 - 120_001) is not None
    assert unsigned(request(headers), b"{ }", SECRET, now_s * 1000) is not None
    assert unsigned(request(headers), b"{}", b"another secret of the tests", now_s * 1000) is not None
    assert unsigned(request(headers, "/other"), b"{}", SECRET, now_s * 1000) is not None
    assert unsigned(request({}), b"{}", SECRET, now_s * 1000) is not None
    without_zone = {**headers, "x-tpf-webhook-timestamp": headers["x-tpf-webhook-timestamp"].removesuffix("Z")}
    assert unsigned(request(without_zone), b"{}", SECRET, now_s * 1000) is not None


async def test_without_a_secret_unsigned_requests_are_taken() -> None:
    async with listening(always(200, b"{}")) as callback, open_shop(secret=None) as shop:
        body = json.dumps(asking(1, callback)).encode()
        taken = await shop.client.post(PATH, content=body, headers={"content-type": "application/json"})
        assert taken.status_code == 202
        await until_heard(callback, 1)


async def test_a_full_desk_says_when_to_come_again() -> None:
    async with open_shop(Manners(latency_s=60), places=1) as shop:
        assert (await shop.post(asking(1))).status_code == 202
        full = await shop.post(asking(2))
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("manners", "heard_count", "answer"),
    [(Manners(duplicate_probability=1.0), 2, DUPLICATE), (Manners(drop_probability=1.0), 0, DUPLICATE)],
)
async def test_answers_are_doubled_and_dropped_as_told(
    tmp_path: Path, manners: Manners, heard_count: int, answer: Answer
) -> None:
    log = tmp_path / "log"
    async with listening(answer) as callback, open_shop(manners, log) as shop:
        assert (await shop.post(asking(1, callback))).status_code == 202
        shop.provider.stopping.set()
        with trio.fail_after(20):
            while log.read_text("utf-8").count("\n") < 1 or len(callback.heard) < heard_count:
                await trio.sleep(0.01)
        assert shop.provider.tally.duplicate_count == heard_count
    assert len(callback.heard) == heard_count
    assert log.read_text("utf-8").count("\n") == 1


async def test_an_answer_that_the_daemon_cannot_take_now_is_sent_again_and_noted_once(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def answer(_heard: Heard, _stream: trio.abc.Stream) -> bytes | None:
        return {1: response(503), 2: None}.get(len(callback.heard), response(200, b"{}"))

    async with listening(answer) as callback, open_shop(log=log) as shop:
        assert (await shop.post(asking(1, callback))).status_code == 202
        answers = await until_heard(callback, 3)
        assert answers[0] == answers[1] == answers[2]
        assert shop.provider.tally.repeated_count == 2
        assert "an answer will be repeated: status 503" in shop.said
    assert log.read_text("utf-8").count("\n") == 1


async def test_an_answer_that_is_refused_is_not_sent_again() -> None:
    async with listening(always(409, b"late")) as callback, open_shop() as shop:
        for number in (1, 2):
            await shop.post(asking(number, callback))
        await until_heard(callback, 2)
        shop.provider.stopping.set()
        with trio.fail_after(20):
            while shop.provider.tally.refused_count < 2:
                await trio.sleep(0.01)
        assert [text for text in shop.said if "refused" in text] == ["an answer was refused: status 409: late"]


async def test_told_to_stop_it_takes_nothing_more() -> None:
    async with open_shop(Manners(latency_s=60)) as shop:
        assert (await shop.post(asking(1))).status_code == 202
        shop.provider.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await shop.post(asking(2))).status_code == 429


async def test_an_address_that_is_taken_is_said() -> None:
    async with listening(always(200)) as other:
        provider = WebhookProvider(
            Service(host="127.0.0.1", port=other.port, step=STEP), Manners(), None, random.Random(1), print
        )
        with pytest.raises(OutsideError, match="cannot listen on 127"):
            await provider.run()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "127.0.0.1"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "is not HOST:PORT"),
        (["--listen", ":80"], "is not HOST:PORT"),
        (["--secret-file", "x"], "it needs --listen"),
        (["--listen", "127.0.0.1:0", "--url", "http://127.0.0.1:1"], "leave out --url"),
        (["--listen", "127.0.0.1:0", "--secret-file", "/nowhere"], "cannot be read"),
    ],
)
def test_the_command_refuses_what_cannot_be_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["provider", "--step", "s", *arguments]) == 2
    assert said in capsys.readouterr().err
