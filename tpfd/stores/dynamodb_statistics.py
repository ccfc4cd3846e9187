"""What the groups of transactions have done, for the metrics."""

from __future__ import annotations

from attrs import define, frozen


@frozen(kw_only=True)
class GroupStatistics:
    """What the groups have done since the store was opened.

    Attributes:
        member_count: decisions that came to their end, those that were refused or raised too.
        group_count: groups, with or without anything to write.
        commit_count: writes, each one request.
        largest_group_count: most decisions in one group.
        refused_count: writes whose condition failed: another process was faster.
        split_count: groups that went on in halves.
        waiting_count: decisions that wait for a place now.
    """

    member_count: int
    group_count: int
    commit_count: int
    largest_group_count: int
    refused_count: int
    split_count: int
    waiting_count: int


@define(eq=False)
class Counts:
    """The same, as it is being counted."""

    members: int = 0
    groups: int = 0
    commits: int = 0
    largest: int = 0
    refused: int = 0
    split: int = 0
