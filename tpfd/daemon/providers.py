"""Picks the concrete providers that the configuration names. The only module that knows them all."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random, SystemRandom

import attrs
import trio

from tpfd.blocking import Threads
from tpfd.config.model import Config
from tpfd.core.events import ExecutionPolicy
from tpfd.core.records import Fact, FactType
from tpfd.core.retry import Backoff
from tpfd.daemon.dispatching import SqsQueues
from tpfd.daemon.sampler import StoreStatistics
from tpfd.dispatch.lines import FileLetters, FileLines, FileRejects, LogLetters, LogRejects
from tpfd.dispatch.memory import MemoryRejects
from tpfd.dispatch.protocol import DeadLetters, ItemRejects
from tpfd.dispatch.sqs_letters import SqsLetters, SqsRejects
from tpfd.metrics import Metrics
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import EngineSettings
from tpfd.stores.dynamodb import DynamodbStore, open_dynamodb
from tpfd.stores.memory import MemoryStore
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import SqliteStore, open_sqlite

BOUNDARY_FACTS = frozenset(
    {
        FactType.RUN_SUBMITTED,
        FactType.INTERACTION_DISPATCHED,
        FactType.DISPATCH_COMPLETED,
        FactType.COMPLETION_ADMITTED,
        FactType.COMPLETION_LATE,
        FactType.COMPLETION_CONFLICTING,
        FactType.INTERACTION_TIMED_OUT,
        FactType.RESUME_RELEASED,
        FactType.PUBLICATION_PREPARED,
        FactType.PUBLICATION_COMPLETED,
        FactType.RUN_SUCCEEDED,
        FactType.RUN_FAILED,
        FactType.RUN_CANCELLED,
        FactType.RUN_REDRIVEN,
    }
)
"""What `journal: boundaries` keeps: what came in, went out and ended."""


@asynccontextmanager
async def open_store(config: Config, metrics: Metrics | None = None) -> AsyncIterator[Store]:
    """The store, open for the length of the block.

    Args:
        metrics: count requests to AWS, and their items; None: nobody looks.

    Raises:
        ConfigError: it cannot be opened.
    """
    if config.store.provider == "memory":
        yield MemoryStore(keep_fact=_keeps(config.execution.journal))
        return
    if config.store.provider == "dynamodb":
        metrics = metrics or Metrics()
        dynamodb = config.store.dynamodb
        repeating = Repeating(get_logger("tpfd.store"))
        async with open_dynamodb(
            region=dynamodb.region,
            endpoint=dynamodb.endpoint,
            table_prefix=dynamodb.table_prefix,
            table_names=attrs.asdict(dynamodb.tables),
            keep_fact=_keeps(config.execution.journal),
            observe=metrics.aws_requests.add,
            observe_item=metrics.store_items.add,
            failed=lambda error: repeating.failed("journal_move_failed", code=error.code, message=error.message),
            random=random_source(),
        ) as shared:
            yield shared
        return
    sqlite = config.store.sqlite
    async with open_sqlite(
        Path(sqlite.path),
        synchronous=sqlite.synchronous,
        group_commit_max=sqlite.group_commit_max,
        busy_timeout_ms=sqlite.busy_timeout_ms,
        keep_fact=_keeps(config.execution.journal),
    ) as store:
        yield store


def statistics_of(store: Store) -> Callable[[], StoreStatistics] | None:
    """What the store says of its transactions, if it says anything."""
    return store.statistics if isinstance(store, SqliteStore | DynamodbStore) else None


def _keeps(journal: str) -> Callable[[Fact], bool]:
    match journal:
        case "full":
            return lambda _: True
        case "boundaries":
            return lambda fact: fact.type in BOUNDARY_FACTS
        case _:
            return lambda _: False


def node_name(config: Config) -> str:
    """Name of this process, for people."""
    return config.node.name or f"{socket.gethostname()}:{os.getpid()}"


def random_source() -> Random:
    """Randomness for ids and jitter."""
    return Random(SystemRandom().getrandbits(128))


def policy(config: Config) -> ExecutionPolicy:
    """The settings that transitions depend on."""
    return ExecutionPolicy(
        lease_ms=config.lease.duration_ms,
        skew_ms=config.lease.skew_ms,
        max_retries=config.retry.max_retries,
        max_worker_losses=config.retry.max_worker_losses,
        backoff=Backoff(config.retry.delay_ms, config.retry.multiplier, config.retry.cap_ms, config.retry.jitter),
        max_deferral_ms=config.resilience.max_circuit_deferral_ms,
        # `execution.ttl` is the least time for all, `retention` the time by outcome.
        succeeded_ttl_ms=max(config.execution.ttl_ms, config.retention.succeeded_ms),
        failed_ttl_ms=max(config.execution.ttl_ms, config.retention.failed_ms),
    )


def engine_settings(config: Config) -> EngineSettings:
    """The settings that tasks depend on."""
    return EngineSettings(
        max_in_flight=config.worker.max_in_flight,
        sweep_interval_ms=config.sweep.interval_ms,
        sweep_limit=config.sweep.limit,
        live_idle_ms=config.await_.live_idle_ms,
        live_poll_ms=config.await_.live_poll_ms,
        max_result_items=config.await_.aggregate_max_output_items,
        max_input_items=config.await_.aggregate_max_input_items,
        max_payload_bytes=config.execution.max_payload_bytes,
    )


def dead_letters(config: Config, queues: SqsQueues) -> DeadLetters:
    """Where dead letters go. Raises ConfigError: no client can be made."""
    if config.dead_letters.provider == "sqs":
        return SqsLetters(queues.queue(config.dead_letters.sqs.queue_url))
    if config.dead_letters.provider == "file":
        return FileLetters(FileLines(Path(config.dead_letters.file.path), Threads(1)))
    return LogLetters()


def item_rejects(config: Config, queues: SqsQueues) -> ItemRejects:
    """Where rejected items go. Raises ConfigError: no client can be made."""
    rejects = config.item_rejects
    if rejects.provider == "sqs":
        return SqsRejects(queues.queue(rejects.sqs.queue_url))
    if rejects.provider == "file":
        return FileRejects(FileLines(Path(rejects.file.path), Threads(1)))
    if rejects.provider == "memory":
        return MemoryRejects(rejects.memory_capacity)
    return LogRejects()


def step_threads(config: Config) -> trio.CapacityLimiter:
    """Bounds the threads of step functions: as many as attempts, at least as many as one step may use."""
    return trio.CapacityLimiter(max(config.worker.max_in_flight, config.steps.max_concurrency))
