"""The ways out for requests: places at providers' sockets, and the admission budget.

The budget says how many requests of one await step may be out at once, over all replicas. It is a number of *slots*,
each a row that exists while an interaction owns it. A slot is taken in the very transaction that hands the request out,
and given back in the one that ends the interaction, so that a budget cannot leak: there is no moment at which one is
done and the other is not. An interaction that goes out again (its socket died) keeps its slot. Which slots are free is
only guessed by whoever wants one; the row decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from tpfd.core.kinds import PERMIT, SOCKET
from tpfd.core.records import InteractionId, InteractionRecord, PermitRecord, SocketRecord, TenantId
from tpfd.core.transact import Key, Read, Snapshot

SHARED = TenantId("*")
"""Budgets are shared by all tenants."""
GIVEN_UP = 0
"""`expires_epoch_ms` of a socket from which everything is being taken back."""


@frozen
class Place:
    """A way out for one request.

    Attributes:
        socket_id: a socket with a free place.
        slot: slot of the budget to try; None: the step has no budget.
    """

    socket_id: str
    slot: int | None = None


def scope_of(pipeline_id: str, step_id: str) -> str:
    """Names the budget of one await step. Its endpoint is the step itself: providers attach to it."""
    return f"{pipeline_id}/{step_id}"


def permit_key(scope: str, slot: int) -> Key[PermitRecord]:
    """The row of one slot."""
    return PERMIT.key(SHARED, f"{scope}#{slot:06d}")


def place_reads(tenant_id: TenantId, scope: str | None, places: Sequence[Place]) -> tuple[Read, ...]:
    """The sockets and slots that a decision may take."""
    rows = dict.fromkeys(SOCKET.key(tenant_id, place.socket_id) for place in places)
    slots = () if scope is None else [permit_key(scope, place.slot) for place in places if place.slot is not None]
    return tuple(Read(key) for key in (*rows, *slots))


def takes_requests(socket: SocketRecord | None) -> bool:
    """Whether a request may be given to a socket: only if somebody will take it back when the socket is gone."""
    return socket is not None and socket.expires_epoch_ms != GIVEN_UP


@define
class Takings:
    """Hands out places within one decision, passing over sockets that are gone and slots that turn out to be taken.

    Attributes:
        tenant_id: whose requests they are, and whose sockets.
        permits: rows to write.
        occupied: slots that were wrongly thought free.
    """

    snapshot: Snapshot
    tenant_id: TenantId
    scope: str | None
    places: list[Place]
    now: int
    permits: list[PermitRecord] = field(factory=list)
    occupied: set[int] = field(factory=set)

    def take(self, interaction_id: InteractionId, kept_slot: int | None = None) -> Place | None:
        """A place for an interaction; None: there is none, it has to wait.

        Args:
            kept_slot: slot that it has already; the place's own is then left alone.
        """
        while self.places:
            place = self.places.pop(0)
            if not takes_requests(self.snapshot.get(SOCKET.key(self.tenant_id, place.socket_id))):
                continue
            if self.scope is None or kept_slot is not None:
                return Place(place.socket_id, kept_slot)
            if place.slot is None:
                continue
            if self.snapshot.get(permit_key(self.scope, place.slot)) is not None:
                self.occupied.add(place.slot)
                continue
            self.permits.append(
                PermitRecord(
                    tenant_id=SHARED,
                    scope=self.scope,
                    slot=place.slot,
                    version=1,
                    interaction_id=interaction_id,
                    acquired_epoch_ms=self.now,
                )
            )
            return place
        return None


def freed(interaction: InteractionRecord) -> tuple[Key[PermitRecord], ...]:
    """The slot that goes back when this interaction ends. It is its own until then, so no look is needed."""
    slot = interaction.permit_slot
    if slot is None or not interaction.status.open:
        return ()
    return (permit_key(scope_of(interaction.pipeline_id, interaction.step_id), slot),)
