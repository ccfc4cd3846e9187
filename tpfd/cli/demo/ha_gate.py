"""The high-availability gate: what a cluster must survive, each as one check that says what it saw.

A check raises `DemoFailed` with what is wrong. It leaves all replicas running.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from tpfd.cli.demo.children import DemoFailed
from tpfd.cli.demo.ha_cluster import MAX_RETRIES, Cluster, Replica
from tpfd.cli.demo.standin import StandIn
from tpfd.client import TpfdClient
from tpfd.client.answers import JsonObject, Submission
from tpfd.client.errors import ServerRefused, Unreachable
from tpfd.core.records import ExecutionStatus, FactType

PIPELINE = "deliver-order"
WITHIN_S = 60.0
LOOK_AGAIN_S = 0.05
PACKING_MS = 4_000
SUBMITS_AT_ONCE = 10
LOAD_COUNT = 30
LOAD_PACKING_MS = 400

Check = Callable[[Cluster], Awaitable[str]]


async def takeover(cluster: Cluster) -> str:
    """A replica is killed while it holds a lease: another one takes the work over."""
    first = cluster.replicas[0]
    submission = await submit(first.client, "takeover", packing_ms=PACKING_MS)
    owner = await _owner(cluster, submission.execution_id)
    await owner.kill()
    killed_s = trio.current_time()
    other = next(replica for replica in cluster.replicas if replica is not owner)
    ended = await _ended(other.client, submission.execution_id, ExecutionStatus.SUCCEEDED)
    _expect(ended["workerLosses"] >= 1, "it counts no lost worker")
    took_s = trio.current_time() - killed_s
    await owner.start()
    return f"{owner.name} was killed with it in hand; {other.name} had finished it {took_s:.1f} s later"


async def untold(cluster: Cluster) -> str:
    """A replica dies between storing a submit and announcing it: the sweeper of another finds it."""
    async with cluster.edge_only() as client:
        submission = await submit(client, "untold")
    gone_s = trio.current_time()
    ended = await _ended(cluster.replicas[0].client, submission.execution_id, ExecutionStatus.SUCCEEDED)
    _expect(ended["workerLosses"] == 0, "nobody had it, and yet a worker was lost")
    return f"nobody was told of it; it was found and finished {trio.current_time() - gone_s:.1f} s later"


async def duplicates(cluster: Cluster) -> str:
    """The same order comes in through all replicas at once: it runs once, and all hear the same."""
    answers: list[Submission] = []

    async def again(client: TpfdClient) -> None:
        answers.append(await submit(client, "twice"))

    async with trio.open_nursery() as nursery:
        for replica in cluster.replicas:
            for _ in range(SUBMITS_AT_ONCE):
                nursery.start_soon(again, replica.client)
    ids = {answer.execution_id for answer in answers}
    _expect(len(ids) == 1, f"it was accepted as {len(ids)} executions")
    fresh = [answer for answer in answers if not answer.duplicate]
    _expect(len(fresh) == 1, f"{len(fresh)} submits were told to be the first")
    (execution_id,) = ids
    await _ended(cluster.replicas[0].client, execution_id, ExecutionStatus.SUCCEEDED)
    results = [await replica.client.result(execution_id) for replica in cluster.replicas]
    _expect(all(result == results[0] for result in results), "the replicas give different results")
    started = await _facts(cluster.replicas[0].client, execution_id, FactType.SEGMENT_ATTEMPT_STARTED)
    _expect(len(started) == 1, f"it was started {len(started)} times")
    return f"{len(answers)} submits, one execution, one run, the same answer everywhere"


async def refused_for_good(cluster: Cluster) -> str:
    """An order that no further try can help fails at once."""
    submission = await submit(cluster.replicas[-1].client, "pigeon", courier="pigeon")
    ended = await _ended(cluster.replicas[-1].client, submission.execution_id, ExecutionStatus.FAILED)
    started = await _facts(cluster.replicas[0].client, submission.execution_id, FactType.SEGMENT_ATTEMPT_STARTED)
    _expect(len(started) == 1, f"it was tried {len(started)} times")
    return f"FAILED at the first try: {ended['errorMessage']}"


async def dead_letter(cluster: Cluster) -> str:
    """Retries are exhausted: the dead letter is in the queue, also when everything was restarted since."""
    submission = await submit(cluster.replicas[0].client, "gone", courier="gone")
    ended = await _ended(cluster.replicas[0].client, submission.execution_id, ExecutionStatus.DLQ)
    _expect(ended["terminalReason"] == "retry_exhausted", f"it ended by {ended['terminalReason']}")
    await _letters_of(cluster, submission.execution_id)
    for replica in cluster.replicas:
        code = await replica.stop()
        _expect(code == 0, f"replica {replica.name} ended with {code}")
    if cluster.standin is not None:
        await cluster.standin.stop()
        await cluster.standin.start()
    for replica in cluster.replicas:
        await replica.start()
    letters = await _letters_of(cluster, submission.execution_id)
    names = {letter["envelopeId"] for letter in letters}
    _expect(len(names) == 1, f"there are {len(names)} different letters")
    after = await cluster.replicas[-1].client.status(submission.execution_id)
    _expect(after["status"] == ExecutionStatus.DLQ, f"it is {after['status']} after the restart")
    all_of_it = "replicas and stand-in" if cluster.standin is not None else "replicas"
    return f"{MAX_RETRIES + 1} tries, one letter ({letters[0]['errorCode']}); {all_of_it} were restarted, it is there"


async def drain(cluster: Cluster) -> str:
    """A replica is stopped in the middle of the load: it ends in order, and nothing of it counts as lost."""
    load = await _load(cluster, "drain")
    leaving = cluster.replicas[0]
    await _some_run(cluster.replicas[-1].client)
    code = await leaving.stop()
    _expect(code == 0, f"replica {leaving.name} ended with {code}")
    ends = [await _ended(cluster.replicas[-1].client, one, ExecutionStatus.SUCCEEDED) for one in load]
    lost = sum(end["workerLosses"] for end in ends)
    _expect(lost == 0, f"{lost} workers were counted as lost in an orderly drain")
    await leaving.start()
    return f"{leaving.name} ended with 0 under load; all {len(load)} orders succeeded, none by a takeover"


async def outage(cluster: Cluster) -> str:
    """Store and queue go away under load and come back: replicas say so, stay, and go on."""
    standin = _own(cluster)
    load = await _load(cluster, "outage")
    await standin.stop()
    away_s = trio.current_time()
    first = cluster.replicas[0]
    await _until("the replicas to say that they are not ready", lambda: _none_ready(cluster))
    try:
        await submit(first.client, "outage-during")
    except (ServerRefused, Unreachable) as error:
        status = error.status if isinstance(error, ServerRefused) else 0
        _expect(status == 503, f"a submit was answered with {status} while the store was away")
    else:
        raise DemoFailed("a submit was accepted while the store was away")
    await standin.start()
    for one in load:
        await _ended(first.client, one, ExecutionStatus.SUCCEEDED)
    await _until("the replicas to be ready again", lambda: _all_ready(cluster))
    took_s = trio.current_time() - away_s
    return f"submits got 503 meanwhile; all {len(load)} orders had succeeded {took_s:.1f} s after it went away"


GATE: Final[Sequence[tuple[str, Check]]] = (
    ("takeover", takeover),
    ("untold", untold),
    ("duplicates", duplicates),
    ("refused-for-good", refused_for_good),
    ("dead-letter", dead_letter),
    ("drain", drain),
    ("outage", outage),
)
"""Every check by name, in order."""

NEED_STANDIN: Final = frozenset({"outage"})
"""Checks that stop the service, so that it must be ours."""


async def submit(client: TpfdClient, number: str, *, courier: str = "swift", packing_ms: int = 0) -> Submission:
    """Submits an order under its number."""
    order = {
        "orderNumber": number,
        "customer": "Ada Lovelace",
        "address": "12 St James's Square",
        "courier": courier,
        "packingMs": packing_ms,
    }
    return await client.submit(order, key=number)


async def _load(cluster: Cluster, name: str) -> list[str]:
    """Submits a load through all replicas; the ids."""
    ids: list[str] = []

    async def one(client: TpfdClient, number: str) -> None:
        ids.append((await submit(client, number, packing_ms=LOAD_PACKING_MS)).execution_id)

    async with trio.open_nursery() as nursery:
        for number in range(LOAD_COUNT):
            replica = cluster.replicas[number % len(cluster.replicas)]
            nursery.start_soon(one, replica.client, f"{name}-{number}")
    return ids


async def _until(what: str, look: Callable[[], Awaitable[Any]]) -> Any:
    """Looks until it sees something; the first true thing. Raises DemoFailed."""
    with trio.move_on_after(WITHIN_S):
        while True:
            if found := await look():
                return found
            await trio.sleep(LOOK_AGAIN_S)
    raise DemoFailed(f"waited {WITHIN_S:.0f} s for {what}")


async def _ended(client: TpfdClient, execution_id: str, wanted: ExecutionStatus) -> JsonObject:
    """The execution when it has ended, as it should."""

    async def look() -> JsonObject | None:
        try:
            found = await client.status(execution_id)
        except (ServerRefused, Unreachable):  # while its store is away
            return None
        return found if ExecutionStatus(found["status"]).terminal else None

    ended: JsonObject = await _until(f"{execution_id} to end", look)
    if ended["status"] != wanted:
        raise DemoFailed(f"{execution_id} is {ended['status']}, not {wanted}: {ended['errorMessage']}")
    return ended


async def _facts(client: TpfdClient, execution_id: str, kind: FactType) -> list[JsonObject]:
    return [fact for fact in (await client.history(execution_id)).items if fact["type"] == kind]


async def _owner(cluster: Cluster, execution_id: str) -> Replica:
    """The replica that runs it."""
    by_name = {replica.name: replica for replica in cluster.replicas}

    async def look() -> Replica | None:
        started = await _facts(cluster.replicas[0].client, execution_id, FactType.SEGMENT_ATTEMPT_STARTED)
        return by_name[started[-1]["data"]["owner"]] if started else None

    owner: Replica = await _until(f"somebody to start {execution_id}", look)
    return owner


async def _letters_of(cluster: Cluster, execution_id: str) -> list[JsonObject]:
    async def look() -> list[JsonObject]:
        letters = [json.loads(body) for body in await cluster.letters()]
        return [letter for letter in letters if letter["executionId"] == execution_id]

    found: list[JsonObject] = await _until(f"the dead letter of {execution_id}", look)
    return found


async def _some_run(client: TpfdClient) -> None:
    async def look() -> bool:
        page = await client.executions(pipeline=PIPELINE, status=ExecutionStatus.RUNNING)
        return bool(page.items)

    await _until("some of the load to run", look)


async def _all_ready(cluster: Cluster) -> bool:
    return all([await replica.client.ready() for replica in cluster.replicas])


async def _none_ready(cluster: Cluster) -> bool:
    return not any([await replica.client.ready() for replica in cluster.replicas])


def _own(cluster: Cluster) -> StandIn:
    if cluster.standin is None:
        raise DemoFailed("this check stops the service, and it is not ours")
    return cluster.standin


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise DemoFailed(otherwise)
