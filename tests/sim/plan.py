"""What the run of a seed is like: drawn before anything happens."""

from __future__ import annotations

from random import Random

from attrs import evolve, frozen

from tests.sim.coverage import OF_HINTS, Fault
from tests.sim.pipelines import scenarios
from tpfd.core.publication import OnExisting

THEMES: tuple[tuple[frozenset[Fault], tuple[str, ...]], ...] = (
    # Deployments in the middle of live sessions whose answers do not come.
    (frozenset({Fault.DRAIN, Fault.DRAIN_ALL, Fault.ANSWER_SLOW, Fault.ANSWER_NEVER}), ("hasty", "live")),
    # Workers that are lost again and again.
    (frozenset({Fault.KILL, Fault.KILL_AFTER_EFFECT, Fault.FROZEN, Fault.STEP_SLOW}), ("chain", "people", "nested")),
    # Everybody at the same rows.
    (frozenset({Fault.SLOW_STORE, Fault.ANSWER_ELSEWHERE, Fault.BROKER_DELAYS}), ("people", "total", "hooks")),
)
"""Faults and pipelines that seldom meet by chance and should."""


@frozen
class Plan:
    """What a seed draws before anything happens.

    Attributes:
        places: attempts that a replica runs at a time.
        batches: pipeline and number of items of each execution.
        one_host: the replicas share a host, and its clock.
        on_existing: what publications do about another object at their key.
        trouble_s: how long things go wrong, in seconds.
        pause_s: mean time between two strikes.
        latency_s: longest time of a call's way to the store, and of the way back.
        removes: the run lasts until everything is old enough to be removed.
        chunked: payloads are stored apart.
        hinted: processes tell each other of work over a queue.
        visibility_s: of its messages, in seconds.
    """

    replica_count: int
    places: int
    batches: tuple[tuple[str, int], ...]
    faults: frozenset[Fault]
    one_host: bool
    on_existing: OnExisting
    trouble_s: float
    pause_s: float
    latency_s: float
    removes: bool
    chunked: bool
    hinted: bool
    visibility_s: int

    @classmethod
    def draw(cls, random: Random, hints: Random, also: frozenset[Fault]) -> Plan:
        """Few kinds of faults at a time, so that each gets its turn to matter.

        Args:
            hints: draws what concerns work hints: the runs without them are what they would be if there were none.
            also: faults that belong to the run whatever it draws.
        """
        share = random.choice((0.0, 0.15, 0.15, 0.4, 0.4, 0.8))
        themed, names = random.choice(THEMES) if random.random() < 0.3 else (frozenset(), sorted(scenarios()))
        names = random.sample(names, min(len(names), random.randint(2, 4)))
        most = random.choice((3, 8, 8, 20))
        batches = tuple((random.choice(names), random.randint(0, most)) for _ in range(random.randint(3, 10)))
        return cls(
            replica_count=random.randint(2, 3),
            places=random.choice((1, 4, 4)),
            batches=batches,
            faults=also | themed | {fault for fault in Fault if fault not in OF_HINTS and random.random() < share},
            on_existing=random.choice(tuple(OnExisting)),
            one_host=random.random() < 0.3,
            trouble_s=random.uniform(20, 80),
            pause_s=random.choice((0.7, 2.0, 5.0)),
            latency_s=random.choice((0.0, 0.0, 0.01, 0.1)),
            removes=random.random() < 0.15,
            chunked=random.random() < 0.2,
            hinted=False,
            visibility_s=0,
        )._with_hints(hints)

    def _with_hints(self, random: Random) -> Plan:
        hinted = random.random() < 0.35 or not self.faults.isdisjoint(OF_HINTS)
        if not hinted:
            return self
        share = random.choice((0.0, 0.3, 0.3, 0.6))
        drawn = {fault for fault in OF_HINTS if random.random() < share}
        return evolve(self, hinted=True, visibility_s=random.choice((2, 6, 20)), faults=self.faults | drawn)
