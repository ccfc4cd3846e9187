"""Several replicas of one daemon on a shared store and queue, to be killed, stopped and started again."""

from __future__ import annotations

import functools
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import yaml
from attrs import define, field

from tpfd.cli.demo.children import Child, DemoFailed, child_environ, file_work, free_ports, ready, running
from tpfd.cli.demo.standin import REGION, StandIn
from tpfd.cli.serve import load
from tpfd.client import TpfdClient
from tpfd.daemon.assembly import assemble
from tpfd.daemon.aws_sites import Clients
from tpfd.daemon.providers import open_store
from tpfd.daemon.provisioning import Provisioner
from tpfd.daemon.resources import Site, resources_of

LEASE_MS, SKEW_MS, SWEEP_MS = 5_000, 500, 1_000
MAX_RETRIES = 2
GRACE_S = 10.0
NO_ACCOUNT = "000000000000"
STOP_WITHIN_S = GRACE_S + 10.0

FAST: Mapping[str, Any] = {
    "lease": {"duration": f"{LEASE_MS}ms", "skew": f"{SKEW_MS}ms"},
    "sweep": {"interval": f"{SWEEP_MS}ms"},
    "retry": {"max-retries": MAX_RETRIES, "delay": "300ms"},
    "steps": {"retry-limit": 0},
    "drain": {"grace": f"{GRACE_S:.0f}s"},
}
"""Shorter than anybody would run with, so that nobody has to wait for half a minute to see a takeover."""


@define(eq=False)
class Replica:
    """One daemon of the cluster: always with the same name and port, in one process after the other.

    Attributes:
        client: for this daemon alone.
    """

    name: str
    port: int
    config: Path
    client: TpfdClient
    _child: Child | None = field(default=None, init=False)
    _stack: AsyncExitStack = field(factory=AsyncExitStack, init=False)

    @property
    def runs(self) -> bool:
        return self._child is not None

    async def start(self) -> None:
        """Starts it, and waits until it is ready. Raises DemoFailed."""
        log = self.config.with_suffix(".log")
        arguments = ["serve", "--config", str(self.config)]
        self._child = child = await self._stack.enter_async_context(
            running(f"replica {self.name}", arguments, log, child_environ({}))
        )
        await ready(child, self.client)

    async def kill(self) -> None:
        """SIGKILL: it says nothing to anybody."""
        child = self._running()
        child.process.kill()
        await child.process.wait()
        await self._gone()

    async def stop(self) -> int:
        """SIGTERM, and its exit code. Raises DemoFailed when it does not end in time."""
        child = self._running()
        child.process.send_signal(signal.SIGTERM)
        code = None
        with trio.move_on_after(STOP_WITHIN_S):
            code = await child.process.wait()
        await self._gone()
        if code is None:
            raise DemoFailed(f"replica {self.name} did not end within {STOP_WITHIN_S:.0f} s; see {child.log}")
        return code

    async def _gone(self) -> None:
        self._child = None
        await self._stack.aclose()

    def _running(self) -> Child:
        if self._child is None:
            raise DemoFailed(f"replica {self.name} does not run")
        return self._child


@define(eq=False)
class Cluster:
    """Replicas that share tables and queues.

    Attributes:
        standin: what they keep their work in, if it is ours to stop; None: a service that somebody named.
        letters_url: queue of the dead letters.
    """

    folder: Path
    site: Site
    standin: StandIn | None
    replicas: list[Replica]
    letters_url: str
    _clients: Clients = field(factory=Clients, init=False)

    async def letters(self) -> list[str]:
        """The bodies of the dead letters that wait in the queue; they stay there."""
        sqs = await self._clients.at("sqs", self.site)
        found: list[str] = []
        while True:
            answer = await sqs(
                "receive_message", QueueUrl=self.letters_url, MaxNumberOfMessages=10, VisibilityTimeout=1
            )
            if not (messages := answer.get("Messages", [])):
                return found
            found += [message["Body"] for message in messages if message["Body"] not in found]

    @asynccontextmanager
    async def edge_only(self) -> AsyncIterator[TpfdClient]:
        """A daemon of which only the edge runs: it takes work in, and dies before it tells anybody.

        That is the state that a crash between the commit of a submit and its announcement leaves behind.
        """
        reread = functools.partial(load, self.replicas[0].config, ("http.bind=127.0.0.1:0", "node.name=edge"))
        loaded = reread()
        async with open_store(loaded.config) as store:
            daemon = assemble(loaded, reread, store, trio.Event())
            async with trio.open_nursery() as nursery:
                address = await nursery.start(daemon.serve_http)
                async with TpfdClient(f"http://{address}") as client:
                    yield client
                nursery.cancel_scope.cancel(reason="it dies")


@asynccontextmanager
async def cluster(folder: Path, site: Site, standin: StandIn | None, names: list[str]) -> AsyncIterator[Cluster]:
    """Makes tables and queues under names of their own, and runs replicas on them for as long as the block lasts.

    Args:
        folder: gets a configuration and a log for each replica.
        names: of the replicas.

    Raises:
        DemoFailed: a replica did not come up.
        AwsFailure: the service did not do what it was asked for.
    """
    run = secrets.token_hex(3)
    queues = f"{site.endpoint}/{NO_ACCOUNT}/tpfd-ha-{run}"
    sections = _sections(site, run, queues)
    async with AsyncExitStack() as stack:
        replicas = []
        for name, port in zip(names, free_ports(len(names)), strict=True):
            config = folder / f"{name}.yaml"
            document = {**sections, "node": {"name": name, "production": True}, "http": {"bind": f"127.0.0.1:{port}"}}
            await file_work(config.write_text, yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
            client = await stack.enter_async_context(TpfdClient(f"http://127.0.0.1:{port}"))
            replicas.append(Replica(name, port, config, client))
        await Provisioner(_unheard).make(resources_of(load(replicas[0].config, ()).config, {}))
        for replica in replicas:
            stack.push_async_callback(_end, replica)
            await replica.start()
        yield Cluster(folder, site, standin, replicas, f"{queues}-letters")


def _sections(site: Site, run: str, queues: str) -> dict[str, Any]:
    """The framework's high-availability baseline, with endpoints, and short times."""
    place = {"region": site.region or REGION, **({"endpoint": site.endpoint} if site.endpoint else {})}
    return {
        "pipelines": ["example:deliver-order"],
        "strict-startup": True,
        "store": {"provider": "dynamodb", "dynamodb": {**place, "table-prefix": f"tpfd_ha_{run}_"}},
        "dispatcher": {
            "provider": "sqs",
            "sqs": {**place, "queue-url": f"{queues}-work", "wait": "1s", "visibility": "5s"},
        },
        "dead-letters": {"provider": "sqs", "sqs": {"queue-url": f"{queues}-letters"}},
        "execution": {"idempotency-policy": "CLIENT_KEY_REQUIRED"},
        **FAST,
    }


async def _end(replica: Replica) -> None:
    if replica.runs:
        with trio.CancelScope(shield=True):
            await replica.kill()


def _unheard(_kind: str, _name: str, _new: bool) -> None:
    """Provisioning is no news of the demo."""
