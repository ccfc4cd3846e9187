"""What a live session makes of what it is told."""

from __future__ import annotations

import pytest

from tests.conformance.samples import UNIT_ID, interaction
from tpfd.awaits.sessions import LiveSession
from tpfd.core.records import InteractionStatus
from tpfd.core.session import Window

DRIVE = 2


@pytest.mark.parametrize(("told_of", "ends"), [(DRIVE, True), (DRIVE - 1, False)])
def test_how_an_item_ended_in_a_drive_before_does_not_end_this_one(told_of: int, ends: bool) -> None:
    """A late answer shows it, while the item is about to be asked again."""
    session = LiveSession(UNIT_ID, DRIVE, Window(5))
    ended = interaction(status=InteractionStatus.CANCELLED, redrive_count=told_of)
    session.window.ask(ended.interaction_id, ended.item_index)
    session.tell(ended)
    assert (session.ended is not None) is ends


def test_an_answer_of_a_drive_before_stands() -> None:
    session = LiveSession(UNIT_ID, DRIVE, Window(5))
    answered = interaction(status=InteractionStatus.COMPLETED, redrive_count=0)
    session.window.ask(answered.interaction_id, answered.item_index)
    session.tell(answered)
    assert [record for record, _ in session.answered] == [answered]
