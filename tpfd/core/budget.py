"""The ways out for requests: places at sockets, and the admission budget.

The budget says how many requests of one await step may be out at once, over all replicas. It is a number of *slots*,
each a row that names the interaction it was given to last. A slot is taken in the very transaction that hands the
request out, and it is free as soon as that interaction is over: nothing is written to give it back, so a budget cannot
leak, whoever dies when. An interaction that goes out again (its socket died) keeps its slot.

Whoever wants a slot says whom it was given to last, as far as he knows, and that this one is over. If the row still
names that holder, the slot is free indeed: an interaction that is over takes a slot again only by a new drive of its
execution, and then the row names that drive.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from tpfd.core.kinds import PERMIT
from tpfd.core.records import InteractionId, InteractionRecord, PermitRecord, SocketRecord, TenantId
from tpfd.core.transact import Key, Read, Snapshot

SHARED = TenantId("*")
"""Budgets are shared by all tenants, and so are sockets of our own."""
GIVEN_UP = 0
"""`expires_epoch_ms` of a socket from which everything is being taken back."""


@frozen
class Holder:
    """Whom a slot was given to: an interaction, in one drive of its execution."""

    tenant_id: TenantId
    interaction_id: InteractionId
    redrive_count: int


@frozen
class Slot:
    """A slot of a budget that may be free.

    Attributes:
        last: who had it last and is over, as far as we know; None: nobody had it yet.
    """

    number: int
    last: Holder | None = None


@frozen
class Place:
    """A way out for one request.

    Attributes:
        socket: one with a free place.
        slot: slot of the budget to try; None: the step has no budget.
    """

    socket: Key[SocketRecord]
    slot: Slot | None = None


@frozen
class Taken:
    """A place that a decision has given to an interaction.

    Attributes:
        place: as it was offered.
        slot_number: slot that the interaction holds now; None: the step has no budget.
    """

    place: Place
    slot_number: int | None

    @property
    def socket_id(self) -> str:
        return self.place.socket.record_id


def scope_of(pipeline_id: str, step_id: str) -> str:
    """Names the budget of one await step. Its endpoint is the step itself: providers attach to it."""
    return f"{pipeline_id}/{step_id}"


def permit_key(scope: str, slot: int) -> Key[PermitRecord]:
    """The row of one slot."""
    return PERMIT.key(SHARED, f"{scope}#{slot:06d}")


def slot_of(interaction: InteractionRecord) -> Slot | None:
    """The slot that an interaction leaves behind when it is over."""
    if interaction.permit_slot is None:
        return None
    return Slot(
        interaction.permit_slot,
        Holder(interaction.tenant_id, interaction.interaction_id, interaction.redrive_count),
    )


def holder_of(permit: PermitRecord) -> Holder:
    """Whom a slot was given to last."""
    return Holder(permit.owner_tenant_id, permit.interaction_id, permit.redrive_count)


def is_held(permit: PermitRecord, owner: InteractionRecord | None) -> bool:
    """Whether a slot is in use, by the interaction that its row names."""
    return owner is not None and owner.status.open and owner.permit_slot == permit.slot


def place_reads(scope: str | None, places: Sequence[Place]) -> tuple[Read, ...]:
    """The sockets and slots that a decision may take."""
    rows = dict.fromkeys(place.socket for place in places)
    slots = () if scope is None else [permit_key(scope, place.slot.number) for place in places if place.slot]
    return tuple(Read(key) for key in (*rows, *slots))


def takes_requests(socket: SocketRecord | None) -> bool:
    """Whether a request may be given to a socket: only if somebody will take it back when the socket is gone."""
    return socket is not None and socket.expires_epoch_ms != GIVEN_UP


@define
class Takings:
    """Hands out places within one decision, passing over sockets that are gone and slots that turn out to be taken.

    Attributes:
        permits: rows to write.
        occupied: slots that were wrongly thought free.
    """

    snapshot: Snapshot
    scope: str | None
    places: list[Place]
    now: int
    permits: list[PermitRecord] = field(factory=list)
    occupied: set[int] = field(factory=set)

    def take(self, holder: Holder, kept_slot: int | None = None) -> Taken | None:
        """A place for an interaction; None: there is none, it has to wait.

        Args:
            kept_slot: slot that it has already; the place's own is then left alone.
        """
        while self.places:
            place = self.places.pop(0)
            if not takes_requests(self.snapshot.get(place.socket)):
                continue
            if self.scope is None or kept_slot is not None:
                return Taken(place, kept_slot)
            if place.slot is None:
                continue
            row = self.snapshot.get(permit_key(self.scope, place.slot.number))
            if (None if row is None else holder_of(row)) != place.slot.last:
                self.occupied.add(place.slot.number)
                continue
            self.permits.append(
                PermitRecord(
                    tenant_id=SHARED,
                    scope=self.scope,
                    slot=place.slot.number,
                    version=1 if row is None else row.version + 1,
                    owner_tenant_id=holder.tenant_id,
                    interaction_id=holder.interaction_id,
                    redrive_count=holder.redrive_count,
                    acquired_epoch_ms=self.now,
                )
            )
            return Taken(place, place.slot.number)
        return None
