"""The nursery tree of the daemon, its signals and its drain.

::

    run
    └─ store, socket server, keepers          open first, close last
       └─ work      attempts, live sessions, webhooks on their way
          └─ intake HTTP and WebSocket, claim loop, sweeper, tidying, pollers, webhook senders, broker links

A drain cancels *intake*, gives *work* its grace, hands back what is left, and ends. Work that needs the outside (a live
session) cannot go on without intake and is handed back at once. A second signal ends the process where it stands: the
store loses nothing, leases bring the work back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable

import trio

from tpfd.config.load import Loaded
from tpfd.config.model import Config
from tpfd.config.startup import check_startup
from tpfd.daemon.assembly import Daemon, assemble
from tpfd.daemon.connecting import CLOCK, connections
from tpfd.daemon.providers import open_store
from tpfd.errors import ConfigError, Problem
from tpfd.metrics import Metrics
from tpfd.ops import logs, sdnotify
from tpfd.ops.logs import get_logger

log = get_logger("tpfd.daemon")

STUCK_EXIT_S = 2.0
"""Time after grace and hand-back in which cancelled step functions must have ended."""
SECOND_SIGNAL_EXIT = 128 + signal.SIGTERM


def run(loaded: Loaded, reread: Callable[[], Loaded]) -> int:
    """Runs the daemon until it was drained.

    Args:
        loaded: the configuration.
        reread: reads it again, for a reload.

    Returns:
        0 after a drain.

    Raises:
        ConfigError: it cannot start like this; every problem.
    """
    config = loaded.config
    logs.configure(config.telemetry.log.format, config.telemetry.log.level, environ=os.environ)
    try:
        trio.run(_main, loaded, reread)
    except BaseExceptionGroup as group:
        # Whatever else was cancelled with it, a configuration that cannot be used is the news.
        errors, _ = group.split(ConfigError)
        if errors is None:
            raise
        raise ConfigError([problem for error in _leaves(errors) for problem in error.problems]) from None
    return 0


def _leaves(group: BaseExceptionGroup[ConfigError]) -> list[ConfigError]:
    found: list[ConfigError] = []
    for inner in group.exceptions:
        found.extend(_leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner])
    return found


async def _main(loaded: Loaded, reread: Callable[[], Loaded]) -> None:
    notifier = sdnotify.Notifier.from_environ(os.environ)
    metrics = Metrics()
    async with open_store(loaded.config, metrics) as store:
        draining = trio.Event()
        daemon = assemble(loaded, reread, store, draining, metrics)
        findings = check_startup(loaded.config, daemon.needs)
        if findings.errors:
            raise ConfigError(findings.errors)
        for warning in findings.warnings:
            log.warning("startup_advice", path=warning.path, message=warning.message)
        await _reach_out(loaded.config, daemon)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with daemon.webhooks.connections, trio.open_nursery() as services:
                services.start_soon(daemon.keeper.run)
                services.start_soon(daemon.sockets.run)
                services.start_soon(store.watch, daemon.runtime.bells.ring_all)
                services.start_soon(daemon.sampler.run)
                if daemon.hinting is not None:
                    services.start_soon(daemon.hinting.run)
                if (interval_s := sdnotify.watchdog_interval_s(os.environ)) is not None:
                    services.start_soon(sdnotify.watchdog, notifier, interval_s)
                services.start_soon(_last_resort, daemon, draining)
                await _work(daemon, draining, signals, services, notifier)
                services.cancel_scope.cancel("the daemon has drained")
    log.info("stopped")


async def _reach_out(config: Config, daemon: Daemon) -> None:
    """Looks at what the configuration names outside. A strict start goes no further without it; another one waits.

    Raises:
        ConfigError: strict-startup is on, and something is not there or cannot be reached; all of it.
    """
    found = [one for one in await connections(config, daemon.runtime.programs) if not one.ok]
    missing = [Problem(one.path, f"{one.about}: {one.said}; {one.advice}") for one in found if one.about != CLOCK]
    if config.strict_startup and missing:
        raise ConfigError(missing)
    for one in found:
        log.warning("startup_advice", path=one.path, message=f"{one.about}: {one.said}; {one.advice}")


async def _work(
    daemon: Daemon,
    draining: trio.Event,
    signals: AsyncIterator[int],
    services: trio.Nursery,
    notifier: sdnotify.Notifier,
) -> None:
    async with trio.open_nursery() as work:
        async with trio.open_nursery() as intake:
            address = await intake.start(daemon.serve_http)
            intake.start_soon(daemon.claims.run, work)
            if daemon.hints is not None:
                work.start_soon(daemon.hints.run, work)
            intake.start_soon(daemon.sweeper.run)
            intake.start_soon(daemon.tidying.run)
            for poller in daemon.ingests:
                intake.start_soon(poller.run)
            for sender in daemon.webhooks.senders:
                intake.start_soon(sender.run, work)
            daemon.brokers.start(intake)
            log.info("ready", address=address, pipelines=sorted(daemon.runtime.programs), node=daemon.runtime.node)
            await notifier.ready(f"serving {', '.join(sorted(daemon.runtime.programs))} on {address}")
            await _first_stop(signals, daemon, notifier)
            draining.set()
            daemon.runtime.bells.ring_all()
            services.start_soon(_second_stop, signals)
            log.info("draining", running=daemon.keeper.held_count, grace_ms=daemon.grace_ms)
            await notifier.stopping("draining", daemon.grace_ms)
            daemon.attempts.release_live()
            intake.cancel_scope.cancel("drain")
        with trio.move_on_after(daemon.grace_ms / 1000):
            await daemon.claims.idle()
            await daemon.webhooks.idle()
            if daemon.hints is not None:
                await daemon.hints.idle()
        left = daemon.keeper.held_count
        if left:
            log.warning("grace_over", handing_back=left)
        work.cancel_scope.cancel("the drain's grace is over")
    log.info("drained")


async def _first_stop(signals: AsyncIterator[int], daemon: Daemon, notifier: sdnotify.Notifier) -> None:
    """Returns with the first signal to stop; reloads on SIGHUP."""
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("signal", name=signal.Signals(number).name)
            return
        await notifier.reloading()
        daemon.reload()
        await notifier.ready("reloaded")


async def _second_stop(signals: AsyncIterator[int]) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            log.warning("stopped_at_once", name=signal.Signals(number).name)
            _exit(SECOND_SIGNAL_EXIT)


async def _last_resort(daemon: Daemon, draining: trio.Event) -> None:
    """Ends the process when a cancelled step function does not end.

    Trio cannot return while a task lives. Such an attempt is handed back for it; it can commit nothing any more,
    because its fence is gone.
    """
    await draining.wait()
    await trio.sleep(daemon.grace_ms / 1000 + STUCK_EXIT_S)
    with trio.CancelScope(shield=True):
        for lease in daemon.keeper.held():
            log.error(
                "step_not_stopping",
                execution_id=lease.record.execution_id,
                pipeline=lease.record.pipeline_id,
                step_index=lease.record.step_index,
            )
            await daemon.attempts.hand_back(lease, "drain; its step does not stop")
        _exit(0)


_exit: Callable[[int], None] = os._exit
"""Ends the process without waiting for its tasks and threads."""
