"""Sections for what tpfd keeps its work in: stores, announcements, dead letters, rejected items."""

# ruff: noqa: RUF009 - the calls are field declarations, each with a default of its own

from __future__ import annotations

from typing import Final, Literal

import attrs

from tpfd.config.fields import choice, duration, integer, section, size, switch, text, url

SQS_WAIT_MAX: Final = "PT20S"
SQS_VISIBILITY_MAX: Final = "PT12H"


@attrs.frozen
class SqliteStore:
    path: str = text("/var/lib/tpfd/tpfd.db", "The database file; its folder must exist and be writable.")
    synchronous: Literal["full", "normal"] = choice(
        "full", "full survives a power cut; normal may lose the last commits in one."
    )
    group_commit_max: int = integer(
        256, "Most decisions committed by one transaction (one fsync).", minimum=1, maximum=10_000
    )
    busy_timeout_ms: int = duration("PT5S", "How long to wait for another process that is writing.", maximum="PT5M")


@attrs.frozen
class DynamodbTables:
    execution: str = text("", "Executions.", framework="pipeline.orchestrator.dynamo.execution-table")
    execution_key: str = text(
        "", "Idempotency keys of submits.", framework="pipeline.orchestrator.dynamo.execution-key-table"
    )
    execution_payload: str = text(
        "", "Payload manifests and chunks.", framework="pipeline.orchestrator.dynamo.execution-payload-table"
    )
    await_unit: str = text("", "Await units.", framework="pipeline.orchestrator.dynamo.await-unit-table")
    await_interaction: str = text(
        "", "Interactions.", framework="pipeline.orchestrator.dynamo.await-interaction-table"
    )
    await_interaction_key: str = text(
        "", "Look-up keys of interactions.", framework="pipeline.orchestrator.dynamo.await-interaction-key-table"
    )
    await_item: str = text("", "Facts per item.")
    await_block: str = text("", "Progress of units, in blocks of items.")
    await_late: str = text("", "Completions that changed nothing.")
    search: str = text("", "Search keys.")
    socket: str = text("", "Leases of provider sockets.")
    ingested: str = text("", "Objects that were taken in.")
    await_admission: str = text(
        "", "Permits of the admission budget.", framework="pipeline.orchestrator.dynamo.await-admission-table"
    )
    command_effect: str = text("", "Effects of command steps.")
    journal: str = text("", "Facts of executions and units.")
    worker: str = text("", "Registered workers.", framework="pipeline.orchestrator.dynamo.worker-table")
    release: str = text("", "Releases.", framework="pipeline.orchestrator.dynamo.release-table")


@attrs.frozen
class DynamodbStore:
    region: str = text("", "AWS region; empty takes the SDK's own.", framework="pipeline.orchestrator.dynamo.region")
    endpoint: str = url(
        "Another endpoint than the region's, for a local stand-in.",
        framework="pipeline.orchestrator.dynamo.endpoint-override",
    )
    table_prefix: str = text("tpf_", "Begins the name of every table that has none of its own below.")
    tables: DynamodbTables = section(
        DynamodbTables, "Table names; an empty one is table-prefix and the key with '_' for '-'."
    )
    inline_budget_bytes: int = size("100KiB", "A larger payload is stored in chunks beside the row.", maximum="350KiB")
    chunk_bytes: int = size("256KiB", "Size of such a chunk.", minimum="1KiB", maximum="350KiB")


@attrs.frozen
class Store:
    provider: Literal["memory", "sqlite", "dynamodb"] = choice(
        "sqlite",
        "Where executions live; memory forgets them when the process ends.",
        framework="pipeline.orchestrator.state-provider",
    )
    sqlite: SqliteStore = section(SqliteStore, "One file on this host; replicas on the host may share it.")
    dynamodb: DynamodbStore = section(DynamodbStore, "Tables shared by replicas on several hosts.")


@attrs.frozen
class DispatcherSqs:
    queue_url: str = url(
        "Work queue (standard, not FIFO); needed with provider: sqs.", framework="pipeline.orchestrator.queue-url"
    )
    region: str = text("", "AWS region; empty takes the SDK's own.", framework="pipeline.orchestrator.sqs.region")
    endpoint: str = url(
        "Another endpoint than the region's, for a local stand-in.",
        framework="pipeline.orchestrator.sqs.endpoint-override",
    )
    wait_ms: int = duration("PT20S", "How long one receive waits for messages.", minimum="PT0S", maximum=SQS_WAIT_MAX)
    visibility_ms: int = duration(
        "PT60S",
        "How long a received message is hidden; extended while it is worked on.",
        minimum="PT1S",
        maximum=SQS_VISIBILITY_MAX,
    )
    max_message_bytes: int = size(
        "1MiB", "Largest message, and largest batch, that the service takes.", minimum="256KiB", maximum="16MiB"
    )


@attrs.frozen
class Dispatcher:
    provider: Literal["event", "sqs"] = choice(
        "event",
        "How work is announced: event within this host, sqs between hosts.",
        framework="pipeline.orchestrator.dispatcher-provider",
    )
    sqs: DispatcherSqs = section(DispatcherSqs, "Announcements over SQS.")


@attrs.frozen
class DeadLetterSqs:
    queue_url: str = url(
        "Queue for dead letters; needed with provider: sqs.", framework="pipeline.orchestrator.dlq-url"
    )


@attrs.frozen
class DeadLetterFile:
    path: str = text("", "File that gets one JSON line per dead letter; needed with provider: file.")


@attrs.frozen
class DeadLetters:
    provider: Literal["log", "sqs", "file"] = choice(
        "log",
        "Who is told of executions that failed for good (they stay in the store as well).",
        framework="pipeline.orchestrator.dlq-provider",
    )
    sqs: DeadLetterSqs = section(DeadLetterSqs, "Dead letters over SQS (all else: dispatcher.sqs).")
    file: DeadLetterFile = section(DeadLetterFile, "Dead letters in a file.")


@attrs.frozen
class ItemRejectSqs:
    queue_url: str = url(
        "Queue for rejected items; needed with provider: sqs.", framework="pipeline.item-reject.sqs.queue-url"
    )


@attrs.frozen
class ItemRejectFile:
    path: str = text("", "File that gets one JSON line per rejected item; needed with provider: file.")


@attrs.frozen
class ItemRejects:
    provider: Literal["log", "memory", "file", "sqs"] = choice(
        "log",
        "Who is told of single items that a step gave up on.",
        framework="pipeline.item-reject.provider",
    )
    include_payload: bool = switch(
        False, "Send the item itself, not only its fingerprint.", framework="pipeline.item-reject.include-payload"
    )
    publish_failure_policy: Literal["CONTINUE", "FAIL_PIPELINE"] = choice(
        "CONTINUE",
        "What happens to the execution when the sink cannot be told.",
        framework="pipeline.item-reject.publish-failure-policy",
    )
    memory_capacity: int = integer(
        512,
        "Items kept with provider: memory; the oldest goes first.",
        minimum=1,
        maximum=1_000_000,
        framework="pipeline.item-reject.memory-capacity",
    )
    sqs: ItemRejectSqs = section(ItemRejectSqs, "Rejected items over SQS (all else: dispatcher.sqs).")
    file: ItemRejectFile = section(ItemRejectFile, "Rejected items in a file.")
