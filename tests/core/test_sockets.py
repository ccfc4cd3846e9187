"""Giving requests to a socket, and giving a socket up: whatever comes between, each request is in somebody's hands."""

from __future__ import annotations

from tests.core.applier import TENANT, Applier, await_terms, request
from tpfd.core import sockets
from tpfd.core.budget import Place
from tpfd.core.kinds import INTERACTION, SOCKET
from tpfd.core.records import InteractionRecord, InteractionStatus, SocketRecord
from tpfd.core.sockets import TakenBack
from tpfd.core.transact import Read

LEASE_MS = 30_000
NEW = SocketRecord(tenant_id=TENANT, socket_id="ws-1", pipeline_id="p", node="a", version=0, expires_epoch_ms=0)
ROW = SOCKET.key_of(NEW)


class Queue(Applier):
    """Requests of one execution that wait in the queue, and one socket."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.live(await_terms(), count)
        self.renew()

    def renew(self) -> frozenset[str]:
        return self.transact((Read(ROW),), lambda seen: sockets.renew(seen, [NEW], self.now, LEASE_MS))

    def waiting(self) -> list[InteractionRecord]:
        return [one for one in self.interactions() if one.status is InteractionStatus.WAITING]

    def held(self) -> list[InteractionRecord]:
        return [one for one in self.interactions() if one.delivery == NEW.socket_id]

    def deliver(self, count: int = 12) -> int:
        waiting = self.waiting()[:count]
        places = [Place(ROW) for _ in waiting]
        reads = sockets.deliver_reads(waiting, None, places)
        return len(self.transact(reads, lambda seen: sockets.deliver(seen, waiting, None, places, self.now)).taken)

    def take_back(self, held: list[InteractionRecord], *, closing: bool = False) -> TakenBack:
        reads = (Read(ROW), *(Read(INTERACTION.key_of(one)) for one in held))
        return self.transact(reads, lambda seen: sockets.take_back(seen, ROW, held, self.now, closing=closing))


def test_only_a_socket_with_a_row_is_given_requests() -> None:
    queue = Queue(3)
    assert queue.deliver() == 3
    queue.take_back(queue.held(), closing=True)
    assert queue.take_back([], closing=True) == TakenBack(over=True)
    assert queue.deliver() == 0
    assert queue.renew() == {NEW.socket_id}
    assert queue.deliver() == 3


def test_new_requests_go_to_a_socket_that_has_a_row_and_else_wait() -> None:
    queue = Queue(0)
    claimed, places = queue.execution(), (Place(ROW), Place(SOCKET.key(TENANT, "ws-gone")))
    opened = queue.open_items(claimed, await_terms(), [request(0), request(1)], places)
    assert [one.record.delivery for one in opened.items] == [NEW.socket_id, None]


def test_a_socket_whose_lease_holds_is_left_alone() -> None:
    queue = Queue(2)
    queue.deliver()
    assert queue.take_back(queue.held()) == TakenBack(over=True)
    assert len(queue.held()) == 2


def test_a_request_that_goes_to_an_expired_socket_at_the_last_moment_is_found() -> None:
    """The list of what the socket held was read before that request was given to it."""
    queue = Queue(3)
    queue.now += LEASE_MS
    seen_before: list[InteractionRecord] = []
    assert queue.deliver(2) == 2
    assert queue.take_back(seen_before) == TakenBack()
    assert queue.deliver() == 0
    assert queue.take_back(queue.held()) == TakenBack(count=2)
    assert queue.take_back(queue.held()) == TakenBack(over=True)
    assert ROW not in queue.records
    assert len(queue.waiting()) == 3


def test_a_socket_that_is_renewed_while_it_is_given_up_keeps_what_is_left() -> None:
    queue = Queue(2)
    queue.deliver()
    queue.now += LEASE_MS
    assert queue.take_back(queue.held()[:1]) == TakenBack(count=1)
    queue.renew()
    assert queue.take_back(queue.held()) == TakenBack(over=True)
    assert (len(queue.held()), queue.deliver()) == (1, 1)
