"""What must be right before the daemon starts, as far as the configuration alone can tell.

Whether a provider can be reached and its tables are there is looked at in `tpfd.daemon.connecting`. Secrets are
checked where they are read, in `tpfd.config.secrets`.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tpfd.config.model import Config
from tpfd.errors import Problem

DURABLE_REJECT_SINKS = frozenset({"file", "sqs"})


@attrs.frozen
class PipelineNeeds:
    """What the loaded pipelines ask of the configuration.

    Attributes:
        signed_token_steps: await steps whose correlation is ``signedResumeToken``, as ``pipeline/step``.
        recovering_steps: steps that hand failed items to the reject sink and go on, likewise.
        webhook_steps: await steps that send webhooks, likewise.
        kafka_steps: await steps that ask over Kafka, likewise.
        sqs_steps: await steps that ask over SQS, likewise.
    """

    signed_token_steps: tuple[str, ...] = ()
    recovering_steps: tuple[str, ...] = ()
    webhook_steps: tuple[str, ...] = ()
    kafka_steps: tuple[str, ...] = ()
    sqs_steps: tuple[str, ...] = ()


@attrs.frozen
class StartupFindings:
    """Result of `check_startup`.

    Attributes:
        errors: any of them ends the start (exit 78).
        warnings: to be logged; with ``strict-startup`` these were errors, unless they are advice only.
    """

    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check_startup(config: Config, needs: PipelineNeeds) -> StartupFindings:
    """Find what must not, or should not, be started with.

    Args:
        config: the values in effect.
        needs: what the pipelines ask for.
    """
    errors, strict = tuple(_unsafe(config, needs)), (*_undurable(config, needs), *_unsigned(config, needs))
    advice = tuple(_advice(config, needs))
    if config.strict_startup:
        return StartupFindings(errors + strict, advice)
    return StartupFindings(errors, strict + advice)


def _unsafe(config: Config, needs: PipelineNeeds) -> Iterator[Problem]:
    """Errors whatever ``strict-startup`` says."""
    if not config.pipelines:
        yield Problem("$.pipelines", "no pipeline to run; name a pipeline.yaml, or example:csv-payments to look around")
    http = config.http
    if not http.bind.is_loopback and not (http.admin_token_file or http.api_token_file):
        message = f"{http.bind} can be reached from other hosts and there is no token; set http.api-token-file"
        yield Problem("$.http.bind", f"{message} or http.admin-token-file, or bind to 127.0.0.1")
    if needs.signed_token_steps and not config.await_.resume_token_secrets:
        steps = ", ".join(needs.signed_token_steps)
        yield Problem("$.await.resume-token-secrets", f"is empty, but signed resume tokens are wanted by {steps}")
    if needs.kafka_steps and not config.await_.kafka.bootstrap:
        steps = ", ".join(needs.kafka_steps)
        yield Problem("$.await.kafka.bootstrap", f"is empty, but {steps} ask over Kafka; set it to host:port")


def _undurable(config: Config, needs: PipelineNeeds) -> Iterator[Problem]:
    """What would lose accepted work in production."""
    if not config.node.production:
        return
    if config.store.provider == "memory":
        message = "memory forgets all work when the process ends; use sqlite or dynamodb in production"
        yield Problem("$.store.provider", message)
    if config.store.provider == "sqlite" and config.store.sqlite.synchronous != "full":
        message = f"{config.store.sqlite.synchronous} may lose answered submits in a power cut; use full in production"
        yield Problem("$.store.sqlite.synchronous", message)
    if needs.recovering_steps and config.item_rejects.provider not in DURABLE_REJECT_SINKS:
        steps = ", ".join(needs.recovering_steps)
        message = f"{config.item_rejects.provider} does not keep rejected items, but {steps} go on without them"
        yield Problem("$.item-rejects.provider", f"{message}; use file or sqs in production")


def _unsigned(config: Config, needs: PipelineNeeds) -> Iterator[Problem]:
    """What the other side could not tell from a forgery."""
    if needs.webhook_steps and not config.await_.resume_token_secrets:
        steps = ", ".join(needs.webhook_steps)
        yield Problem("$.await.resume-token-secrets", f"is empty, so the requests of {steps} go out unsigned; set one")


def _advice(config: Config, needs: PipelineNeeds) -> Iterator[Problem]:
    if not config.http.bind.is_loopback and not config.http.tls.cert:
        message = "tokens and payloads cross the network unencrypted; set http.tls, or have a proxy do TLS"
        yield Problem("$.http.tls", message)
    if config.store.provider == "dynamodb" and config.dispatcher.provider == "event":
        message = "event announces work within this host alone; others find it by their next sweep; use sqs"
        yield Problem("$.dispatcher.provider", message)
    if config.store.provider != "dynamodb" and config.dispatcher.provider == "sqs":
        message = f"{config.store.provider} is seen by this host alone: hints of work that others keep would be dropped"
        yield Problem("$.dispatcher.provider", f"{message}; give the queue to no other host, or use event")
    if needs.sqs_steps and not config.await_.sqs.poller.enabled:
        message = f"is off, so answers to {', '.join(needs.sqs_steps)} must be taken in by another daemon"
        yield Problem("$.await.sqs.poller.enabled", message)
