"""The two topics of a demo that asks over Kafka: made for it, and removed after it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from tpfd.cli.demo.children import DemoFailed
from tpfd.errors import ConfigError, Problem

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITIONS = 3
WITHIN_S = 10.0


@asynccontextmanager
async def two_topics(bootstrap: str) -> AsyncIterator[tuple[str, str]]:
    """Names of a topic for requests and one for answers, which exist for as long as the block lasts.

    Args:
        bootstrap: brokers as host:port,host:port.

    Raises:
        DemoFailed: they cannot be made.
        ConfigError: the client library is not installed.
    """
    admin = _admin(bootstrap)
    run = secrets.token_hex(4)
    requests, answers = names = (f"tpfd-demo-{run}-requests", f"tpfd-demo-{run}-answers")
    await trio.to_thread.run_sync(_make, admin, names, bootstrap)
    try:
        yield requests, answers
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_remove, admin, names, bootstrap)


def _admin(bootstrap: str) -> AdminClient:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        message = "the transport kafka needs its client library: pip install 'tpfd[kafka]'"
        raise ConfigError([Problem("$.await.kafka", message)]) from error
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": _Silent()}
    return AdminClient(settings)


def _make(admin: AdminClient, names: Sequence[str], bootstrap: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    made = admin.create_topics(
        [NewTopic(name, PARTITIONS) for name in names], request_timeout=WITHIN_S, operation_timeout=WITHIN_S
    )
    try:
        for future in made.values():
            future.result()
    except KafkaException as error:
        raise DemoFailed(f"no topic could be made at {bootstrap}: {error.args[0].str()}") from error


def _remove(admin: AdminClient, names: Sequence[str], bootstrap: str) -> None:
    from confluent_kafka import KafkaException

    try:
        for future in admin.delete_topics(list(names), request_timeout=WITHIN_S).values():
            future.result()
    except KafkaException as error:
        left = " and ".join(names)
        raise DemoFailed(f"{left} could not be removed at {bootstrap}: {error.args[0].str()}") from error


class _Silent:
    """Takes what the library would print; what matters is raised."""

    def log(self, *_: object, **__: object) -> None:
        """Says nothing."""
