"""Picks the concrete providers that the configuration names. The only module that knows them all."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random, SystemRandom

import trio

from tpfd.blocking import Threads
from tpfd.clock import Clock
from tpfd.config.model import Config
from tpfd.core.events import ExecutionPolicy
from tpfd.core.publication import OnExisting
from tpfd.core.records import Fact, FactType
from tpfd.core.retry import Backoff
from tpfd.dispatch.lines import FileLetters, FileLines, FileRejects, LogLetters, LogRejects
from tpfd.dispatch.memory import MemoryRejects
from tpfd.dispatch.protocol import DeadLetters, ItemRejects
from tpfd.errors import ConfigError, Problem
from tpfd.objects.filesystem import FilesystemSource
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.formats import Encoder, make_encoder
from tpfd.objects.keys import template_problem
from tpfd.objects.mapping import ObjectReader
from tpfd.objects.protocol import AfterAction, AfterKind
from tpfd.objects.publisher import ObjectPublisher
from tpfd.pipeline.model import ObjectFormat
from tpfd.program import Program
from tpfd.runtime import EngineSettings
from tpfd.stores.memory import MemoryStore
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import SqliteStore, open_sqlite
from tpfd.stores.sqlite_writer import WriterStatistics

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

OBJECT_THREADS = 4


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[Store]:
    """The store, open for the length of the block.

    Raises:
        ConfigError: it cannot be opened.
    """
    if config.store.provider == "memory":
        yield MemoryStore(keep_fact=_keeps(config.execution.journal))
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


def statistics_of(store: Store) -> Callable[[], WriterStatistics] | None:
    """What the store says of its writer, if it has one."""
    return store.statistics if isinstance(store, SqliteStore) else None


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


def dead_letters(config: Config) -> DeadLetters:
    """Where dead letters go."""
    if config.dead_letters.provider == "file":
        return FileLetters(FileLines(Path(config.dead_letters.file.path), Threads(1)))
    return LogLetters()


def item_rejects(config: Config) -> ItemRejects:
    """Where rejected items go."""
    rejects = config.item_rejects
    if rejects.provider == "file":
        return FileRejects(FileLines(Path(rejects.file.path), Threads(1)))
    if rejects.provider == "memory":
        return MemoryRejects(rejects.memory_capacity)
    return LogRejects()


def publishers(programs: Mapping[str, Program], clock: Clock) -> dict[str, ObjectPublisher]:
    """A publisher for each pipeline that publishes its output.

    Raises:
        ConfigError: a target cannot be used.
    """
    found: dict[str, ObjectPublisher] = {}
    problems: list[Problem] = []
    for program in programs.values():
        output = program.pipeline.output
        if output is None:
            continue
        target = program.pipeline.publish[output.target]
        path = f"{program.pipeline_id}: $.publish.{output.target}"
        if target.provider != "filesystem":
            problems.append(Problem(f"{path}.provider", f"{target.provider} is not supported by this release"))
            continue
        if (fault := template_problem(target.key_template)) or "{groupKey}" in target.key_template:
            message = fault or "{groupKey} is not supported by this release: an execution has one output object"
            problems.append(Problem(f"{path}.naming.keyTemplate", message))
            continue
        if output.mapper is not None:
            problems.append(Problem(f"{path}.mapper", "an output mapper is not supported by this release"))
            continue
        found[program.pipeline_id] = ObjectPublisher(
            target=FilesystemTarget(_folder(target.root, target.prefix), Threads(OBJECT_THREADS)),
            name=output.target,
            key_template=target.key_template,
            on_existing=OnExisting(target.on_existing),
            make_encoder=_encoders(program, target.format, target.settings),
            now_epoch_ms=clock.now_ms,
        )
    if problems:
        raise ConfigError(problems)
    return found


def _encoders(program: Program, form: ObjectFormat, settings: Mapping[str, object]) -> Callable[[], Encoder]:
    columns = [field.name for field in program.pipeline.types.record(program.pipeline.output_type).fields]
    formula_safe = settings.get("formulaSafe") is True
    return lambda: make_encoder(form, columns, formula_safe=formula_safe)


def sources(
    programs: Mapping[str, Program], clock: Clock, max_payload_bytes: int
) -> list[tuple[Program, str, FilesystemSource, ObjectReader, AfterAction]]:
    """The object sources of all pipelines that have one and poll it.

    Raises:
        ConfigError: a source cannot be used.
    """
    found = []
    problems: list[Problem] = []
    for program in programs.values():
        binding = program.pipeline.input
        if binding is None:
            continue
        spec = program.pipeline.sources[binding.source]
        path = f"{program.pipeline_id}: $.sources.{binding.source}"
        if spec.provider != "filesystem":
            problems.append(Problem(f"{path}.provider", f"{spec.provider} is not supported by this release"))
            continue
        if binding.mapper is not None:
            problems.append(Problem(f"{path}.mapper", "an input mapper is not supported by this release"))
            continue
        if not spec.poll_enabled:
            continue
        folder = _folder(spec.root, spec.prefix)
        if not folder.is_dir():
            problems.append(Problem(f"{path}.location.root", f"{folder.absolute()} is not a folder; create it"))
            continue
        source = FilesystemSource(
            folder,
            blocking=Threads(OBJECT_THREADS),
            now_epoch_ms=clock.now_ms,
            include=spec.include or ("*",),
            exclude=spec.exclude,
            identity_fields=spec.identity_fields,
            settle_ms=min(1_000, 2 * spec.poll_interval_ms),
        )
        record = program.pipeline.types.record(program.pipeline.input_type)
        reader = ObjectReader(source, spec.payload_mode, [field.name for field in record.fields], max_payload_bytes)
        kind = AfterKind(spec.after)
        after = AfterAction(kind=kind) if spec.move_to is None else AfterAction(kind=kind, folder=spec.move_to)
        found.append((program, binding.source, source, reader, after))
    if problems:
        raise ConfigError(problems)
    return found


def _folder(root: str, prefix: str) -> Path:
    return Path(root) / prefix if prefix else Path(root)


def step_threads(config: Config) -> trio.CapacityLimiter:
    """Bounds the threads of step functions: as many as attempts, at least as many as one step may use."""
    return trio.CapacityLimiter(max(config.worker.max_in_flight, config.steps.max_concurrency))
