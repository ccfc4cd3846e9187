"""A real DynamoDB, SQS and S3 over a real socket: one `ministack` per test session, on a port of its own.

Tests share it, so each names its tables, queues and buckets itself (`StandIn.name`).
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from tpfd.aws.clients import make_client

REGION = "eu-west-1"
START_S = 30.0

CLIENT_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What a client of the stand-in needs: throwaway credentials, and nothing of the person who runs the tests."""


@frozen(eq=False)
class StandIn:
    """A running stand-in.

    Attributes:
        endpoint: `http://127.0.0.1:PORT`, for all services.
    """

    endpoint: str
    process: subprocess.Popen[bytes]
    region: str = REGION
    _clients: dict[tuple[str, int], Any] = field(factory=dict)
    _numbers: itertools.count[int] = field(factory=itertools.count)

    def client(self, service: str, *, connections: int = 10) -> Any:
        """A client as the daemon makes them, shared by all who ask: to make one costs more than most tests do.

        Needs `CLIENT_ENVIRONMENT`.
        """
        client = self._clients.get((service, connections))
        if client is None:
            client = make_client(
                service,
                region=REGION,
                endpoint=self.endpoint,
                connections=connections,
                as_it_stands=service == "dynamodb",  # as the store has it
            )
            self._clients[service, connections] = client
        return client

    def connect(self, service: str, *, connections: int = 10) -> functools.partial[Any]:
        """The `connect` of ``AwsCalls``."""
        return functools.partial(self.client, service, connections=connections)

    def name(self, what: str) -> str:
        """A name that nobody else in this session has: `what-0`, `what-1`."""
        return f"{what}-{next(self._numbers)}"


@contextmanager
def running(state_folder: Path | None = None, port: int | None = None) -> Iterator[StandIn]:
    """Starts a stand-in, waits until it answers, and kills it in the end.

    Args:
        state_folder: keeps its state there over a SIGTERM; None: in memory.
        port: None takes a free one.
    """
    port = _free_port() if port is None else port
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        **CLIENT_ENVIRONMENT,
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LOG_LEVEL": "ERROR",
    }
    if state_folder is not None:
        environment |= {"PERSIST_STATE": "1", "STATE_DIR": str(state_folder)}
    command = [sys.executable, "-m", "ministack"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            _wait_until_ready(endpoint, process)
            yield StandIn(endpoint, process)
        finally:
            process.kill()


_session = ExitStack()


@functools.cache
def shared() -> StandIn:
    """The stand-in of this test session, with the environment that its clients need; started when first asked for."""
    patched = _session.enter_context(pytest.MonkeyPatch.context())
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patched.delenv(name)
    for name, value in CLIENT_ENVIRONMENT.items():
        patched.setenv(name, value)
    return _session.enter_context(running())


def stop() -> None:
    """Ends the session's stand-in, if anybody has asked for it."""
    _session.close()
    shared.cache_clear()


@pytest.fixture(scope="session")
def aws() -> StandIn:
    """The session's stand-in."""
    return shared()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        if process.poll() is not None:
            raise RuntimeError(f"ministack ended with {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{endpoint}/_ministack/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"ministack was not ready within {START_S} s")
