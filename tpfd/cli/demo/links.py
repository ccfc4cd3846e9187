"""How the daemon and the payment provider of a demo find each other, by transport."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tpfd.cli.demo.children import file_work, free_ports

TRANSPORTS = ("websocket", "webhook")
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
    """

    port: int
    environ: Mapping[str, str]
    provider_options: Mapping[str, str]
    ready: str
    sections: Mapping[str, Any] = field(factory=dict)


async def make_link(transport: str, folder: Path, window: int) -> Link:
    """The link for a demo.

    Args:
        transport: one of TRANSPORTS.
        folder: gets the shared secret, where there is one.
        window: unanswered requests at a time, for a provider that attaches.

    Raises:
        DemoFailed: the secret cannot be written.
    """
    port, provider_port = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    if transport == "websocket":
        return Link(
            port=port,
            environ={"CSV_PAYMENT_TRANSPORT": transport},
            provider_options={"--url": url, "--credit": str(window)},
            ready="connected to",
        )
    secret = folder / "webhook.secret"
    await file_work(_write_secret, secret)
    place = f"127.0.0.1:{provider_port}"
    return Link(
        port=port,
        environ={
            "CSV_PAYMENT_TRANSPORT": transport,
            "CSV_PAYMENT_URL": f"http://{place}/payments",
            "CSV_PAYMENT_CALLBACK": url,
        },
        provider_options={"--listen": place, "--secret-file": str(secret), "--credit": str(HOOK_PLACES)},
        ready="listening on",
        sections={"await": {"resume-token-secrets": [{"file": str(secret)}], "webhook": {"allow": [place]}}},
    )


def _write_secret(path: Path) -> None:
    path.touch(0o600)  # nobody else may read it, not even while it is being written
    path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
