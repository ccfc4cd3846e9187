"""One run: a cluster is built, work is submitted, things go wrong, and in the end all must be well."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import trio
from attrs import define, evolve, field, frozen

from tests.engine.world import Process, World
from tests.sim import clock
from tests.sim.cases import Cases
from tests.sim.clients import Clients
from tests.sim.coverage import Coverage, Fault
from tests.sim.faults import Dice, StepTroubles
from tests.sim.hinted import UnreliableSqs, UnreliablyHintedWorld
from tests.sim.hooks import Hooks
from tests.sim.invariants import Invariants
from tests.sim.links import Links
from tests.sim.nemesis import Nemesis
from tests.sim.pipelines import FAULTS, Scenario, scenarios
from tests.sim.plan import Plan
from tests.sim.providers import Answers, Channel, Hosts, People, SocketProvider
from tests.sim.replicas import Replica
from tests.sim.settling import Settling
from tests.sim.trace import Trace
from tests.sim.watched import WatchedStore, watching
from tpfd import payloads
from tpfd.awaits import live
from tpfd.core import cleanup, itemised
from tpfd.core.events import ExecutionPolicy
from tpfd.core.retry import Backoff
from tpfd.engine import claims, continuations, hints, leases
from tpfd.runtime import EngineSettings
from tpfd.transports import broker_link, sockets, webhook

TTL_MS = 1_200_000
"""How long ended executions are kept: longer than any run takes to settle."""
POLICY = ExecutionPolicy(
    lease_ms=6_000,
    skew_ms=500,
    max_retries=2,
    max_worker_losses=1,
    backoff=Backoff(500, 2.0, 4_000, 0.2),
    max_deferral_ms=15_000,
    succeeded_ttl_ms=TTL_MS,
    failed_ttl_ms=TTL_MS,
)
SETTINGS = EngineSettings(
    sweep_interval_ms=5_000,
    sweep_limit=3,
    live_idle_ms=4_000,
    live_poll_ms=500,
    hand_back_ms=1_000,
)
SMALL: tuple[tuple[Any, str, int], ...] = (
    (itemised, "BLOCK_SIZE", 2),
    (itemised, "CONTINUE_PAGE", 2),
    (continuations, "PAGE_COUNT", 2),
    (continuations, "SCAN_PAGES", 2),
    (payloads, "PAGE_COUNT", 2),
    (claims, "CLAIM_PAGE", 2),
    (leases, "RENEW_PAGE", 2),
    (hints, "SEND_PAGE", 2),
    (live, "DISPATCH_PAGE", 3),
    (sockets, "DELIVERY_PAGE", 3),
    (broker_link, "LET_GO_PAGE", 2),
    (webhook, "SEND_PAGE", 2),
    (cleanup, "CLEANUP_PAGE", 2),
)
"""Blocks and pages so small that a handful of items has all borders."""
CHUNKED: tuple[tuple[Any, str, int], ...] = ((payloads, "INLINE_CHARS", 40), (payloads, "CHUNK_CHARS", 30))
"""Payloads that hardly ever stand in their record."""


@frozen
class Report:
    """What came of a run."""

    seed: int
    violations: tuple[str, ...]
    coverage: Coverage
    digest: str
    line_count: int


def simulate(
    seed: int,
    tell: Callable[[str], None] | None = None,
    also: frozenset[Fault] = frozenset(),
    *,
    through: str = "websocket",
) -> Report:
    """Runs one seed.

    Args:
        tell: told each line of the trace; None: nobody.
        also: faults that belong to the run whatever it draws.
        through: see `scenarios`.
    """
    random = Random(seed)
    plan = Plan.draw(random, Random(f"hints of {seed}"), also)
    trace, coverage = Trace(tell), Coverage()
    dice = Dice(random, plan.faults, coverage, trace)
    violations: list[str] = []
    with _patched(*SMALL, *(CHUNKED if plan.chunked else ())):
        try:
            clock.run(seed, functools.partial(_run, plan, dice, violations, through))
        except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - whatever ended a replica is what we look for
            violations.append("".join(traceback.format_exception(error)))
    return Report(seed, tuple(violations), coverage, trace.digest, trace.line_count)


@contextmanager
def _patched(*attributes: tuple[Any, str, int]) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in attributes:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


async def _run(plan: Plan, dice: Dice, violations: list[str], through: str) -> None:
    troubles = StepTroubles(dice)
    FAULTS.set(troubles)
    batches = dict(plan.batches)
    used: Mapping[str, Scenario] = {name: one for name, one in scenarios(through).items() if name in batches}
    store = WatchedStore(one_host=plan.one_host)
    async with trio.open_nursery() as nursery:
        make: Callable[..., World] = World
        if plan.hinted:
            make = functools.partial(
                UnreliablyHintedWorld, sqs=UnreliableSqs(dice=dice), visibility_s=plan.visibility_s
            )
        world = make(
            nursery=nursery,
            programs={name: one.program for name, one in used.items()},
            store=store,
            policy=POLICY,
            settings=evolve(SETTINGS, max_in_flight=plan.places),
        )
        cluster = Cluster(plan=plan, dice=dice, world=world, store=store, scenarios=used, troubles=troubles)
        cluster.invariants.violations = violations
        with watching(store):
            await cluster.live()
        nursery.cancel_scope.cancel("the run is over")


@define(eq=False, kw_only=True)
class Cluster:
    """All that takes part in a run."""

    plan: Plan
    dice: Dice
    world: World
    store: WatchedStore
    scenarios: Mapping[str, Scenario]
    troubles: StepTroubles
    dead: set[str] = field(factory=set)
    sqs: UnreliableSqs | None = field(init=False)
    hosts: Hosts = field(init=False)
    invariants: Invariants = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sqs = self.world.sqs if isinstance(self.world, UnreliablyHintedWorld) else None
        self.invariants = Invariants(
            store=self.store,
            disk=self.world.disk,
            letters=self.world.letters,
            scenarios=self.scenarios,
            troubles=self.troubles,
            faults=self.dice.faults,
            policy=self.world.policy,
            trace=self.dice.trace,
            end=self.world.nursery.cancel_scope.cancel,
        )
        self.troubles.violate = self.invariants.violate
        cases = Cases(self.store, self.dice.coverage, self.dead.__contains__)
        self.store.on_decision = _both(cases.on_decision, self.invariants.on_decision)
        self.store.on_written = _both(self.invariants.on_write, cases.on_write)
        self.hosts = Hosts(replicas=[], dice=self.dice)

    async def live(self) -> None:
        """Troubles first, then peace, then the account."""
        async with trio.open_nursery() as outside:
            channel = Channel(nursery=outside, hosts=self.hosts, dice=self.dice, coverage=self.dice.coverage)
            answers = Answers(channel=channel, dice=self.dice)
            await self._start_replicas(answers)
            self._start_providers(outside, answers)
            clients, nemesis = await self._trouble(outside)
            self._calm()
            settling = Settling(
                store=self.store,
                world=self.world,
                scenarios=self.scenarios,
                clients=clients,
                channel=channel,
                nemesis=nemesis,
                invariants=self.invariants,
                sqs=self.sqs,
            )
            await settling.run()
            outside.cancel_scope.cancel("everything has been said")
        if self.plan.removes and not self.invariants.violations:
            await settling.remove()

    async def _start_replicas(self, answers: Answers) -> None:
        hooks = Hooks(scenarios=self.scenarios, answers=answers, dice=self.dice)
        links = Links(scenarios=self.scenarios, answers=answers, dice=self.dice)
        shared = self._clock("the host")
        for name in "abc"[: self.plan.replica_count]:
            replica = Replica(
                name=name,
                world=self.world,
                dice=self.dice,
                clock=shared if self.plan.one_host else self._clock(name),
                watches=self.plan.one_host,
                latency_s=self.plan.latency_s,
                beside=(hooks.serve, links.serve),
                on_existing=self.plan.on_existing,
                dead=self.dead,
                drained=self._drained,
            )
            await self.world.nursery.start(replica.run)
            self.hosts.replicas.append(replica)

    def _clock(self, name: str) -> clock.WallClock:
        ahead_ms = self.dice.random.randint(-20_000, 20_000)
        return clock.WallClock(ahead_ms if self.dice.happens(Fault.CLOCK_OFF, 0.7, name) else 0)

    def _start_providers(self, outside: trio.Nursery, answers: Answers) -> None:
        hosts, dice = self.hosts, self.dice
        for scenario in self.scenarios.values():
            if "websocket" in scenario.steps:
                for _ in range(2):
                    provider = SocketProvider(scenario=scenario, hosts=hosts, answers=answers, dice=dice)
                    outside.start_soon(provider.run)
        people = People(scenarios=self.scenarios, hosts=hosts, channel=answers.channel, dice=dice)
        outside.start_soon(people.run)

    async def _trouble(self, outside: trio.Nursery) -> tuple[Clients, Nemesis]:
        """Work is submitted, and things go wrong."""
        hosts, dice, plan = self.hosts, self.dice, self.plan
        clients = Clients(hosts=hosts, dice=dice, batches=plan.batches, within_s=plan.trouble_s / 2)
        nemesis = Nemesis(
            world=self.world, store=self.store, hosts=hosts, dice=dice, pause_s=plan.pause_s, sqs=self.sqs
        )
        outside.start_soon(clients.run)
        with trio.move_on_after(plan.trouble_s):
            await nemesis.run()
        return clients, nemesis

    def _calm(self) -> None:
        """From here on all goes well."""
        self.dice.active = False
        self.dice.trace.note("peace")
        for replica in self.hosts.replicas:
            replica.clock.ahead_ms = 0
            replica.gate.calm()
        self.world.letters.failing = None
        if self.sqs is not None:
            self.sqs.away(None)

    def _drained(self, process: Process) -> None:
        """A process has ended in good order."""
        if self.sqs is not None:
            self.invariants.on_drained(process, self.sqs.hints())


def _both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def both(*args: Any) -> None:
        first(*args)
        second(*args)

    return both
