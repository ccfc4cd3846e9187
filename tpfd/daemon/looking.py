"""Opens whatever store is configured, only to look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import frozen

from tpfd.clock import SystemClock
from tpfd.config.model import Config
from tpfd.core.records import TenantId
from tpfd.daemon.connecting import TABLES, connections
from tpfd.daemon.doctor import Count, Doctor, Shelves
from tpfd.daemon.findings import Finding
from tpfd.daemon.providers import open_store
from tpfd.errors import ConfigError, Problem
from tpfd.program import Program
from tpfd.stores.sqlite_looking import FileState, look_at_sqlite

MIB = 2**20
WAL_MAX_BYTES = 256 * MIB
"""Four times what a daemon lets it grow to before it writes it back."""
FREE_MIN_BYTES = 5 * 1024 * MIB
FREE_MIN_SHARE = 0.05


@frozen
class Diagnosis:
    """What `examine` found."""

    findings: tuple[Finding, ...]
    counts: tuple[Count, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to do."""
        return all(finding.ok for finding in self.findings)


async def examine(config: Config, programs: Mapping[str, Program], tenant_id: TenantId) -> Diagnosis:
    """Looks at the configured store, which daemons may be using.

    Raises:
        ConfigError: there is no such store, or nobody else can look at it.
        StoreError: it cannot be read.
    """
    reached = await connections(config, programs)
    if not all(finding.ok for finding in reached if finding.path == TABLES):
        return Diagnosis(tuple(reached), ())  # there is no store to look at
    async with _shelves(config) as (store, findings):
        now = SystemClock().now_ms()
        doctor = Doctor(store=store, config=config, programs=programs, tenant_id=tenant_id, now=now)
        found = await doctor.look()
    return Diagnosis((*findings, *reached, *found), tuple(doctor.counts))


@asynccontextmanager
async def _shelves(config: Config) -> AsyncIterator[tuple[Shelves, list[Finding]]]:
    """The reading half of the store, and what there is to say of the store itself."""
    if config.store.provider == "memory":
        message = "memory lives inside its daemon and nobody else can look at it; use tpfd list and /q/metrics"
        raise ConfigError([Problem("$.store.provider", message)])
    if config.store.provider == "dynamodb":
        async with open_store(config) as store:
            yield store, []
        return
    sqlite = config.store.sqlite
    async with look_at_sqlite(Path(sqlite.path), busy_timeout_ms=sqlite.busy_timeout_ms) as look:
        yield look, file_findings(sqlite.path, await look.file_state())


def file_findings(path: str, state: FileState) -> list[Finding]:
    """What there is to say of a database file and its disk."""
    low = state.free_bytes < min(FREE_MIN_BYTES, FREE_MIN_SHARE * state.disk_bytes)
    disk = f"{state.free_bytes // MIB} MiB free of {state.disk_bytes // MIB}"
    wal = f"{state.wal_bytes // MIB} MiB"
    return [
        Finding("store", f"{path}: version {state.version}, {state.file_bytes // MIB} MiB", path="$.store.sqlite.path"),
        Finding("disk", disk, "free some space: when it is full, submits and completions answer 503" if low else ""),
        Finding(
            "write-ahead log",
            wal,
            "something keeps it from being written back: look for a long backup, or a process that hangs with it open"
            if state.wal_bytes > WAL_MAX_BYTES
            else "",
        ),
    ]
