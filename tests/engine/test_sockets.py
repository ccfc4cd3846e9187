"""Provider sockets: credit, the shared budget, and what becomes of requests when a socket goes."""


from __future__ import annotations

import trio

from tests.engine.asking import LIVE, asked, attach, lines, silent, so, whole
from tests.engine.pipelines import (
    FINISH,
    PARSE,
    batch,
    finish,
    parse,
    program,
    waiting,
)
from tests.engine.world import S, World
from tpfd.core.kinds import INTERACTION, SOCKET


async def test_what_a_dying_provider_held_goes_to_the_next_one(world: World) -> None:
    world.load(LIVE)
    a = await world.start()
    first = await attach(world, a, answer=silent, credit=5)
    done = await a.submit(batch(20))
    await world.until(lambda: so(len(first.asked) == 5))
    first.scope.cancel("gone")
    await first.detached.wait()
    assert world.observed.rows(SOCKET) == []
    second = await attach(world, a)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert len(second.asked) == 20
    assert set(second.asked.values()) == {1}
    again = {envelope["interactionId"] for envelope in first.envelopes}
    assert again <= set(second.asked), "the same requests under the same ids"


async def test_a_socket_whose_process_died_gives_its_requests_to_another_by_its_lease(world: World) -> None:
    world.load(LIVE)
    a, b = await world.start("a"), await world.start("b")
    first = await attach(world, b, answer=silent, credit=50)
    b.claims.run_attempt = _never
    done = await a.submit(batch(6))
    await world.until(lambda: so(len(first.asked) == 6))
    b.kill()
    died = trio.current_time()
    second = await attach(world, a)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert trio.current_time() - died < 35
    assert len(second.asked) == 6
    assert lines(world, done.execution_id) == whole(6)


async def _never(*_: object) -> None:
    await trio.sleep_forever()


async def test_a_socket_that_closes_while_a_request_is_written_for_it_loses_nothing(world: World) -> None:
    world.load(LIVE)
    a = await world.start()
    first = await attach(world, a, answer=silent)
    (socket,) = a.sockets._sockets.values()
    done = await a.submit(batch(20))
    slow = [2.0]
    a.gate.delay_s = lambda: slow.pop() if socket.reserved_count and slow else 0.0  # what is written for it
    await world.until(lambda: so(socket.reserved_count > 0))
    first.scope.cancel("gone")
    await first.detached.wait()
    a.gate.delay_s = None
    second = await attach(world, a)
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=120)
    assert lines(world, done.execution_id) == whole(20)
    assert len(second.asked) == 20


async def test_requests_that_have_a_place_in_the_budget_go_before_those_that_need_one(world: World) -> None:
    """Else those that hold all the places would wait behind those that wait for one."""
    steps = PARSE + waiting(more="maxConcurrency: 20") + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    older = await a.submit(batch(20))
    await world.until(lambda: so(asked(world) == 20))
    await trio.sleep(0.01)
    newer = await a.submit(batch(20))
    await world.until(lambda: so(asked(world) == 40))
    # Only the newer one's requests go out, and take the whole budget; then their provider is gone.
    only_newer = [one for one in world.observed.rows(INTERACTION) if one.execution_id == newer.execution_id]
    first = await attach(world, a, answer=silent, credit=0)
    (socket,) = a.sockets._sockets.values()
    socket.credit = 20
    for page in (only_newer[:12], only_newer[12:]):
        await a.sockets._deliver(socket, "ask", page)
    socket.credit = 0
    assert len(world.observed.slots_held()) == 20
    first.scope.cancel("gone")
    await first.detached.wait()
    second = await attach(world, a, credit=20)
    for one in (older, newer):
        await world.until_status(one.execution_id, S.SUCCEEDED, within_s=60)
    assert len(second.asked) == 40


async def test_a_provider_that_has_no_credit_left_gets_no_more(world: World) -> None:
    world.load(LIVE)
    a = await world.start()
    provider = await attach(world, a, credit=3, latency_s=1)
    done = await a.submit(batch(30))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert provider.outstanding_max <= 3
    assert lines(world, done.execution_id) == whole(30)


async def test_two_executions_share_the_budget_of_their_step(world: World) -> None:
    steps = PARSE + waiting(more="maxConcurrency: 6") + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a, b = await world.start("a"), await world.start("b")
    providers = [await attach(world, one, latency_s=0.5, credit=50) for one in (a, b)]
    out: list[int] = []

    async def watch() -> None:
        while True:
            out.append(sum(one.delivery is not None for one in world.observed.rows(INTERACTION)))
            await trio.sleep(0.02)

    world.nursery.start_soon(watch)
    done = [await process.submit(batch(20)) for process in (a, b, a)]
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED)
        assert lines(world, one.execution_id) == whole(20)
    assert 4 <= max(out) <= 6
    assert sum(provider.asked.total() for provider in providers) == 60
    assert world.observed.slots_held() == []


