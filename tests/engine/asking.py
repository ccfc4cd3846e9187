"""What tests of live awaits share: providers, and what should come out."""


from __future__ import annotations

from collections.abc import Callable

from tests.engine.pipelines import (
    FINISH,
    PARSE,
    finish,
    parse,
    program,
    waiting,
)
from tests.engine.world import Envelope, Process, Provider, World, echo
from tpfd.core.kinds import INTERACTION

LIVE = program(PARSE + waiting() + FINISH, {"parse": parse, "finish": finish}, publish=True)


async def attach(world: World, process: Process, **settings: object) -> Provider:
    """A provider at a process."""
    provider = Provider(process=process, **settings)  # type: ignore[arg-type]
    await world.nursery.start(provider.run)
    return provider


def silent(_: Envelope) -> object:
    return None


def only(*numbers: int) -> Callable[[Envelope], object]:
    """Answers some rows and keeps silent about the others."""
    return lambda envelope: echo(envelope) if envelope["requestPayload"]["number"] in numbers else None


def lines(world: World, execution: str) -> list[str]:
    """The published rows, in the order of their numbers."""
    return sorted(world.disk.lines(f"{execution}.csv"), key=lambda line: int(line.partition(",")[0]))


def whole(count: int) -> list[str]:
    return [f"{number},ok row-{number}" for number in range(count)]


def asked(world: World) -> int:
    return len(world.observed.rows(INTERACTION))


async def so(value: bool) -> bool:
    return value


