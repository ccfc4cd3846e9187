"""What goes wrong, drawn from the seed: at the store, in steps, to replicas, and by operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import trio
from attrs import define, field

from tests.engine.gate import Gate
from tests.sim.coverage import Coverage, Fault
from tests.sim.trace import Trace
from tpfd.core.records import ExecutionId
from tpfd.errors import InternalError, NonRetryableError, RetryableStepError, StoreError
from tpfd.steps import StepContext

T = TypeVar("T")


@define(eq=False)
class Dice:
    """Decides what happens, for everybody.

    Attributes:
        faults: those that this run has drawn; only looked up, never iterated.
        active: False: from here on all goes well.
    """

    random: Random
    faults: frozenset[Fault]
    coverage: Coverage
    trace: Trace
    active: bool = True

    def happens(self, fault: Fault, chance: float, about: str = "") -> bool:
        """Whether it happens now; it is noted if it does."""
        if not self.active or fault not in self.faults or self.random.random() >= chance:
            return False
        self.note(fault, about)
        return True

    def note(self, fault: Fault, about: str = "") -> None:
        """It has happened."""
        self.coverage.add(fault)
        self.trace.note(f"fault: {fault} {about}")

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)


@define(eq=False)
class FaultyGate(Gate):
    """A gate whose store can be flaky or slow, and whose disk can be slow.

    A call that was held up is on its way: it lands, whatever becomes of its caller meanwhile.

    Attributes:
        latency_s: longest time that a call takes on its way to the store, and back.
        frozen_until_s: all effects before that come then, on Trio's clock.
    """

    dice: Dice = field(kw_only=True)
    latency_s: float = field(kw_only=True)
    flaky: bool = False
    slow_store: bool = False
    slow_disk: bool = False
    frozen_until_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.delay_s = self._store_delay_s

    def _store_delay_s(self) -> float:
        if self.slow_store and self.dice.random.random() < 0.3:
            return self.dice.between(0, 1.5)
        return self.dice.between(0, self.latency_s) if self.latency_s else 0.0

    async def look(self, call: Callable[[], Awaitable[T]]) -> T:
        self._may_fail(Fault.STORE_ERROR_BEFORE, 0.1)
        return await super().look(call)

    async def effect(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        if store:
            self._may_fail(Fault.STORE_ERROR_BEFORE, 0.1)
        elif self.slow_disk:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.dice.between(0, 4) ** 2)
        done = await self.landing(name, call, store=store)
        if store:
            self._may_fail(Fault.STORE_ERROR_AFTER, 0.05)
        return done

    async def landing(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        """An effect of a call that is on its way."""
        with trio.CancelScope(shield=True):
            if trio.current_time() < self.frozen_until_s:
                await trio.sleep_until(self.frozen_until_s)

        async def land() -> T:
            with trio.CancelScope(shield=True):
                return await call()
            raise AssertionError("a shield swallows nothing")

        return await super().effect(name, land, store=store)

    def calm(self) -> None:
        """Nothing is wrong with it any more."""
        self.flaky = self.slow_store = self.slow_disk = False
        self.failing = self.crash_at = None
        self.frozen_until_s = 0.0

    def _may_fail(self, fault: Fault, chance: float) -> None:
        if self.flaky and not self.dead and self.dice.happens(fault, chance, self.name):
            raise StoreError(fault)


@define(eq=False)
class StepTroubles:
    """What goes wrong in step functions.

    Attributes:
        violate: told what must not be.
        broken: executions that a step has broken; these may end INTERNAL.
    """

    dice: Dice
    violate: Callable[[str], None] = lambda _: None
    broken: set[ExecutionId] = field(factory=set)
    _keys: dict[str, str] = field(factory=dict)
    _works: dict[str, str] = field(factory=dict)
    _stubborn: dict[tuple[ExecutionId, str], bool] = field(factory=dict)

    async def step(self, context: StepContext) -> None:
        """See ``tests.sim.pipelines.StepFaults``."""
        dice, about = self.dice, f"{context.step_id} of {context.transition_key}"
        self._check_key(context, about)
        await trio.sleep(dice.between(0, 0.2))
        if dice.happens(Fault.STEP_SLOW, 0.05, about):
            await trio.sleep(dice.between(1, 12))
        if dice.happens(Fault.STEP_RETRYABLE, 0.1, about):
            raise RetryableStepError("not now", delay_ms=dice.random.choice((None, 3_000)))
        if self._is_stubborn(context) and dice.happens(Fault.STEP_STUBBORN, 1, about):
            raise RetryableStepError("never")
        if dice.happens(Fault.STEP_FATAL, 0.02, about):
            raise NonRetryableError("this cannot work")
        if dice.happens(Fault.STEP_BUG, 0.02, about):
            self.broken.add(context.execution_id)
            raise InternalError("a step has a bug")

    def _check_key(self, context: StepContext, about: str) -> None:
        """A piece of work has one name for the outside, whoever does it; a child does what its parent would have."""
        root = context.execution_id.partition(".")[0]
        work = f"{root} {context.step_id} {context.item_index}"
        if self._keys.setdefault(work, context.idempotency_key) != context.idempotency_key:
            self.violate(f"{about} has the key {context.idempotency_key}, and had {self._keys[work]}")
        if self._works.setdefault(context.idempotency_key, work) != work:
            self.violate(f"{about} has the key of {self._works[context.idempotency_key]}")

    def _is_stubborn(self, context: StepContext) -> bool:
        key = (context.execution_id, context.step_id)
        return self._stubborn.setdefault(key, self.dice.random.random() < 0.1)
