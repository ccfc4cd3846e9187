from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest
import trio
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.aws.standin import StandIn
from tests.objects.owners import EXECUTION, Ledger, Owner
from tests.objects.places import BucketPlace, Location, folder
from tests.objects.s3 import make_bucket
from tpfd.blocking import Inline
from tpfd.core.publication import (
    Complete,
    NextVersion,
    Occupied,
    OnExisting,
    Place,
    Prepare,
    PublicationStep,
    Staged,
    Write,
    next_step,
)
from tpfd.core.records import Publication, PublicationState

STAGED = Staged(temporary=".out.E.2.tmp", digest="ours", size_bytes=1, item_count=1)
OURS = Publication(
    state=PublicationState.PREPARED,
    target="out",
    object_key="k",
    temporary=STAGED.temporary,
    digest="ours",
    size_bytes=1,
    item_count=1,
)
OLDER = evolve(OURS, temporary=".out.E.1.tmp", digest="older")
FAIL, REPLACE, VERSION = OnExisting


@pytest.mark.parametrize("on_existing", list(OnExisting))
@pytest.mark.parametrize(
    ("prepared", "found", "staged", "step"),
    [
        (None, None, None, Write()),
        (None, "foreign", None, Write()),
        (OLDER, None, None, Write()),
        (OLDER, "foreign", None, Write()),
        (OLDER, "older", None, Complete()),
        (OLDER, "older", STAGED, Complete()),
        (evolve(OLDER, state=PublicationState.COMPLETED), None, None, Complete()),
        (evolve(OLDER, object_key="elsewhere"), "older", None, Write()),
        (None, None, STAGED, Prepare()),
        (None, "ours", STAGED, Prepare()),
        (OLDER, None, STAGED, Prepare()),
        (evolve(OURS, digest="an earlier try of this attempt"), None, STAGED, Prepare()),
        (evolve(OURS, object_key="elsewhere"), None, STAGED, Prepare()),
        (OURS, None, STAGED, Place(replace=False)),
        (OURS, "ours", STAGED, Complete()),
    ],
)
def test_steps_that_do_not_depend_on_existing_objects(
    prepared: Publication | None,
    found: str | None,
    staged: Staged | None,
    step: PublicationStep,
    on_existing: OnExisting,
) -> None:
    assert next_step(key="k", prepared=prepared, found_digest=found, staged=staged, on_existing=on_existing) == step


@pytest.mark.parametrize(
    ("prepared", "on_existing", "step"),
    [
        (None, REPLACE, Prepare()),
        (OURS, REPLACE, Place(replace=True)),
        (None, VERSION, NextVersion()),
        (OURS, VERSION, NextVersion()),
    ],
)
def test_steps_when_another_object_stands_there(
    prepared: Publication | None, on_existing: OnExisting, step: PublicationStep
) -> None:
    decided = next_step(key="k", prepared=prepared, found_digest="foreign", staged=STAGED, on_existing=on_existing)
    assert decided == step


@pytest.mark.parametrize("prepared", [None, OURS, OLDER])
def test_fail_names_key_and_digests(prepared: Publication | None) -> None:
    decided = next_step(key="k", prepared=prepared, found_digest="foreign", staged=STAGED, on_existing=FAIL)
    assert isinstance(decided, Occupied)
    assert all(word in decided.message for word in ("'k'", "foreign", "ours", "onExisting"))


def _rows(content: int) -> list[dict[str, str]]:
    return [{"a": str(content)}] * 3


async def _play(
    place: Location, schedule: list[int], contents: list[int], on_existing: OnExisting, foreign: bool, *, discards: bool
) -> None:
    """Owners take steps in the order of `schedule`; whoever is not scheduled any more is dead. Then a last one runs."""
    if foreign:
        place.put("p.csv.out", "another's object")
    ledger = Ledger()

    def owner(content: int) -> Owner:
        return Owner(ledger, place.target(on_existing), "p.csv.out", _rows(content), on_existing, discards)

    owners, last = [owner(content) for content in contents], owner(99)
    try:
        for index in schedule:
            if not owners[index].ended:
                await owners[index].step()
        await last.run()
        for late in owners:  # everybody who was thought dead wakes up
            await late.run()
        _check(place, ledger, on_existing, foreign)
    finally:
        for late in (*owners, last):
            await late.close()
    assert place.leftovers() == []
    assert await place.target().list_temporaries(EXECUTION) == ()


def _check(place: Location, ledger: Ledger, on_existing: OnExisting, foreign: bool) -> None:
    if foreign and on_existing is not REPLACE:
        assert place.read("p.csv.out") == b"another's object"
    if foreign and on_existing is FAIL:
        assert not ledger.completed
        return
    assert ledger.completed
    publication = ledger.publication
    assert publication is not None
    data = place.read(publication.object_key)
    assert hashlib.sha256(data).hexdigest() == publication.digest, "not what was committed"
    assert len(data) == publication.size_bytes
    content = int(data.split()[1])
    assert data.decode().splitlines() == ["a", *(row["a"] for row in _rows(content))]
    assert len(place.objects()) == 1 + (foreign and on_existing is VERSION)


@pytest.mark.parametrize("on_existing", list(OnExisting))
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_taken_over_owner_never_changes_what_was_committed(
    tmp_path: Path, on_existing: OnExisting, foreign: bool
) -> None:
    # Owner 0 stops after any number of steps; owner 1 claims and stops after any number; a last one ends it.
    for first, second in itertools.product(range(14), range(14)):
        place = folder(tmp_path / f"{first}-{second}", Inline())
        await _play(place, [0] * first + [1] * second, [0, 1], on_existing, foreign, discards=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=st.lists(st.integers(0, 2), max_size=45),
    contents=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    on_existing=st.sampled_from(OnExisting),
    foreign=st.booleans(),
)
def test_any_interleaving_of_owners(
    tmp_path_factory: pytest.TempPathFactory,
    schedule: list[int],
    contents: list[int],
    on_existing: OnExisting,
    foreign: bool,
) -> None:
    place = folder(tmp_path_factory.mktemp("out") / "place", Inline())

    async def play() -> None:
        await _play(place, schedule, contents, on_existing, foreign, discards=True)

    trio.run(play)


async def test_without_the_discard_a_late_owner_does_replace(tmp_path: Path) -> None:
    """The guard matters: take it out, and the committed object is lost."""
    prepared_only = [0] * 7  # claim, discard, inspect, write, inspect, prepare, inspect: about to replace
    with pytest.raises(AssertionError, match="not what was committed"):
        await _play(folder(tmp_path / "out"), prepared_only, [0], REPLACE, foreign=True, discards=False)


S3_TURNS = [*((first, 0) for first in range(9)), (3, 5), (6, 5), (8, 7)]


@pytest.mark.parametrize("on_existing", list(OnExisting))
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_taken_over_owner_never_changes_what_was_committed_to_a_bucket(
    aws: StandIn, on_existing: OnExisting, foreign: bool
) -> None:
    for first, second in S3_TURNS:
        place = BucketPlace(aws, make_bucket(aws))
        await _play(place, [0] * first + [1] * second, [0, 1], on_existing, foreign, discards=True)


async def test_without_the_discard_a_late_owner_does_replace_in_a_bucket(aws: StandIn) -> None:
    with pytest.raises(AssertionError, match="not what was committed"):
        await _play(BucketPlace(aws, make_bucket(aws)), [0] * 7, [0], REPLACE, foreign=True, discards=False)
