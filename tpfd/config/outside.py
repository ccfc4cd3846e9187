"""Sections for what tpfd calls and waits for: remote workers, await transports, breakers."""

# ruff: noqa: RUF009 - the calls are field declarations, each with a default of its own

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from tpfd.config.fields import (
    SecretRef,
    choice,
    duration,
    integer,
    mapping,
    number,
    secrets,
    section,
    size,
    switch,
    text,
    texts,
    url,
)
from tpfd.config.providers import SQS_VISIBILITY_MAX, SQS_WAIT_MAX


@attrs.frozen
class RestWorker:
    base_url: str = url(
        "Where the REST worker is; setting it selects this worker.",
        framework="pipeline.orchestrator.worker.rest.base-url",
    )
    path: str = text(
        "/pipeline/worker/transitions/execute",
        "Path that takes a transition.",
        framework="pipeline.orchestrator.worker.rest.path",
    )
    connect_timeout_ms: int = duration(
        "PT2S", "Time to connect.", framework="pipeline.orchestrator.worker.rest.connect-timeout"
    )
    server_enabled: bool = switch(
        False,
        "Answer transitions for another coordinator.",
        framework="pipeline.orchestrator.worker.rest.server-enabled",
    )
    shared_secret_file: str = text(
        "",
        "File with the secret that signs requests (at least 16 bytes).",
        framework="pipeline.orchestrator.worker.rest.shared-secret-ref",
    )
    signature_tolerance_ms: int = duration(
        "PT2M",
        "Largest difference between the signed time and ours.",
        framework="pipeline.orchestrator.worker.rest.signature-tolerance",
    )


@attrs.frozen
class GrpcWorker:
    endpoint: str = text(
        "",
        "host:port of the gRPC worker; setting it selects this worker.",
        framework="pipeline.orchestrator.worker.grpc.endpoint",
    )
    plaintext: bool = switch(False, "No TLS, for tests.", framework="pipeline.orchestrator.worker.grpc.plaintext")
    max_inbound_message_bytes: int = size(
        "4MiB",
        "Largest answer taken.",
        framework="pipeline.orchestrator.worker.grpc.max-inbound-message-size",
    )
    server_enabled: bool = switch(
        False,
        "Answer transitions for another coordinator.",
        framework="pipeline.orchestrator.worker.grpc.server-enabled",
    )
    shared_secret_file: str = text(
        "",
        "File with the secret that signs requests (at least 16 bytes).",
        framework="pipeline.orchestrator.worker.grpc.shared-secret-ref",
    )
    signature_tolerance_ms: int = duration(
        "PT2M",
        "Largest difference between the signed time and ours.",
        framework="pipeline.orchestrator.worker.grpc.signature-tolerance",
    )


@attrs.frozen
class SqsWorker:
    request_queue_url: str = url(
        "Queue that takes transitions; setting it selects this worker.",
        framework="pipeline.orchestrator.worker.sqs.request-queue-url",
    )
    response_queue_url: str = url(
        "Queue for this daemon's answers alone.",
        framework="pipeline.orchestrator.worker.sqs.response-queue-url",
    )
    server_enabled: bool = switch(
        False,
        "Answer transitions for another coordinator.",
        framework="pipeline.orchestrator.worker.sqs.server-enabled",
    )
    visibility_ms: int = duration(
        "PT30S",
        "How long a received message is hidden.",
        minimum="PT1S",
        maximum=SQS_VISIBILITY_MAX,
        framework="pipeline.orchestrator.worker.sqs.visibility-timeout",
    )
    shared_secret_file: str = text(
        "",
        "File with the secret that signs messages (at least 16 bytes).",
        framework="pipeline.orchestrator.worker.sqs.shared-secret-ref",
    )
    signature_tolerance_ms: int = duration(
        "PT2M",
        "Largest difference between the signed time and ours.",
        framework="pipeline.orchestrator.worker.sqs.signature-tolerance",
    )


@attrs.frozen
class Worker:
    max_in_flight: int = integer(
        64,
        "Executions this process works on at once.",
        minimum=1,
        maximum=100_000,
        framework="pipeline.orchestrator.worker.max-in-flight",
    )
    request_timeout_ms: int = duration(
        "PT30S",
        "Deadline of one call to a remote worker; past it the outcome is unknown.",
        framework="pipeline.orchestrator.worker.rest.request-timeout",
    )
    rest: RestWorker = section(RestWorker, "Transitions run by another process over HTTP.")
    grpc: GrpcWorker = section(GrpcWorker, "Transitions run by another process over gRPC.")
    sqs: SqsWorker = section(SqsWorker, "Transitions run by another process over SQS.")


@attrs.frozen
class Admission:
    enabled: bool = switch(
        True,
        "Share max-concurrency between replicas as a durable budget per step and endpoint.",
        framework="pipeline.await-admission.enabled",
    )


@attrs.frozen
class Webhook:
    allow: tuple[str, ...] = texts(
        "Hosts that requests may be sent to, nothing else is called: api.example.org, *.example.org, 192.0.2.1, each "
        "with :port if only that port is meant. A name whose address is not public also needs that address or its "
        "network here, as 10.1.0.0/16.",
        reloadable=True,
    )
    timeout_ms: int = duration("PT30S", "Deadline of one request, from connecting to the answer.")


@attrs.frozen
class Kafka:
    bootstrap: str = text("", "Brokers as host:port,host:port; needed as soon as a step asks over Kafka.")
    client_id: str = text("tpfd", "Name shown to the brokers.")
    consumer_group: str = text(
        "",
        "Group that reads answers where a step names none, shared by all replicas and by nobody else; empty: "
        "tpfd-<pipeline>.",
    )
    properties: Mapping[str, str] = mapping(
        "More settings for the client library, as it names them (security.protocol, sasl.password …); with producer. "
        "or consumer. before the name for one side only.",
        masked=True,
    )


@attrs.frozen
class AwaitSqsPoller:
    enabled: bool = switch(False, "Read answers from a queue.", framework="tpf.await.sqs.poller.enabled")
    response_queue_url: str = url(
        "Queue with the answers; needed when enabled.", framework="tpf.await.sqs.response-queue-url"
    )
    start_delay_ms: int = duration(
        "PT0S", "Wait before the first receive.", minimum="PT0S", framework="tpf.await.sqs.poll-start-delay"
    )
    visibility_ms: int = duration(
        "PT30S",
        "How long a received message is hidden.",
        minimum="PT1S",
        maximum=SQS_VISIBILITY_MAX,
        framework="tpf.await.sqs.visibility-timeout",
    )
    completion_timeout_ms: int = duration(
        "PT5M", "Deadline for admitting one answer.", framework="tpf.await.sqs.completion-timeout"
    )
    wait_ms: int = duration(
        "PT1S",
        "How long one receive waits for messages.",
        minimum="PT0S",
        maximum=SQS_WAIT_MAX,
        framework="tpf.await.sqs.wait-time-seconds",
    )
    max_messages: int = integer(
        1, "Messages taken by one receive.", minimum=1, maximum=10, framework="tpf.await.sqs.max-messages"
    )


@attrs.frozen
class AwaitSqs:
    poller: AwaitSqsPoller = section(AwaitSqsPoller, "Answers over SQS (region and endpoint: dispatcher.sqs).")


@attrs.frozen
class Await:
    resume_token_secrets: tuple[SecretRef, ...] = secrets(
        "Secrets of resume tokens: the first signs, all verify. As {file: PATH}, {env: NAME} or {credential: NAME}, "
        "each with its kid where there are several.",
        framework="pipeline.orchestrator.resume-token-secret",
        reloadable=True,
    )
    aggregate_max_input_items: int = integer(
        10_000,
        "Most items gathered for one request; 0 is no limit.",
        framework="pipeline.orchestrator.await-aggregate-max-input-items",
    )
    aggregate_max_output_items: int = integer(
        10_000,
        "Most items taken from one answer; 0 is no limit.",
        framework="pipeline.orchestrator.await-aggregate-max-output-items",
    )
    live_idle_ms: int = duration(
        "PT5M", "A live session whose source has ended and that heard nothing for so long parks its execution."
    )
    live_poll_ms: int = duration(
        "500ms", "How often a live session looks for answers that another replica took.", minimum="10ms"
    )
    admission: Admission = section(Admission, "The budget of requests that are out.")
    webhook: Webhook = section(Webhook, "Requests by HTTP.")
    kafka: Kafka = section(Kafka, "Requests and answers over Kafka.")
    sqs: AwaitSqs = section(AwaitSqs, "Requests and answers over SQS.")


@attrs.frozen
class Circuit:
    enabled: bool = switch(
        False, "Stop calling what keeps failing.", framework='pipeline.resilience.circuit."…".enabled'
    )
    failure_threshold: int = integer(
        5,
        "Failures within the window that open the circuit.",
        minimum=1,
        framework='pipeline.resilience.circuit."…".failure-threshold',
    )
    failure_window_ms: int = duration(
        "PT1M", "The window.", framework='pipeline.resilience.circuit."…".failure-window'
    )
    open_duration_ms: int = duration(
        "PT30S", "How long it stays open.", framework='pipeline.resilience.circuit."…".open-duration'
    )
    half_open_max_permits: int = integer(
        1,
        "Trial calls at once after that.",
        minimum=1,
        framework='pipeline.resilience.circuit."…".half-open-max-permits',
    )
    half_open_retry_delay_ms: int = duration(
        "PT1S",
        "Wait of those who got no trial call.",
        framework='pipeline.resilience.circuit."…".half-open-retry-delay',
    )
    half_open_probe_lease_ms: int = duration(
        "PT30S",
        "A trial call that has not ended by then counts as gone.",
        framework='pipeline.resilience.circuit."…".half-open-probe-lease-duration',
    )


@attrs.frozen
class RetryAmplification:
    enabled: bool = switch(
        False,
        "Watch for work piling up faster than it ends.",
        framework="pipeline.kill-switch.retry-amplification.enabled",
    )
    window_ms: int = duration(
        "PT30S", "Span that is looked at.", framework="pipeline.kill-switch.retry-amplification.window"
    )
    inflight_slope_threshold: float = number(
        10.0,
        "Growth that is too much, in items per second.",
        minimum=0.0,
        maximum=1_000_000.0,
        framework="pipeline.kill-switch.retry-amplification.inflight-slope-threshold",
    )
    sustain_samples: int = integer(
        3,
        "Looks in a row that must agree.",
        minimum=1,
        framework="pipeline.kill-switch.retry-amplification.sustain-samples",
    )
    mode: Literal["fail-fast", "log-only"] = choice(
        "fail-fast", "What is done then.", framework="pipeline.kill-switch.retry-amplification.mode"
    )


@attrs.frozen
class Resilience:
    circuit: Circuit = section(Circuit, "Circuit breaker in front of remote workers and endpoints.")
    max_circuit_deferral_ms: int = duration(
        "PT15M",
        "Longest wait for an open circuit before the execution fails.",
        framework="pipeline.orchestrator.max-circuit-deferral",
    )
    retry_amplification: RetryAmplification = section(RetryAmplification, "Guard against retry storms.")
