"""Webhooks between real processes: the provider is called, answers later, and nothing is paid twice or lost."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.processes import (
    Daemon,
    Process,
    configure,
    running,
    serving,
    wait_for_file,
    wait_until,
    write_payments,
)
from tpfd.cli.demo.children import free_ports

STEP = "await-payment-provider"
TARGET_PATH = "$.steps[1].await.transport.request.url"


class Shop:
    """A folder with a daemon's configuration, a secret, and the ports of both sides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = folder / "csv"
        self.inbox.mkdir()
        self.port, self.provider_port = free_ports(2)
        self.books = folder / "provider.jsonl"
        self.secret("k1")

    def secret(self, kid: str) -> Path:
        path = self.folder / f"{kid}.secret"
        if not path.exists():
            path.touch(0o600)
            path.write_text(f"a secret of the webhook tests, {kid}")
        return path

    def configure(self, *kids: str, allow: list[str] | None = None, **sections: Any) -> Path:
        secrets = [{"file": str(self.secret(kid)), "kid": kid} for kid in kids or ("k1",)]
        listed = [f"127.0.0.1:{self.provider_port}"] if allow is None else allow
        waits = {"resume-token-secrets": secrets, "webhook": {"allow": listed, "timeout": "PT2S"}}
        return configure(self.folder, "shop", "example:csv-payments", **{"await": waits}, **sections)

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "CSV_FOLDER_PATH": str(self.inbox),
            "CSV_PAYMENT_TRANSPORT": "webhook",
            "CSV_PAYMENT_URL": f"http://127.0.0.1:{self.provider_port}/payments",
            "CSV_PAYMENT_CALLBACK": f"http://127.0.0.1:{self.port}",
        }

    @asynccontextmanager
    async def daemon(self, config: Path) -> AsyncIterator[Daemon]:
        async with serving(self.folder, config, bind=f"127.0.0.1:{self.port}", **self.environ) as daemon:
            yield daemon

    @asynccontextmanager
    async def provider(self, kid: str = "k1", *options: str, name: str = "provider") -> AsyncIterator[Process]:
        arguments = ["provider", "--listen", f"127.0.0.1:{self.provider_port}", "--secret-file", str(self.secret(kid))]
        arguments += ["--step", STEP, "--credit", "1000", "--log", str(self.books), *options]
        async with running(name, arguments, self.folder) as process:

            async def listens() -> bool:
                process.alive()
                return "listening on" in process.text()

            await wait_until("the provider to listen", listens)
            yield process

    def asked(self) -> Counter[str]:
        if not self.books.exists():
            return Counter()
        return Counter(json.loads(line)["interactionId"] for line in self.books.read_text("utf-8").splitlines())

    async def paid(self, name: str, row_count: int) -> None:
        """Waits for an output and checks every row of it."""
        output = self.inbox / f"{name}.out"
        await wait_for_file(output)
        with output.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["csvId"] for row in rows] == [str(number) for number in range(1, row_count + 1)]
        for row in rows:
            number = int(row["csvId"])
            assert row["amount"] == f"{number * 37 % 9000 + 1}.{number * 7 % 100:02d}"
            assert row["recipient"] == f"Recipient {number}"
            assert row["status"] in {"approved", "unapproved"}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def test_a_provider_that_is_slow_doubles_answers_and_has_few_places_pays_every_row_once(shop: Shop) -> None:
    manners = ("--latency", "50ms", "--duplicate-probability", "0.3", "--reject-probability", "0.2")
    async with shop.daemon(shop.configure()) as daemon, shop.provider("k1", *manners):
        write_payments(shop.inbox / "a.csv", 120)
        await shop.paid("a.csv", 120)
        assert await daemon.stop() == 0
        assert daemon.complained() == []
    assert set(shop.asked().values()) == {1}
    assert len(shop.asked()) == 120


async def test_a_daemon_that_is_killed_and_comes_back_sends_what_it_had_in_hand_again(shop: Shop) -> None:
    config = shop.configure()
    async with shop.provider("k1", "--latency", "300ms"):
        async with shop.daemon(config) as daemon:
            write_payments(shop.inbox / "a.csv", 80)

            async def some_asked() -> bool:
                return len(shop.asked()) >= 20

            await wait_until("some rows to be asked", some_asked)
            await daemon.kill()
        async with shop.daemon(config):
            await shop.paid("a.csv", 80)
    assert len(shop.asked()) == 80
    assert max(shop.asked().values()) <= 3


async def test_a_provider_that_comes_late_is_asked_when_it_is_there(shop: Shop) -> None:
    async with shop.daemon(shop.configure()) as daemon:
        write_payments(shop.inbox / "a.csv", 10)

        async def complains() -> bool:
            return bool(daemon.events("webhook_not_taken"))

        await wait_until("the daemon to find nobody there", complains)
        assert "cannot connect to 127.0.0.1" in daemon.events("webhook_not_taken")[0]["message"]
        async with shop.provider():
            await shop.paid("a.csv", 10)


async def test_what_is_signed_with_another_secret_is_refused_and_fails_the_execution(shop: Shop) -> None:
    async with shop.daemon(shop.configure("k1")) as daemon, shop.provider("k2"):
        write_payments(shop.inbox / "a.csv", 5)

        async def failed() -> list[dict[str, Any]]:
            return [one for one in await daemon.executions() if one["status"] == "FAILED"]

        (one,) = await wait_until("the execution to fail", failed)
        view = await daemon.status(one["executionId"])
        assert view["errorMessage"].startswith(f"127.0.0.1:{shop.provider_port} answered 401: it refuses this request")
        assert shop.asked() == Counter()


async def test_a30_secrets_are_rotated_without_a_restart_and_without_losing_an_answer(shop: Shop) -> None:
    async with shop.daemon(shop.configure("k1")) as daemon:
        async with shop.provider("k1", "--latency", "3s", name="old") as provider:
            write_payments(shop.inbox / "a.csv", 10)

            async def all_sent() -> bool:
                rows = (await daemon.client.get("/pipeline/interactions/pending", params={"limit": 50})).json()
                return len(rows) == 10 and all(row["status"] == "DISPATCHED" for row in rows)

            await wait_until("all rows to be sent", all_sent)
            shop.configure("k2", "k1")
            await _reload(daemon, "reloaded")
            assert "await.resume-token-secrets" in daemon.events("reloaded")[0]["taken"]
            await shop.paid("a.csv", 10)  # answered with tokens of the old secret
            assert await provider.stop() == 0
        async with shop.provider("k2", name="new"):
            write_payments(shop.inbox / "b.csv", 10)
            await shop.paid("b.csv", 10)
        assert daemon.complained() == []


async def test_a_reload_that_takes_a_host_off_the_list_that_is_called_is_refused(shop: Shop) -> None:
    async with shop.daemon(shop.configure()) as daemon, shop.provider():
        shop.configure(allow=["pay.example.org"])
        await _reload(daemon, "reload_refused")
        assert "is not on the allow-list" in daemon.events("reload_refused")[0]["message"]
        write_payments(shop.inbox / "a.csv", 3)
        await shop.paid("a.csv", 3)


async def _reload(daemon: Daemon, event: str) -> None:
    daemon.send(signal.SIGHUP)

    async def heard() -> bool:
        return bool(daemon.events(event))

    await wait_until(event, heard)


@pytest.mark.parametrize("command", ["serve", "check"])
async def test_a31_a_host_that_is_not_listed_ends_the_start_and_says_what_to_add(shop: Shop, command: str) -> None:
    config = shop.configure(allow=["pay.example.org", "https://wrong"])
    async with running(command, [command, "--config", str(config)], shop.folder, **shop.environ) as process:
        assert await process.ended() == 78
    assert "'https://wrong'" in process.text()
    config = shop.configure(allow=["pay.example.org"])
    async with running(f"{command}-2", [command, "--config", str(config)], shop.folder, **shop.environ) as process:
        assert await process.ended() == 78
    assert f"127.0.0.1:{shop.provider_port} is not on the allow-list; add it to await.webhook.allow" in process.text()
    assert TARGET_PATH in process.text()


async def test_a_drain_lets_requests_on_their_way_end(shop: Shop) -> None:
    config = shop.configure()
    taken = trio.Event()
    release = trio.Event()

    async def slow(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            taken.set()
            await release.wait()
            await stream.send_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_tcp, slow, shop.provider_port)
        async with shop.daemon(config) as daemon:
            write_payments(shop.inbox / "a.csv", 1)
            await taken.wait()
            daemon.send(signal.SIGTERM)

            async def draining() -> bool:
                return bool(daemon.events("draining"))

            await wait_until("the drain", draining)
            release.set()
            assert await daemon.ended() == 0
            assert daemon.complained() == []
        nursery.cancel_scope.cancel("the daemon is gone")
    async with serving(shop.folder, config, **shop.environ) as again:
        (row,) = (await again.client.get("/pipeline/interactions/pending")).json()
        assert row["status"] == "DISPATCHED", "it was sent, and that was noted"
