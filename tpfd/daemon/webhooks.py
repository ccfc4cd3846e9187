"""Webhook senders of a daemon: one per webhook step, over one pool of connections."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from attrs import define

from tpfd.config.model import Config
from tpfd.pipeline.model import Pipeline
from tpfd.runtime import Runtime
from tpfd.transports.allow_list import AllowList
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.webhook import MAX_CONCURRENCY, GiveUp, WebhookSender
from tpfd.transports.webhook_target import WebhookTarget, read_targets

if TYPE_CHECKING:
    from tpfd.transports.checked_network import CheckedNetwork

ALLOW = "$.await.webhook.allow"


@define(eq=False, kw_only=True)
class Webhooks:
    """What sends webhooks in this process.

    Attributes:
        senders: one per step; none where no pipeline has such a step.
        connections: open as long as any request may be on its way.
        network: opens them; None where there are no senders.
    """

    senders: tuple[WebhookSender, ...]
    connections: AbstractAsyncContextManager[object]
    network: CheckedNetwork | None

    def allow(self, allowed: AllowList) -> None:
        """Takes another allow-list from now on."""
        if self.network is not None:
            self.network.allowed = allowed

    async def idle(self) -> None:
        """Waits until no request is on its way."""
        for sender in self.senders:
            await sender.idle()


def allow_list(config: Config) -> AllowList:
    """The hosts that webhooks may go to.

    Raises:
        ConfigError: every entry that cannot be read.
    """
    return AllowList.parse(config.await_.webhook.allow, ALLOW)


def targets(config: Config, pipeline: Pipeline, allowed: AllowList) -> dict[int, WebhookTarget]:
    """Where the webhook steps of a pipeline send, by step index.

    Raises:
        ConfigError: every setting that cannot be used.
    """
    return read_targets(pipeline, allowed, config.await_.webhook.timeout_ms)


def make_webhooks(config: Config, runtime: Runtime, envelopes: EnvelopeWriter, give_up: GiveUp) -> Webhooks:
    """Wires the senders.

    Raises:
        ConfigError: see `allow_list` and `targets`.
    """
    allowed = allow_list(config)
    steps = [
        (program, program.step(index), target)
        for program in runtime.programs.values()
        for index, target in targets(config, program.pipeline, allowed).items()
    ]
    if not steps:
        return Webhooks(senders=(), connections=nullcontext(), network=None)
    # A daemon without webhooks starts without the HTTP client.
    import httpcore

    from tpfd.transports.checked_network import CheckedNetwork
    from tpfd.transports.webhook_http import WebhookHttp

    network = CheckedNetwork(allowed=allowed)
    secure = any(target.scheme == "https" for _, _, target in steps)
    tls = httpcore.default_ssl_context() if secure else None
    http = WebhookHttp(network=network, clock=runtime.clock, tls=tls)
    senders = tuple(
        WebhookSender(
            runtime=runtime,
            pipeline_id=program.pipeline_id,
            step_id=step.step_id,
            target=target,
            envelopes=envelopes,
            send=http.send,
            give_up=give_up,
            concurrency=min(program.concurrency(step), MAX_CONCURRENCY),
        )
        for program, step, target in steps
    )
    return Webhooks(senders=senders, connections=http, network=network)
