"""A crowd of completions over HTTP and WebSocket at two daemons on one SQLite file: each is told the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson
import trio
from attrs import frozen
from trio_websocket import WebSocketConnection

from tests.e2e.processes import Daemon, configure, serving
from tpfd.client.sockets import Address, converse

COUNT = 5_000
ODD = range(0, COUNT, 20)
"""Interactions that get another answer too."""
AT_ONCE = 32
"""Requests that one HTTP client has out."""
FRAME = 64
"""Completions that a WebSocket client sends together."""


@frozen
class Sent:
    """One completion."""

    number: int
    text: str


Told = list[tuple[Sent, str]]
"""What each completion was told: admitted, duplicate, or the code of its refusal."""
Name = Callable[[int], str]


def shares() -> list[list[Sent]]:
    """What each of the four clients sends: every answer goes twice, through two clients; some have a rival."""
    clients: list[list[Sent]] = [[], [], [], []]
    for number in range(COUNT):
        for client in (number, number + 1):
            clients[client % 4].append(Sent(number, "yes"))
    for number in ODD:
        clients[(number + 2) % 4].append(Sent(number, "no"))
    for place, share in enumerate(clients):
        Random(place).shuffle(share)
    return clients


def completion(sent: Sent, name: Name) -> dict[str, object]:
    return {"interactionId": name(sent.number), "responsePayload": {"number": sent.number, "text": sent.text}}


async def over_http(daemon: Daemon, share: list[Sent], name: Name, told: Told) -> None:
    left = iter(share)

    async def one_after_another(client: httpx.AsyncClient) -> None:
        for sent in left:
            answer = await client.post("/pipeline/interactions/complete", json=completion(sent, name))
            body = answer.json()
            if answer.status_code == 200:
                told.append((sent, "duplicate" if body["duplicate"] else "admitted"))
            else:
                assert answer.status_code == 409, body
                told.append((sent, body["code"]))

    async with (
        httpx.AsyncClient(base_url=daemon.url, trust_env=False, timeout=60) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(AT_ONCE):
            nursery.start_soon(one_after_another, client)


async def over_websocket(daemon: Daemon, share: list[Sent], name: Name, told: Told) -> None:
    numbers = {name(number): number for number in range(COUNT)}

    async def talk(socket: WebSocketConnection) -> None:
        await send(socket, {"type": "subscribe", "pipeline": "crowd", "stepIds": ["ask"], "credit": 1})
        # The answers name the interaction, not the payload: so one payload of an interaction is out at a time.
        for wave in waves(share):
            for first in range(0, len(wave), FRAME):
                page = wave[first : first + FRAME]
                await send(socket, [{"type": "complete", **completion(sent, name)} for sent in page])
                out = {sent.number: sent for sent in page}
                while out:
                    frame = orjson.loads(await socket.get_message())
                    for answer in frame if isinstance(frame, list) else [frame]:
                        sent = out.pop(numbers[answer["interactionId"]])
                        told.append((sent, verdict(answer)))

    await converse(Address(daemon.url, "/pipeline/interactions/stream"), talk)


def waves(share: list[Sent]) -> list[list[Sent]]:
    """The share in parts that name each interaction once."""
    parts: list[list[Sent]] = []
    seen: Counter[int] = Counter()
    for sent in share:
        if seen[sent.number] == len(parts):
            parts.append([])
        parts[seen[sent.number]].append(sent)
        seen[sent.number] += 1
    return parts


def verdict(answer: dict[str, Any]) -> str:
    if answer["type"] == "completed":
        return "duplicate" if answer["duplicate"] else "admitted"
    assert (answer["type"], answer["status"]) == ("rejected", 409), answer
    return str(answer["code"])


async def send(socket: WebSocketConnection, message: object) -> None:
    await socket.send_message(orjson.dumps(message).decode())


async def test_5000_interactions_four_clients_two_daemons(tmp_path: Path) -> None:
    configs = [configure(tmp_path, name, "crowd.yaml") for name in ("a", "b")]
    async with serving(tmp_path, configs[0]) as a, serving(tmp_path, configs[1]) as b:
        execution = await a.submit({"count": COUNT})
        await b.wait_status(execution, "WAITING_EXTERNAL")

        def name(number: int) -> str:
            return f"{execution}.s001.{number:09d}"

        told: Told = []
        clients: list[Callable[[Daemon, list[Sent], Name, Told], Awaitable[None]]]
        clients = [over_http, over_websocket, over_http, over_websocket]
        async with trio.open_nursery() as nursery:
            for client, daemon, share in zip(clients, (a, a, b, b), shares(), strict=True):
                nursery.start_soon(client, daemon, share, name, told)

        assert len(told) == 2 * COUNT + len(ODD)
        admitted = check(told)
        await b.wait_status(execution, "SUCCEEDED", within_s=120)
        answer = await a.client.get(f"/pipeline/executions/{execution}/result")
        assert [(line["number"], line["text"]) for line in answer.json()] == sorted(admitted.items())
        assert await kept(b, execution) == {
            (name(number), "no" if admitted[number] == "yes" else "yes") for number in ODD
        }
        for daemon in (a, b):
            assert await daemon.stop() == 0
            assert daemon.complained() == []


def check(told: Told) -> dict[int, str]:
    """One admitted answer for each, every repeat of it a duplicate, every other one refused; what was admitted."""
    by_number: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for sent, outcome in told:
        by_number[sent.number].append((sent.text, outcome))
    admitted: dict[int, str] = {}
    for number, outcomes in by_number.items():
        (admitted[number],) = (text for text, outcome in outcomes if outcome == "admitted")
        same = Counter(outcome for text, outcome in outcomes if text == admitted[number])
        others = {outcome for text, outcome in outcomes if text != admitted[number]}
        assert same["admitted"] == 1
        assert set(same) <= {"admitted", "duplicate"}
        assert others <= {"conflicting_completion"}
    assert len(admitted) == COUNT
    return admitted


async def kept(daemon: Daemon, execution: str) -> set[tuple[str, str]]:
    """The refused answers that can be read, each once."""
    found: list[tuple[str, str]] = []
    url: str | None = f"/pipeline/executions/{execution}/late"
    while url is not None:
        answer = await daemon.client.get(url)
        assert {one["reason"] for one in answer.json()} == {"conflicting"}
        found += [(one["interactionId"], one["responsePayload"]["text"]) for one in answer.json()]
        url = answer.links.get("next", {}).get("url")
    assert len(found) == len(set(found))
    return set(found)
