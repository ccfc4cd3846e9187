"""How the daemon and the payment provider of a demo find each other, by transport."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tpfd.cli.demo.children import file_work, free_ports
from tpfd.cli.demo.kafka_link import two_topics
from tpfd.cli.demo.sqs_link import region, two_queues

TRANSPORTS = ("websocket", "webhook", "sqs", "kafka")
HOOK_PLACES = 10_000
"""Requests that the provider takes in hand when it is called: there is no window that would hold them back."""


@frozen(kw_only=True)
class Link:
    """What both sides are told.

    Attributes:
        port: where the daemon listens.
        environ: for the daemon.
        provider_options: for the provider's command line.
        ready: what the provider says when it can be asked.
        sections: of the daemon's configuration.
        transport: of the await step, as the pipeline would have it; None: the example's own, told by `environ`.
    """

    port: int
    environ: Mapping[str, str]
    provider_options: Mapping[str, str]
    ready: str
    sections: Mapping[str, Any] = field(factory=dict)
    transport: Mapping[str, Any] | None = None


@asynccontextmanager
async def linked(transport: str, folder: Path, window: int, endpoint: str) -> AsyncIterator[Link]:
    """The link for a demo, for as long as the block lasts.

    Args:
        transport: one of TRANSPORTS.
        folder: gets the shared secret, where there is one.
        window: unanswered requests at a time, for a provider that attaches.
        endpoint: of SQS as a URL, of Kafka's brokers as host:port.

    Raises:
        DemoFailed: the secret cannot be written, or queues or topics cannot be made.
    """
    match transport:
        case "sqs":
            async with two_queues(endpoint) as (requests, answers):
                yield _sqs(requests, answers, window, endpoint)
        case "kafka":
            async with two_topics(endpoint) as (requests, answers):
                yield _kafka(requests, answers, window, endpoint)
        case "webhook":
            yield await _webhook(folder)
        case _:
            (port,) = free_ports(1)
            yield Link(
                port=port,
                environ={"CSV_PAYMENT_TRANSPORT": transport},
                provider_options={"--url": f"http://127.0.0.1:{port}", "--credit": str(window)},
                ready="connected to",
            )


def _sqs(requests: str, answers: str, window: int, endpoint: str) -> Link:
    (port,) = free_ports(1)
    place = {"region": region(), "endpoint": endpoint}
    poller = {"enabled": True, "response-queue-url": answers, "max-messages": 10}
    return Link(
        port=port,
        environ={},
        provider_options={
            "--transport": "sqs",
            "--request-queue": requests,
            "--answer-queue": answers,
            "--endpoint": endpoint,
            "--credit": str(window),
        },
        ready="listening on",
        sections={"dispatcher": {"sqs": place}, "await": {"sqs": {"poller": poller}}},
        transport={"type": "sqs", "request": {"queueUrl": requests}},
    )


def _kafka(requests: str, answers: str, window: int, bootstrap: str) -> Link:
    (port,) = free_ports(1)
    # Somebody waits for the numbers: a group of one begins sooner when its sessions are short.
    properties = {"consumer.session.timeout.ms": "6000"}
    return Link(
        port=port,
        environ={},
        provider_options={
            "--bootstrap": bootstrap,
            "--request-topic": requests,
            "--answer-topic": answers,
            "--credit": str(window),
        },
        ready="listening on",
        sections={"await": {"kafka": {"bootstrap": bootstrap, "properties": properties}}},
        transport={
            "type": "kafka",
            "request": {"topic": requests},
            "response": {"topic": answers},
            "consumer": {"group": answers},
        },
    )


async def _webhook(folder: Path) -> Link:
    port, provider_port = free_ports(2)
    secret = folder / "webhook.secret"
    await file_work(_write_secret, secret)
    place = f"127.0.0.1:{provider_port}"
    return Link(
        port=port,
        environ={
            "CSV_PAYMENT_TRANSPORT": "webhook",
            "CSV_PAYMENT_URL": f"http://{place}/payments",
            "CSV_PAYMENT_CALLBACK": f"http://127.0.0.1:{port}",
        },
        provider_options={"--listen": place, "--secret-file": str(secret), "--credit": str(HOOK_PLACES)},
        ready="listening on",
        sections={"await": {"resume-token-secrets": [{"file": str(secret)}], "webhook": {"allow": [place]}}},
    )


def _write_secret(path: Path) -> None:
    path.touch(0o600)  # nobody else may read it, not even while it is being written
    path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
