"""The configuration as frozen classes, one per section; `Config` is the whole.

Every key of ``etc/tpfd.yaml`` is declared once: here, in `tpfd.config.providers` or in `tpfd.config.outside`.
Attributes that hold a time end in ``_ms``, sizes in ``_bytes``. Nothing here reads files or the environment: see
`tpfd.config.load`.
"""

# ruff: noqa: RUF009 - the calls are field declarations, each with a default of its own

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from tpfd.config.fields import (
    Address,
    address,
    choice,
    duration,
    integer,
    mapping,
    number,
    section,
    size,
    switch,
    text,
    texts,
    url,
)
from tpfd.config.outside import Await, Resilience, Worker
from tpfd.config.providers import DeadLetters, Dispatcher, ItemRejects, Store


@attrs.frozen
class Node:
    name: str = text("", "Name in logs and leases, never used for recovery; empty is made from host and process.")
    production: bool = switch(False, "Whether money depends on it: switches strict-startup on.")


@attrs.frozen
class Tenancy:
    default_tenant: str = text(
        "default",
        "Tenant of requests that name none.",
        framework="pipeline.orchestrator.default-tenant",
    )
    required: bool = switch(
        False,
        "Refuse requests that name no tenant.",
        framework="pipeline.orchestrator.tenancy.require-explicit-tenant",
    )


@attrs.frozen
class Tls:
    cert: str = text("", "PEM file with the certificate chain; with key.")
    key: str = text("", "PEM file with the private key; with cert.")


@attrs.frozen
class Http:
    bind: Address = address("127.0.0.1", 8081, "Where HTTP and WebSocket listen; beyond loopback only with tokens.")
    tls: Tls = section(Tls, "TLS on that port; empty is plain HTTP.")
    admin_token_file: str = text(
        "",
        "File with bearer tokens for everything, one per line: token [roles] [tenant].",
        framework="pipeline.orchestrator.admin.admin-token-ref",
    )
    api_token_file: str = text(
        "",
        "File with bearer tokens for submitting, completing and looking, one per line: token [roles] [tenant].",
        framework="pipeline.orchestrator.control-plane.admin-token-ref",
    )
    max_body_bytes: int = size("17MiB", "Largest request body; not below execution.max-payload.", maximum="1GiB")
    request_timeout_ms: int = duration("PT30S", "Deadline of one request; long polls end before it.")
    header_timeout_ms: int = duration("PT10S", "Deadline for a client to send its request line and headers.")
    max_connections: int = integer(1024, "Connections held at once.", minimum=1, maximum=100_000)


@attrs.frozen
class Execution:
    idempotency_policy: Literal["OPTIONAL_CLIENT_KEY", "CLIENT_KEY_REQUIRED", "SERVER_KEY_ONLY"] = choice(
        "OPTIONAL_CLIENT_KEY",
        "Who makes the key that tells a repeated submit from a new one.",
        framework="pipeline.orchestrator.idempotency-policy",
    )
    ttl_ms: int = duration(
        "P7D",
        "How long the store keeps an execution after its end.",
        minimum="PT1M",
        framework="pipeline.orchestrator.execution-ttl-days",
    )
    max_payload_bytes: int = size("16MiB", "Largest input, request or answer.", maximum="512MiB")
    journal: Literal["full", "boundaries", "off"] = choice(
        "full", "Which facts are kept to be looked up later; correctness does not depend on it."
    )


@attrs.frozen
class Lease:
    duration_ms: int = duration(
        "PT30S",
        "How long a claim holds without being renewed; a dead process's work is taken over after it.",
        minimum="PT1S",
        maximum="PT1H",
        framework="pipeline.orchestrator.lease-ms",
    )
    skew_ms: int = duration(
        "PT2S", "Extra wait before a takeover, for clocks that differ.", minimum="PT0S", maximum="PT10M"
    )


@attrs.frozen
class Retry:
    max_retries: int = integer(
        3,
        "Further runs of an execution after a failure that may pass; 3 means four runs.",
        maximum=1_000,
        framework="pipeline.orchestrator.max-retries",
    )
    max_worker_losses: int = integer(
        5, "Takeovers after a lost worker before the execution counts as deadly.", minimum=1, maximum=1_000
    )
    delay_ms: int = duration(
        "PT10S", "Wait before the first further run.", framework="pipeline.orchestrator.retry-delay"
    )
    multiplier: float = number(
        2.0,
        "Each wait is so many times the one before.",
        minimum=1.0,
        maximum=100.0,
        framework="pipeline.orchestrator.retry-multiplier",
    )
    cap_ms: int = duration("PT5M", "Longest wait, before jitter.")
    jitter: float = number(0.2, "Up to this share of the wait is added at random.", minimum=0.0, maximum=1.0)


@attrs.frozen
class Steps:
    retry_limit: int = integer(
        3, "Tries of a step within one run.", maximum=1_000, framework="pipeline.defaults.retry-limit"
    )
    retry_wait_ms: int = duration(
        "PT2S", "Wait before the first further try.", framework="pipeline.defaults.retry-wait-ms"
    )
    max_backoff_ms: int = duration("PT30S", "Longest such wait.", framework="pipeline.defaults.max-backoff")
    recover_on_failure: bool = switch(
        False,
        "Hand an item that failed for good to item-rejects and go on.",
        framework="pipeline.defaults.recover-on-failure",
    )
    max_concurrency: int = integer(
        128,
        "Items in a step at once; the window of a live await.",
        minimum=1,
        maximum=100_000,
        framework="pipeline.max-concurrency",
    )
    parallelism: Literal["AUTO", "PARALLEL", "SEQUENTIAL"] = choice(
        "AUTO", "SEQUENTIAL keeps the order of items, one at a time.", framework="pipeline.parallelism"
    )
    backpressure_buffer_capacity: int = integer(
        128,
        "Items that may wait between two steps.",
        minimum=1,
        maximum=1_000_000,
        framework="pipeline.defaults.backpressure-buffer-capacity",
    )


@attrs.frozen
class Sweep:
    interval_ms: int = duration(
        "PT30S",
        "How often work that nobody announced is looked for.",
        minimum="100ms",
        maximum="PT1H",
        framework="pipeline.orchestrator.sweep-interval",
    )
    limit: int = integer(
        100, "Rows per page of such a look.", minimum=1, maximum=10_000, framework="pipeline.orchestrator.sweep-limit"
    )


@attrs.frozen
class Drain:
    grace_ms: int = duration(
        "PT25S",
        "Time for running work after SIGTERM; what is left is handed back. Below the unit's TimeoutStopSec.",
        minimum="PT0S",
        maximum="PT1H",
    )


@attrs.frozen
class Log:
    format: Literal["json", "text"] = choice("json", "json is one object per line; text is for reading along.")
    level: Literal["debug", "info", "warning", "error"] = choice(
        "info", "Least level that is written.", reloadable=True
    )


@attrs.frozen
class Replay:
    file: str = text("", "File for the replay export.", framework="pipeline.telemetry.replay.file.path")


@attrs.frozen
class Telemetry:
    log: Log = section(Log, "Log lines on standard error.")
    metrics: bool = switch(True, "Serve /q/metrics.")
    otlp_endpoint: str = url("Collector for traces.")
    replay: Replay = section(Replay, "Facts as a file for the framework's replay viewer.")


@attrs.frozen
class Retention:
    succeeded_ms: int = duration("P7D", "How long facts and payloads of succeeded executions stay.", minimum="PT1M")
    failed_ms: int = duration("P30D", "The same for failed, cancelled and dead-lettered ones.", minimum="PT1M")
    archive: str = text("", "Folder that gets executions before they are deleted.")


@attrs.frozen
class Config:
    """Everything that can be set. ``Config()`` is all defaults."""

    node: Node = section(Node, "This process.")
    strict_startup: bool = switch(
        False,
        "Refuse to start on anything that endangers accepted work. Unset, it is what node.production is.",
        framework="pipeline.orchestrator.strict-startup",
    )
    pipelines: tuple[str, ...] = texts("Paths of pipeline.yaml files, or example:csv-payments and the like.")
    bindings: Mapping[str, str] = mapping("Python functions by step id, as module:function; wins over pipeline.yaml.")
    tenancy: Tenancy = section(Tenancy, "Whose work it is.")
    http: Http = section(Http, "The one port for HTTP and WebSocket.")
    store: Store = section(Store, "Where executions live.")
    dispatcher: Dispatcher = section(Dispatcher, "How work is announced.")
    dead_letters: DeadLetters = section(DeadLetters, "Executions that failed for good.")
    item_rejects: ItemRejects = section(ItemRejects, "Items that a step gave up on while the rest went on.")
    execution: Execution = section(Execution, "What is accepted and how long it is kept.")
    lease: Lease = section(Lease, "The time limit of a claim.")
    retry: Retry = section(Retry, "Further runs of whole executions.")
    steps: Steps = section(Steps, "Defaults of every step; a step's own setting wins.")
    sweep: Sweep = section(Sweep, "The look for work that nobody announced.")
    worker: Worker = section(Worker, "Who runs the steps.")
    await_: Await = section(Await, "Requests to the outside world and their answers.")
    resilience: Resilience = section(Resilience, "Protection of what is called.")
    drain: Drain = section(Drain, "The end of the process.")
    telemetry: Telemetry = section(Telemetry, "What can be seen from outside.")
    retention: Retention = section(Retention, "What is deleted when.")
