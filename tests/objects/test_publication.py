from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest
import trio
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.objects.owners import EXECUTION, Ledger, Owner
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
from tpfd.objects.filesystem_target import FilesystemTarget

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
    root: Path, schedule: list[int], contents: list[int], on_existing: OnExisting, foreign: bool, *, discards: bool
) -> None:
    """Owners take steps in the order of `schedule`; whoever is not scheduled any more is dead. Then a last one runs."""
    target = FilesystemTarget(root, Inline())
    before = root / "p.csv.out"
    if foreign:
        before.write_text("another's object")
    ledger = Ledger()
    owners = [Owner(ledger, target, "p.csv.out", _rows(content), on_existing, discards) for content in contents]
    last = Owner(ledger, target, "p.csv.out", _rows(99), on_existing, discards)
    try:
        for index in schedule:
            if not owners[index].ended:
                await owners[index].step()
        await last.run()
        for owner in owners:  # everybody who was thought dead wakes up
            await owner.run()
        _check(root, ledger, on_existing, foreign)
    finally:
        for owner in (*owners, last):
            await owner.close()
    assert await target.list_temporaries(EXECUTION) == ()


def _check(root: Path, ledger: Ledger, on_existing: OnExisting, foreign: bool) -> None:
    if foreign and on_existing is not REPLACE:
        assert (root / "p.csv.out").read_text() == "another's object"
    if foreign and on_existing is FAIL:
        assert not ledger.completed
        return
    assert ledger.completed
    publication = ledger.publication
    assert publication is not None
    data = (root / publication.object_key).read_bytes()
    assert hashlib.sha256(data).hexdigest() == publication.digest, "not what was committed"
    assert len(data) == publication.size_bytes
    content = int(data.split()[1])
    assert data.decode().splitlines() == ["a", *(row["a"] for row in _rows(content))]
    objects = [path for path in root.iterdir() if not path.name.startswith(".")]
    assert len(objects) == 1 + (foreign and on_existing is VERSION)


@pytest.mark.parametrize("on_existing", list(OnExisting))
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_taken_over_owner_never_changes_what_was_committed(
    tmp_path: Path, on_existing: OnExisting, foreign: bool
) -> None:
    # Owner 0 stops after any number of steps; owner 1 claims and stops after any number; a last one ends it.
    for first, second in itertools.product(range(14), range(14)):
        root = tmp_path / f"{first}-{second}"
        root.mkdir()
        await _play(root, [0] * first + [1] * second, [0, 1], on_existing, foreign, discards=True)


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
    root = tmp_path_factory.mktemp("out")

    async def play() -> None:
        await _play(root, schedule, contents, on_existing, foreign, discards=True)

    trio.run(play)


async def test_without_the_discard_a_late_owner_does_replace(tmp_path: Path) -> None:
    """The guard matters: take it out, and the committed object is lost."""
    prepared_only = [0] * 7  # claim, discard, inspect, write, inspect, prepare, inspect: about to replace
    with pytest.raises(AssertionError, match="not what was committed"):
        await _play(tmp_path, prepared_only, [0], REPLACE, foreign=True, discards=False)
