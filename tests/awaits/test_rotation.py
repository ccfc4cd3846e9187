"""A30: secrets that sign resume tokens change while tokens are out."""

from __future__ import annotations

import base64
import json

import pytest

from tests.awaits.conftest import Seat
from tests.awaits.desk import Desk, asked
from tests.engine.pipelines import BEGIN, FINISH, batch, begin, finish, program, waiting
from tpfd.core.tokens import SigningKey, claims_of, sign
from tpfd.errors import TokenRejected
from tpfd.transports.envelopes import EnvelopeWriter

SIGNED = waiting(transport="interaction-api", settings="correlation: {strategy: signedResumeToken}")
SCALAR = program(BEGIN + SIGNED + FINISH, {"begin": begin, "finish": finish})
K1, K2 = SigningKey("k1", b"1" * 32), SigningKey("k2", b"2" * 32)
YES = {"number": 7, "text": "yes"}
STEP = 1


async def token(desk: Desk, execution: str, key: SigningKey) -> str:
    """The token that an envelope carries while this key signs."""
    made = EnvelopeWriter(key).token(await desk.interaction(execution, STEP), desk.clock.now)
    assert made is not None
    return made


def rotate(desk: Desk, *keys: SigningKey) -> None:
    desk.process.coordinator.admission.keys = keys


async def accepted(desk: Desk, execution: str, signed: str) -> bool:
    try:
        await desk.complete(asked(execution, STEP), YES, token=signed)
    except TokenRejected:
        return False
    return True


async def test_a30_an_old_token_is_good_as_long_as_its_secret_is_listed(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(K1,))
    first, second = await desk.submit(batch(7)), await desk.submit(batch(7))
    old = [await token(desk, execution, K1) for execution in (first, second)]
    rotate(desk, K2, K1)
    assert await accepted(desk, first, old[0])
    rotate(desk, K2)
    assert not await accepted(desk, second, old[1])
    assert not await accepted(desk, first, old[0]), "also the repeat of one that was admitted"
    assert await accepted(desk, second, await token(desk, second, K2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((SigningKey(None, K1.secret),), (K2, K1)),  # a second secret is added, and with it names
        ((K2, K1), (SigningKey(None, K2.secret),)),  # one is left, and names go
    ],
    ids=["names-come", "names-go"],
)
async def test_a30_names_of_secrets_come_and_go(
    desk_for: Seat, before: tuple[SigningKey, ...], after: tuple[SigningKey, ...]
) -> None:
    desk = desk_for(SCALAR, keys=before)
    execution = await desk.submit(batch(7))
    signed = await token(desk, execution, before[0])
    rotate(desk, *after)
    assert await accepted(desk, execution, signed)


async def test_a30_new_tokens_carry_the_new_name(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(K2, K1))
    execution = await desk.submit(batch(7))
    payload = (await token(desk, execution, K2)).partition(".")[0]
    assert json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["kid"] == "k2"


async def test_a30_unknown_names_and_no_signature_get_the_same_answer(desk_for: Seat) -> None:
    desk = desk_for(SCALAR, keys=(K2, K1))
    execution = await desk.submit(batch(7))
    record = await desk.interaction(execution, STEP)
    claims = claims_of(record, 0)
    header = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    signed = sign(claims, K1)
    wrong = [
        sign(claims, SigningKey("k3", b"3" * 32)),
        sign(claims, SigningKey("k3", K1.secret)),
        sign(claims, SigningKey("k2", K1.secret)),
        f"{header}.{signed.partition('.')[0]}.",
        f"{signed.partition('.')[0]}.",
        f"{signed}.{signed.partition('.')[2]}",
    ]
    said = {(await desk.refused(asked(execution, STEP), YES, token=one)).message for one in wrong}
    assert said == {"the resume token is not valid for this interaction"}
    assert (await desk.interaction(execution, STEP)).status.open


async def test_without_a_secret_no_token_is_good(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    execution = await desk.submit(batch(7))
    assert not await accepted(desk, execution, await token(desk, execution, K1))
