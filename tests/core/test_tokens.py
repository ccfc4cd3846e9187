"""Resume tokens: the published vector, rotation, identity, and everything that is no token."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.core.applier import START, Applier, await_terms
from tpfd.core.records import InteractionId, TenantId
from tpfd.core.tokens import MIN_SECRET_BYTES, Claims, SigningKey, check_identity, claims_of, sign, verify
from tpfd.errors import TokenRejected

VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "resume-token.json").read_text(encoding="utf-8"))
CLAIMS = Claims("t1", "i-1", "c-1", "e-1", "s-1", 1_700_000_600_000, 1_700_000_000_000)
K1 = SigningKey("k1", b"first secret of the rotation")
K2 = SigningKey("k2", b"second secret of the rotation")
K1_ALONE = SigningKey(None, K1.secret)
TOKEN = sign(CLAIMS, K1)


def forged(payload: object, key: SigningKey = K1) -> str:
    """A token with a good signature over anything."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    first = base64.urlsafe_b64encode(body).rstrip(b"=").decode()
    digest = hmac.digest(key.secret, first.encode(), "sha256")
    return f"{first}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


# ── the wire format ──


def test_the_published_vector() -> None:
    key = SigningKey(None, VECTOR["secret"].encode())
    assert len(key.secret) >= MIN_SECRET_BYTES
    assert sign(CLAIMS, key) == VECTOR["token"]
    assert verify(VECTOR["token"], [key]) == CLAIMS
    payload = base64.urlsafe_b64decode(VECTOR["token"].partition(".")[0] + "==").decode()
    assert payload == VECTOR["payload"]


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.builds(Claims, _text, _text, _text, _text, _text, st.integers(0, 2**53), st.integers(0, 2**53)))
def test_what_is_signed_is_read_back(claims: Claims) -> None:
    assert verify(sign(claims, K2), [K1, K2]) == claims


def test_a_key_never_shows_its_secret() -> None:
    assert "secret of" not in repr(K1)


# ── rotation ──


@pytest.mark.parametrize(
    ("signed_by", "configured", "accepted"),
    [
        (K1, [K1], True),
        (K1, [K2, K1], True),
        (K1, [K2], False),
        (K1_ALONE, [K2, K1], True),  # it was the only secret then and had no name
        (K1, [K1_ALONE], True),  # it is the only one now and has no name
        (K1_ALONE, [K2], False),
        (K1, [SigningKey("k9", K1.secret)], False),  # a name that says otherwise than the signature
        (K1, [], False),
    ],
)
def test_a30_a_token_is_good_as_long_as_its_key_is_listed(
    signed_by: SigningKey, configured: list[SigningKey], accepted: bool
) -> None:
    token = sign(CLAIMS, signed_by)
    if accepted:
        assert verify(token, configured) == CLAIMS
    else:
        with pytest.raises(TokenRejected):
            verify(token, configured)


def test_a30_new_tokens_carry_the_id_of_the_key_that_signs() -> None:
    payload = json.loads(base64.urlsafe_b64decode(sign(CLAIMS, K2).partition(".")[0] + "=="))
    assert list(payload)[-1] == "kid"
    assert payload["kid"] == "k2"


def test_a30_every_refusal_says_the_same() -> None:
    tokens = [
        forged({"alg": "none"}),
        f"{TOKEN.partition('.')[0]}.",
        sign(CLAIMS, SigningKey("k9", b"nobody knows this one")),
        "nonsense",
    ]
    said = set()
    for token in tokens:
        with pytest.raises(TokenRejected) as caught:
            verify(token, [K1, K2])
        said.add((caught.value.code, caught.value.message))
    assert len(said) == 1


# ── everything that is no token ──


@given(st.text(max_size=200))
def test_no_text_is_taken_for_a_token_or_breaks_it(text: str) -> None:
    with pytest.raises(TokenRejected):
        verify(text, [K1])


@given(st.integers(0, len(TOKEN) - 1), st.characters(codec="utf-8"))
def test_one_changed_character_is_enough(at: int, other: str) -> None:
    changed = TOKEN[:at] + other + TOKEN[at + 1 :]
    if changed != TOKEN:
        with pytest.raises(TokenRejected):
            verify(changed, [K1])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@given(_json | st.binary(max_size=60))
def test_a_signed_body_that_is_not_claims_is_refused(body: object) -> None:
    with pytest.raises(TokenRejected):
        verify(forged(body), [K1_ALONE])


WIRE = json.loads(VECTOR["payload"])


@pytest.mark.parametrize("name", list(WIRE))
@pytest.mark.parametrize("value", [None, True, [], {}, 1.5])
def test_a_claim_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(TokenRejected):
        verify(forged(WIRE | {name: value}), [K1_ALONE])


@pytest.mark.parametrize("name", list(WIRE))
def test_a_missing_claim_is_refused(name: str) -> None:
    with pytest.raises(TokenRejected):
        verify(forged({other: value for other, value in WIRE.items() if other != name}), [K1_ALONE])


# ── identity ──


def test_a_token_is_for_one_interaction_whatever_its_deadline_says() -> None:
    store = Applier()
    store.parked_scalar(await_terms())
    record = store.interaction()
    claims = claims_of(record, START)
    check_identity(claims, record)
    check_identity(evolve(claims, deadline_epoch_ms=1, issued_at_epoch_ms=2), record)


@pytest.mark.parametrize("name", ["tenant_id", "interaction_id", "correlation_id", "execution_id", "step_id"])
def test_each_claim_of_identity_counts(name: str) -> None:
    store = Applier()
    store.parked_scalar(await_terms())
    record = store.interaction()
    other: Any = {name: "other"}
    with pytest.raises(TokenRejected):
        check_identity(evolve(claims_of(record, START), **other), record)


def test_all_claims_are_compared_whichever_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time taken would tell how much of a guess was right."""
    store = Applier()
    store.parked_scalar(await_terms())
    record = store.interaction()
    compared: list[bytes] = []
    really = hmac.compare_digest

    def watched(mine: bytes, theirs: bytes) -> bool:
        compared.append(mine)
        return really(mine, theirs)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    other = evolve(record, tenant_id=TenantId("t2"), interaction_id=InteractionId("i2"))
    with pytest.raises(TokenRejected):
        check_identity(claims_of(other, START), record)
    assert len(compared) == 5
