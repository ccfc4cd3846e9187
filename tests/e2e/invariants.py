"""What must be true of a store at the end, whatever happened to the processes that wrote it.

``violations`` says in words what is wrong. The checks assume that nothing is going on any more: every execution should
have ended, and below it nothing may be left.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attrs import define

from tests.e2e.books import Books
from tpfd.core import ids
from tpfd.core.budget import permit_key, scope_of
from tpfd.core.commit import execution_key_id
from tpfd.core.itemised import block_count, block_size
from tpfd.core.kinds import (
    BLOCK,
    EXECUTION,
    EXECUTION_KEY,
    INGESTED,
    INTERACTION,
    LATE,
    PERMIT,
    SEARCH,
    UNIT,
    block_id,
)
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionRecord,
    InteractionStatus,
    PublicationState,
    TenantId,
    UnitRecord,
    UnitStatus,
)

Problems = Iterator[str]


def violations(books: Books) -> list[str]:
    """Everything that is wrong, a sentence each; empty when nothing is."""
    return [*books.damage, *(problem for check in CHECKS for problem in check(books))]


def everything_has_ended(books: Books) -> Problems:
    """No execution is forgotten, and nothing is left to do about one."""
    for record in books.all_of(EXECUTION):
        if not record.status.terminal:
            yield f"{record.execution_id} is {record.status}"
        elif record.lease_expires_epoch_ms is not None or record.dead_letter_due or record.cleanup_due:
            yield f"{record.execution_id} is {record.status}, and there is still something to do about it"


def what_was_taken_in_is_found(books: Books) -> Problems:
    """By its idempotency key, its search keys and the object it came from; and what is found there exists."""
    roots = {record.execution_id: record for record in books.roots()}
    keyed = {
        (record.tenant_id, execution_key_id(record.pipeline_id, record.execution_key)): record
        for record in roots.values()
        if record.execution_key is not None
    }
    for record in roots.values():
        if record.execution_key is not None:
            key_id = execution_key_id(record.pipeline_id, record.execution_key)
            if keyed[record.tenant_id, key_id] is not record:
                yield f"{record.execution_id} is not the only one under the key {record.execution_key}"
            row = books.get(EXECUTION_KEY.key(record.tenant_id, key_id))
            if row is None or (row.execution_id, row.input_digest) != (record.execution_id, record.input_digest):
                yield f"the key {record.execution_key} leads to {row}, not to {record.execution_id}"
        for name in record.search:
            if books.get(SEARCH.key(record.tenant_id, f"{record.execution_id}/{name}")) is None:
                yield f"{record.execution_id} is not found by {name}"
    if lost := [row.key_id for row in books.all_of(EXECUTION_KEY) if (row.tenant_id, row.key_id) not in keyed]:
        yield f"these keys lead to no execution: {lost}"
    ingested = Counter(row.execution_id for row in books.all_of(INGESTED))
    if ingested != Counter(record.execution_id for record in roots.values() if record.source_key is not None):
        yield f"objects and their executions do not agree: {ingested}"


def nothing_is_left_below_an_end(books: Books) -> Problems:
    """No open interaction, no waiting unit, no held place of a budget, no child that could still run."""

    def is_over(tenant_id: TenantId, execution_id: str) -> bool:
        owner = books.get(EXECUTION.key(tenant_id, execution_id))
        return owner is None or owner.status.terminal

    for interaction in books.all_of(INTERACTION):
        if interaction.status.open and is_over(interaction.tenant_id, interaction.execution_id):
            yield f"{interaction.interaction_id} is {interaction.status} and its execution is over"
    for unit in books.all_of(UNIT):
        if unit.status is UnitStatus.WAITING_EXTERNAL and is_over(unit.tenant_id, unit.execution_id):
            yield f"{unit.unit_id} waits and its execution is over"
    for child in books.all_of(EXECUTION):
        parent_id = child.parent_execution_id
        if parent_id is not None and not child.status.terminal and is_over(child.tenant_id, parent_id):
            yield f"{child.execution_id} is {child.status} and its parent is over"
    given = {PERMIT.key_of(permit): permit.interaction_id for permit in books.all_of(PERMIT)}
    for one in books.all_of(INTERACTION):
        if one.status.open and one.permit_slot is not None:
            owner = given.get(permit_key(scope_of(one.pipeline_id, one.step_id), one.permit_slot))
            if owner != one.interaction_id:
                yield f"{one.interaction_id} is out in slot {one.permit_slot}, which was given to {owner}"


def answers_are_whole(books: Books) -> Problems:
    """Each interaction holds the request and the one answer that its digests name."""
    for one in books.all_of(INTERACTION):
        if one.execution_id not in one.unit_id or one.interaction_id != ids.interaction_id(one.unit_id, one.item_index):
            yield f"{one.interaction_id} is not where it says"
        if digest_of(books, one.tenant_id, one.request, one.request_stored_id) != one.request_digest:
            yield f"the request of {one.interaction_id} is not the one that was asked"
        has_answer = one.response is not None or one.response_stored_id is not None
        answer_digest = digest_of(books, one.tenant_id, one.response, one.response_stored_id)
        if has_answer != (one.status is InteractionStatus.COMPLETED):
            yield f"{one.interaction_id} is {one.status} {'with' if has_answer else 'without'} an answer"
        elif has_answer and answer_digest != one.response_digest:
            yield f"the answer of {one.interaction_id} is not the one that was admitted"
    admitted: dict[str, str] = {one.interaction_id: one.response_digest for one in books.all_of(INTERACTION)}
    for late in books.all_of(LATE):
        if admitted.get(late.interaction_id) == digest_of(books, late.tenant_id, late.body, late.stored_id):
            yield f"the admitted answer of {late.interaction_id} was refused, too"


def digest_of(books: Books, tenant_id: TenantId, text: str | None, stored_id: str | None) -> str | None:
    """SHA-256 of a value that stands in a record or apart; None when it is nowhere."""
    found = books.stored_text(tenant_id, stored_id) if stored_id is not None else text
    return None if found is None else hashlib.sha256(found.encode()).hexdigest()


def units_went_on_with_every_item(books: Books) -> Problems:
    """A completed unit has an answer to each of its items; one that was parked has used each in a child of its own."""
    interactions, children = books.interactions(), books.children()
    for unit in books.all_of(UNIT):
        if unit.status is not UnitStatus.COMPLETED:
            continue
        asked = interactions[unit.unit_id]
        expected = len(asked) if unit.expected_item_count is None else unit.expected_item_count
        if [one.item_index for one in asked] != list(range(expected)):
            yield f"{unit.unit_id} expects {expected} items, and has {[one.item_index for one in asked]}"
        if unanswered := [one.item_index for one in asked if one.status is not InteractionStatus.COMPLETED]:
            yield f"{unit.unit_id} went on without the answers to {unanswered}"
        yield from _children_of(books, unit, asked, children[unit.unit_id])


def _children_of(
    books: Books, unit: UnitRecord, asked: list[InteractionRecord], children: list[ExecutionRecord]
) -> Problems:
    expected = unit.expected_item_count if unit.itemised and unit.dispatch_complete else 0
    assert expected is not None
    if [child.item_index for child in children] != list(range(expected)):
        yield f"{unit.unit_id} has {expected} items to go on with, and children {[one.item_index for one in children]}"
        return
    for child, answered in zip(children, asked, strict=False):
        if child.status is not ExecutionStatus.SUCCEEDED or child.result is None:
            yield f"{unit.unit_id} went on without {child.execution_id}, which is {child.status}"
        if child.execution_id != ids.child_id(unit.unit_id, answered.item_index):
            yield f"{child.execution_id} is not the child of item {answered.item_index}"
    full = 0
    for index in range(block_count(expected)):
        block = books.get(BLOCK.key(unit.tenant_id, block_id(unit.unit_id, index)))
        counted = 0 if block is None else block.continued_count
        full += counted == block_size(expected, index)
        if counted != block_size(expected, index):
            yield f"block {index} of {unit.unit_id} counts {counted} of {block_size(expected, index)} items"
    if full != unit.full_block_count:
        yield f"{unit.unit_id} counts {unit.full_block_count} full blocks of {full}"


# ── the journal ──


_ENDS = {
    FactType.SEGMENT_COMPLETED: "due",
    FactType.SEGMENT_HANDED_BACK: "due",
    FactType.SEGMENT_ATTEMPT_FAILED: "due",
    FactType.SEGMENT_DEFERRED: "due",
    FactType.LEASE_TAKEN_OVER: "due",
    FactType.SEGMENT_SUSPENDED: "parked",
    FactType.OUTCOME_UNKNOWN: "unknown",
}
"""What ends an attempt, and how the execution is then."""
_REOPENS = {FactType.RUN_REDRIVEN: "due"}
_OVER = {FactType.RUN_SUCCEEDED, FactType.RUN_FAILED, FactType.RUN_CANCELLED}


@define
class _Life:
    """An execution as its facts tell it, one after the other."""

    state: str = "due"
    fence: int = 0
    unit: object = None
    prepared_version: int = 0
    digest: object = None

    def follow(self, fact: Fact) -> str | None:
        """Takes one fact in; what is wrong with it."""
        match fact.type:
            case FactType.SEGMENT_ATTEMPT_STARTED:
                before, self.state = self.state, "running"
                self.fence += 1
                if before != "due" or fact.data["fence"] != self.fence:
                    return f"attempt {fact.data['fence']} began when it was {before} and attempt {self.fence} came next"
            case kind if kind in _ENDS:
                before, self.state, self.unit = self.state, _ENDS[kind], fact.data.get("unitId")
                if before != "running" or not fact.key.endswith(f"-{self.fence}"):
                    return f"{fact.key} came when it was {before} under fence {self.fence}"
            case FactType.RESUME_RELEASED:
                before, self.state = self.state, "due"
                if before != "parked" or fact.data["unitId"] != self.unit:
                    return f"{fact.key} came when it was {before} on {self.unit}"
            case FactType.PUBLICATION_PREPARED:
                version, self.digest = int(fact.key.rpartition("-")[2]), fact.data["digest"]
                if version <= self.prepared_version or self.state != "running":
                    return f"{fact.key} came when it was {self.state} and prepared at version {self.prepared_version}"
                self.prepared_version = version
            case FactType.PUBLICATION_COMPLETED:
                if fact.data["digest"] != self.digest:
                    return f"{fact.data['digest']} was published, {self.digest} was prepared last"
            case kind if kind in _OVER:
                before, self.state = self.state, kind.value
                if before in _OVER:
                    return f"{fact.key} came when it was over: {before}"
            case kind if kind in _REOPENS:
                self.state = _REOPENS[kind]
            case _:
                pass
        return None


def the_journal_tells_one_life(books: Books) -> Problems:
    """Fences rise one by one, only the newest commits, each pause is released once, and there is one end."""
    submitted = {record.execution_id for record in books.roots()}
    for record in books.all_of(EXECUTION):
        facts = books.facts.get(record.execution_id, [])
        life = _Life()
        for fact in facts:
            if (problem := life.follow(fact)) is not None:
                yield f"{record.execution_id}: {problem}"
        counts = Counter(fact.type for fact in facts)
        if counts[FactType.RUN_SUBMITTED] != (record.execution_id in submitted):
            yield f"{record.execution_id} was submitted {counts[FactType.RUN_SUBMITTED]} times"
        if counts[FactType.RUN_SUCCEEDED] != (record.status is ExecutionStatus.SUCCEEDED):
            yield f"{record.execution_id} is {record.status} and succeeded {counts[FactType.RUN_SUCCEEDED]} times"
        if (life.state in _OVER) != record.status.terminal or life.fence != record.fence:
            yield f"{record.execution_id} is {record.status} under fence {record.fence}; the journal says {life}"
        if record.version <= max(record.fence, life.prepared_version):
            yield f"{record.execution_id} has version {record.version}, too few for what was written"
    if unknown := set(books.facts) - {record.execution_id for record in books.all_of(EXECUTION)}:
        yield f"there are facts about executions that do not exist: {sorted(unknown)}"


CHECKS: tuple[Callable[[Books], Problems], ...] = (
    everything_has_ended,
    what_was_taken_in_is_found,
    nothing_is_left_below_an_end,
    answers_are_whole,
    units_went_on_with_every_item,
    the_journal_tells_one_life,
)


# ── outputs ──


def output_violations(books: Books, folders: Mapping[str, Path], strangers: set[Path]) -> list[str]:
    """What is wrong with the objects of a set of pipelines.

    Args:
        folders: where each pipeline that publishes puts its objects.
        strangers: other files that may stand there.
    """
    problems = []
    wanted: dict[Path, ExecutionRecord] = {}
    for pipeline_id, folder in folders.items():
        for record in books.roots(pipeline_id):
            publication = record.publication
            if publication is None or publication.state is not PublicationState.COMPLETED:
                problems.append(f"{record.execution_id} is {record.status} and has published {publication}")
                continue
            path = folder / publication.object_key
            wanted[path] = record
            content = path.read_bytes() if path.exists() else b""
            if (hashlib.sha256(content).hexdigest(), len(content)) != (publication.digest, publication.size_bytes):
                problems.append(f"{path.name} has {len(content)} bytes and is not what was published: {publication}")
    for folder in set(folders.values()):
        problems += [f"{path.name} is left over" for path in sorted({*folder.iterdir()} - {*wanted} - strangers)]
    return problems
