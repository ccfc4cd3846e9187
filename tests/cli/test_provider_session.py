"""The provider against a daemon's stream that the test plays."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import trio

from tests.cli.provider_double import Peer, listening, request_message
from tpfd.client import ServerRefused, Unreachable
from tpfd.errors import OutsideError
from tpfd.examples.provider.attachment import ANSWERS_PER_FRAME, Target
from tpfd.examples.provider.decision import Manners, UnknownRequest
from tpfd.examples.provider.log import RequestLog, open_log
from tpfd.examples.provider.session import Provider

STEP = "await-payment-provider"


@pytest.fixture(autouse=True)
def short_good_byes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that has ended its script does not say good-bye; nobody wants to wait for it."""
    monkeypatch.setattr("tpfd.client.sockets.CLOSE_TIMEOUT_S", 0.05)


def provider(
    url: str,
    *,
    manners: Manners | None = None,
    log: RequestLog | None = None,
    credit: int = 256,
    pipeline: str | None = None,
    token: str | None = None,
) -> Provider:
    target = Target(url=url, step=STEP, pipeline=pipeline, token=token, credit=credit)
    said: list[str] = []
    return Provider(target, manners or Manners(), log, random.Random(1), said.append)


@asynccontextmanager
async def attached(subject: Provider) -> AsyncIterator[Provider]:
    """Runs the provider; at the end it is told to stop and must do so."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.run)
            yield subject
            subject.stopping.set()


async def stay(peer: Peer) -> None:
    await trio.sleep_forever()


async def test_it_subscribes_with_its_step_credit_tenant_and_token() -> None:
    seen: list[Peer] = []
    come = trio.Event()

    async def script(peer: Peer) -> None:
        seen.append(peer)
        come.set()
        await stay(peer)

    async with listening(script) as stream, attached(
        provider(stream.url, credit=7, pipeline="csv-payments", token="s3cret")
    ):
        await come.wait()
    assert seen[0].subscription == {
        "type": "subscribe",
        "tenantId": "default",
        "pipeline": "csv-payments",
        "stepIds": [STEP],
        "credit": 7,
    }
    assert seen[0].headers[":path"] == "/pipeline/interactions/stream"
    assert seen[0].headers["x-tenant-id"] == "default"
    assert seen[0].headers["authorization"] == "Bearer s3cret"


async def test_single_requests_and_arrays_are_answered_and_each_answer_names_its_request() -> None:
    answers: list[dict[str, object]] = []
    done = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1), single=True)
        await peer.ask(request_message(2), request_message(3))
        answers.extend(await peer.hear(3))
        await peer.acknowledge(*(f"e-1.1.{number:07d}" for number in (1, 2, 3)))
        done.set()
        await stay(peer)

    async with listening(script) as stream, attached(provider(stream.url)) as subject:
        await done.wait()
    by_id = {answer["interactionId"]: answer for answer in answers}
    assert set(by_id) == {"e-1.1.0000001", "e-1.1.0000002", "e-1.1.0000003"}
    two = by_id["e-1.1.0000002"]
    assert (two["type"], two["tenantId"], two["correlationId"], two["resumeToken"]) == (
        "complete",
        "default",
        "c-2",
        "token-2",
    )
    assert subject.tally.asked_count == subject.tally.approved_count == 3


async def test_answers_that_are_due_together_travel_together_and_no_frame_is_too_long() -> None:
    sizes: list[int] = []
    done = trio.Event()
    count = ANSWERS_PER_FRAME + 44

    async def script(peer: Peer) -> None:
        await peer.ask(*(request_message(number) for number in range(count)))
        while sum(sizes) < count:
            sizes.append(len(orjson.loads(await peer.socket.get_message())))
        await peer.acknowledge(*(f"e-1.1.{number:07d}" for number in range(count)))
        done.set()
        await stay(peer)

    async with listening(script) as stream, attached(provider(stream.url, credit=count)):
        await done.wait()
    assert sizes == [ANSWERS_PER_FRAME, 44]


async def test_a_request_is_in_the_log_before_its_answer_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "provider.jsonl"
    logged_at_arrival: list[bool] = []
    done = trio.Event()

    async def script(peer: Peer) -> None:
        for number in range(20):
            await peer.ask(request_message(number))
            (heard,) = await peer.hear(1)
            logged_at_arrival.append(str(heard["interactionId"]).encode() in path.read_bytes())
            await peer.acknowledge(f"e-1.1.{number:07d}")
        done.set()
        await stay(peer)

    async with open_log(path) as log, listening(script) as stream, attached(provider(stream.url, log=log)):
        await done.wait()
    assert logged_at_arrival == [True] * 20
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["csvId"] for line in lines] == [str(number) for number in range(20)]
    assert set(lines[0]) == {"interactionId", "csvId", "outcome", "atEpochMs"}


async def test_what_cannot_be_logged_is_not_answered() -> None:
    heard: list[object] = []

    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1))
        heard.extend(await peer.hear(1))

    async with listening(script) as stream, open_log(Path("/dev/full")) as log:
        with pytest.raises(OutsideError, match=r"cannot write the log /dev/full: No space left"):
            await provider(stream.url, log=log).run()
    assert heard == []


async def test_it_attaches_again_after_every_loss_and_drops_what_it_had_in_hand() -> None:
    heard: list[dict[str, object]] = []
    done = trio.Event()

    async def cut(peer: Peer) -> None:
        await peer.ask(request_message(1), request_message(2))
        await peer.socket.aclose(1012, "the daemon restarts")

    async def answer(peer: Peer) -> None:
        await peer.ask(request_message(1))
        heard.extend(await peer.hear(1))
        await peer.acknowledge("e-1.1.0000001")
        done.set()
        await stay(peer)

    slow = Manners(latency_s=0.05)  # so that nothing is answered on the first connections
    async with listening(cut, cut, answer) as stream, attached(provider(stream.url, manners=slow)):
        await done.wait()
    assert stream.connection_count == 3
    assert [answer["interactionId"] for answer in heard] == ["e-1.1.0000001"]


async def test_it_waits_for_a_daemon_that_is_not_there_yet() -> None:
    done = trio.Event()

    async def script(peer: Peer) -> None:
        done.set()
        await stay(peer)

    async with listening(stay) as gone:
        port = gone.port
    subject = provider(f"http://127.0.0.1:{port}")
    async with attached(subject):
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with listening(script, port=port):
            await done.wait()
            subject.stopping.set()


async def test_never_more_than_its_credit_is_in_hand() -> None:
    """A daemon that sends more than it may is not read further, instead of filling our memory."""
    answered: Counter[str] = Counter()
    first = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.ask(*(request_message(number) for number in range(5)))
        for heard in await peer.hear(2):
            answered[str(heard["interactionId"])] += 1
        first.set()
        await peer.acknowledge("e-1.1.0000000", "e-1.1.0000001")
        await stay(peer)

    async with listening(script) as stream, trio.open_nursery() as nursery:
        subject = provider(stream.url, credit=2)
        nursery.start_soon(subject.run)
        await first.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        # The acknowledgement stands behind what we refuse to read: nothing moves, and nothing grows.
        assert set(answered) == {"e-1.1.0000000", "e-1.1.0000001"}
        assert subject.tally.approved_count == 2
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_an_answer_that_the_store_could_not_take_is_sent_again_and_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.examples.provider.desk.REPEAT_FIRST_S", 0.01)
    done = trio.Event()
    heard: list[dict[str, object]] = []

    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1))
        heard.extend(await peer.hear(1))
        refusal = {"type": "rejected", "interactionId": "e-1.1.0000001", "code": "store_full", "status": 503}
        await peer.ask(refusal)
        heard.extend(await peer.hear(1))
        await peer.acknowledge("e-1.1.0000001")
        done.set()
        await stay(peer)

    async with (
        open_log(tmp_path / "log") as log,
        listening(script) as stream,
        attached(provider(stream.url, log=log)) as subject,
    ):
        await done.wait()
    assert heard[0] == heard[1]
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1
    assert (subject.tally.approved_count, subject.tally.repeated_count) == (1, 1)


async def test_an_answer_that_was_refused_for_good_is_not_sent_again() -> None:
    done = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1))
        await peer.hear(1)
        await peer.ask({"type": "rejected", "interactionId": "e-1.1.0000001", "code": "timed_out", "status": 410})
        done.set()
        await stay(peer)

    async with listening(script) as stream, attached(provider(stream.url)) as subject:
        await done.wait()
    assert subject.tally.refused_count == 1


@pytest.mark.parametrize(
    ("manners", "answers_each"), [(Manners(duplicate_probability=1.0), 2), (Manners(drop_probability=1.0), 0)]
)
async def test_duplicates_are_sent_twice_and_dropped_answers_never(
    tmp_path: Path, manners: Manners, answers_each: int
) -> None:
    path = tmp_path / "log"
    heard: Counter[object] = Counter()
    count = 40

    async def script(peer: Peer) -> None:
        await peer.ask(*(request_message(number) for number in range(count)))
        while True:
            for answer in await peer.hear(1):
                heard[answer["interactionId"]] += 1
                await peer.acknowledge(str(answer["interactionId"]))

    async with (
        open_log(path) as log,
        listening(script) as stream,
        attached(provider(stream.url, manners=manners, log=log)) as subject,
    ):
        while subject.tally.asked_count < count:
            await trio.sleep(0.005)
    assert heard == {f"e-1.1.{number:07d}": answers_each for number in range(count) if answers_each}
    assert len(path.read_bytes().splitlines()) == count  # a dropped answer was decided all the same


async def test_told_to_stop_it_answers_what_it_has_and_takes_nothing_more() -> None:
    heard: list[dict[str, object]] = []

    subject_box: list[Provider] = []

    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1), request_message(2))
        while subject_box[0].tally.asked_count < 2:
            await trio.sleep(0.005)
        subject_box[0].stopping.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        await peer.ask(request_message(3))
        heard.extend(await peer.hear(2))
        await peer.acknowledge("e-1.1.0000001", "e-1.1.0000002")
        await stay(peer)

    async with listening(script) as stream:
        subject_box.append(provider(stream.url, manners=Manners(latency_s=0.1)))
        with trio.fail_after(30):
            tally = await subject_box[0].run()
    assert [answer["interactionId"] for answer in heard] == ["e-1.1.0000001", "e-1.1.0000002"]
    assert tally.asked_count == 2


async def test_a_request_that_it_does_not_know_ends_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.ask(request_message(1, inputType="PendingRestaurantApproval"))
        await stay(peer)

    async with listening(script) as stream:
        with pytest.raises(UnknownRequest, match="only knows PaymentRecord"):
            await provider(stream.url).run()


async def test_a_daemon_that_will_not_have_it_ends_it_with_what_the_daemon_said() -> None:
    async def script(peer: Peer) -> None:
        await peer.ask({"type": "error", "code": "not_found", "detail": "there is no step 'x'"}, single=True)
        await peer.socket.aclose(1008, "not_found")

    async with listening(script) as stream:
        with pytest.raises(ServerRefused, match="there is no step 'x'") as refused:
            await provider(stream.url).run()
    assert refused.value.code == "not_found"


async def test_something_else_than_a_daemon_ends_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.send_message("hello")
        await stay(peer)

    async with listening(script) as stream:
        with pytest.raises(Unreachable, match="not JSON"):
            await provider(stream.url).run()


async def test_a_torn_line_left_by_a_kill_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"csvId":"1"}\n{"csvId":"2"')
    async with open_log(path) as log:
        await log.write([b'{"csvId":"3"}\n'])
    assert path.read_bytes() == b'{"csvId":"1"}\n{"csvId":"3"}\n'


async def test_a_log_in_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="cannot open the log"):
        async with open_log(tmp_path / "none" / "log"):
            pass


async def test_as_a_process_it_ends_with_0_on_sigterm_and_with_2_for_an_unknown_request() -> None:
    attached_event = trio.Event()

    async def script(peer: Peer) -> None:
        attached_event.set()
        await stay(peer)

    async def ask_else(peer: Peer) -> None:
        await peer.ask(request_message(1, inputType="Order"))
        await stay(peer)

    def command(url: str) -> list[str]:
        return [sys.executable, "-m", "tpfd.cli.main", "provider", "--url", url, "--step", STEP]

    async with listening(script, ask_else) as stream:
        with trio.fail_after(60):
            process = await trio.lowlevel.open_process(command(stream.url), stderr=subprocess.DEVNULL)
            await attached_event.wait()
            process.terminate()
            assert await process.wait() == 0
            ended = await trio.run_process(command(stream.url), check=False, capture_stderr=True)
    assert ended.returncode == 2
    assert b"only knows PaymentRecord" in ended.stderr
