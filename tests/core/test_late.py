"""Completions that changed nothing: how they are kept, and what a match makes of an orphan."""

from __future__ import annotations

from attrs import evolve

from tests.core.applier import START, TENANT, Applier, await_terms
from tpfd.core import late
from tpfd.core.awaits import Completion
from tpfd.core.kinds import LATE
from tpfd.core.late import LateReason
from tpfd.core.records import JsonText, LateRecord, Payload
from tpfd.core.transact import Snapshot

BODY = Payload(type_name="", json=JsonText('"yes"'))


def orphan(digest: str = "d" * 64, now: int = START) -> LateRecord:
    return late.orphan(TENANT, "lost", BODY, digest, "bank", now)


def test_an_orphan_is_kept_once() -> None:
    first, again, other = orphan(), orphan(now=START + 5), orphan("e" * 64)
    assert first.late_id == again.late_id != other.late_id
    assert (first.reason, first.execution_id, first.body) == ("orphan", None, BODY.json)
    key = LATE.key_of(first)
    assert late.keep(Snapshot({key: None}), first).puts == (first,)
    matched = evolve(first, reason=LateReason.MATCHED)
    for known in (first, matched):
        assert late.keep(Snapshot({key: known}), again).puts == ()


def test_an_orphan_that_is_matched_goes_to_its_execution_and_only_once() -> None:
    store = Applier()
    store.parked_scalar(await_terms())
    interaction, record = store.interaction(), orphan()
    key = LATE.key_of(record)
    (matched,) = late.match(Snapshot({key: record}), key, interaction).puts
    assert LATE.key_of(matched) == key
    assert (matched.reason, matched.execution_id, matched.actor) == ("matched", interaction.execution_id, "bank")
    assert (matched.interaction_id, matched.step_id) == (interaction.interaction_id, interaction.step_id)
    assert late.match(Snapshot({key: matched}), key, evolve(interaction, step_id="other")).puts == ()
    assert late.match(Snapshot({key: None}), key, interaction).puts == ()


def test_a_large_body_is_referred_to() -> None:
    store = Applier()
    store.parked_scalar(await_terms())
    large = Completion(response=JsonText('"yes"'), stored_id="e1.answer")
    kept = late.refused(store.interaction(), large, LateReason.LATE, START)
    assert (kept.body, late.body_of(kept)) == (None, Payload(type_name="", stored_id="e1.answer"))


def test_nothing_in_an_id_needs_escaping_in_a_url() -> None:
    assert orphan().late_id == "lost~dddddddddddddddd"
