"""Deliveries to sockets: taking requests out of a step's queue and putting them back.

A delivery lasts as long as its socket, and a socket as long as its lease row. Whoever finds that row expired (or closes
the socket) takes back what it held; the requests go out again with the same ids. Only a broker keeps what it was given
after the socket is gone: what it has confirmed may be let go.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from tpfd.core import interacting
from tpfd.core.budget import GIVEN_UP, Holder, Place, Takings, place_reads, takes_requests
from tpfd.core.kinds import EXECUTION, INTERACTION, SOCKET
from tpfd.core.records import InteractionRecord, InteractionStatus, SocketRecord
from tpfd.core.transact import Decision, Key, Read, Snapshot

DELIVERY_PAGE = 12
"""Interactions moved by one decision: each may write itself and its slot of the budget."""
LET_GO_PAGE = 24
"""Interactions let go by one decision: each writes itself alone."""


def deliver_reads(
    interactions: Sequence[InteractionRecord], scope: str | None, places: Sequence[Place]
) -> tuple[Read, ...]:
    """What `deliver` looks at: the interactions, their executions, the places."""
    executions = dict.fromkeys(EXECUTION.key(record.tenant_id, record.execution_id) for record in interactions)
    return (
        *(Read(INTERACTION.key_of(record)) for record in interactions),
        *(Read(key) for key in executions),
        *place_reads(scope, places),
    )


@frozen
class Delivered:
    """What a socket was given, and slots of the budget that were not free after all."""

    taken: tuple[InteractionRecord, ...]
    occupied: frozenset[int] = frozenset()


def deliver(
    snapshot: Snapshot,
    interactions: Sequence[InteractionRecord],
    scope: str | None,
    places: Sequence[Place],
    now: int,
) -> Decision[Delivered]:
    """Gives those that still wait to a socket, as far as there are places; the others were quicker elsewhere."""
    takings = Takings(snapshot, scope, list(places), now)
    taken = []
    for seen in interactions:
        record = snapshot.get(INTERACTION.key_of(seen))
        parent = snapshot.get(EXECUTION.key(seen.tenant_id, seen.execution_id))
        if record is None or record.status is not InteractionStatus.WAITING or parent is None or parent.status.terminal:
            continue
        holder = Holder(record.tenant_id, record.interaction_id, record.redrive_count)
        place = takings.take(holder, record.permit_slot)
        if place is not None:
            taken.append(interacting.delivered(record, place, now))
    return Decision(Delivered(tuple(taken), frozenset(takings.occupied)), puts=(*taken, *takings.permits))


def renew(snapshot: Snapshot, sockets: Sequence[SocketRecord], now: int, lease_ms: int) -> Decision[frozenset[str]]:
    """Extends the leases of sockets.

    Returns:
        Ids of sockets whose row was gone: they were taken for dead and what they held may be elsewhere.
    """
    lost = set()
    puts = []
    for seen in sockets:
        record = snapshot.get(SOCKET.key_of(seen))
        if record is None:
            lost.add(seen.socket_id)
            record = seen
        puts.append(evolve(record, version=record.version + 1, expires_epoch_ms=now + lease_ms))
    return Decision(frozenset(lost), puts=tuple(puts))


@frozen
class TakenBack:
    """What came of `take_back`.

    Attributes:
        count: interactions that wait again.
        over: nothing is left to do: the row is gone, or the socket was renewed meanwhile.
    """

    count: int = 0
    over: bool = False


def take_back(
    snapshot: Snapshot,
    socket: Key[SocketRecord],
    held: Sequence[InteractionRecord],
    now: int,
    *,
    closing: bool,
) -> Decision[TakenBack]:
    """Puts a page of what a socket held back into the queue; with an empty page, removes the socket's row.

    An expired socket is given up first. Its process may live after all and give it something more, also between the
    look at what it holds and this decision; but nothing is given to a socket that is given up, so an empty page that
    was read after that is the truth.

    Args:
        closing: its own process closes it and gives it nothing more; else only an expired one is touched.
    """
    record = snapshot.get(socket)
    if record is not None and not closing and record.expires_epoch_ms > now:
        return Decision(TakenBack(over=True))
    giving_up = not closing and record is not None and takes_requests(record)
    if not held and not giving_up:
        return Decision(TakenBack(over=True), deletes=() if record is None else (socket,))
    puts: list[object] = []
    for seen in held:
        current = snapshot.get(INTERACTION.key_of(seen))
        if current is not None and current.status.open and current.delivery == socket.record_id:
            puts.append(interacting.taken_back(current, now))
    count = len(puts)
    if record is not None and giving_up:
        puts.append(evolve(record, version=record.version + 1, expires_epoch_ms=GIVEN_UP))
    return Decision(TakenBack(count), puts=tuple(puts))


def let_go_reads(held: Sequence[InteractionRecord]) -> tuple[Read, ...]:
    """What `let_go` looks at."""
    return tuple(Read(INTERACTION.key_of(record)) for record in held)


def let_go(snapshot: Snapshot, held: Sequence[InteractionRecord], now: int) -> Decision[int]:
    """Lets those go that are still out where they were given; the number of them.

    Args:
        held: as they were handed out, at most LET_GO_PAGE; the broker has confirmed all of them.
    """
    puts = []
    for seen in held:
        record = snapshot.get(INTERACTION.key_of(seen))
        # One that is over is in nobody's hands either.
        if record is not None and record.delivery == seen.delivery:
            puts.append(interacting.let_go(record, now))
    return Decision(len(puts), puts=tuple(puts))
