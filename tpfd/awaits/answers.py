"""Reads an answer: decodes it, runs the step's projector, makes it canonical, stores a large one apart.

All of it before the transaction: what is slow, or wrong, or somebody else's code never runs inside a store.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tpfd import payloads
from tpfd.boundaries import contained
from tpfd.codec.digests import digest
from tpfd.codec.strict_json import json_text
from tpfd.core.awaits import AwaitTerms, Completion, question_of
from tpfd.core.failures import Failure
from tpfd.core.records import InteractionRecord, JsonText, Payload, TenantId
from tpfd.errors import PayloadError, Problem, TooLarge
from tpfd.ops.logs import get_logger
from tpfd.program import Program
from tpfd.runtime import Runtime

log = get_logger("tpfd.answers")


@frozen
class Decoded:
    """An answer that fits.

    Attributes:
        value: canonical, typed; a list where the answer is MANY.
        completion: the same, ready for the transaction.
    """

    value: Any
    completion: Completion


async def read(
    runtime: Runtime,
    program: Program,
    seen: InteractionRecord,
    payload: object,
    *,
    actor: str | None,
    key: str | None,
) -> Decoded:
    """Reads the answer to an interaction.

    Args:
        program: loaded under the contract of the interaction.
        payload: parsed JSON data.
        actor: who says so; None: not told.
        key: idempotency key of the completion; None: not given.

    Raises:
        PayloadError: it does not fit, with every path; ``projector_failed`` when the step's projector does not take it.
        TooLarge: it has more items, or more bytes, than allowed.
        StoreError: it could not be stored apart.
    """
    terms = program.terms[seen.step_index]
    value = await _canonical(runtime, program, terms, seen, payload)
    encode = functools.partial(program.encode, seen.output_type)
    text = JsonText("[" + ",".join(map(encode, value)) + "]") if terms.gives_many else encode(value)
    count = len(value) if terms.gives_many else None
    slot = f"answer.{seen.step_index}.{seen.item_index}"
    whole = Payload(type_name=seen.output_type, json=text, item_count=count)
    stored = await payloads.stored(runtime, seen.tenant_id, seen.execution_id, slot, whole)
    return Decoded(value, Completion(response=text, stored_id=stored.stored_id, item_count=count, actor=actor, key=key))


async def keep_raw(runtime: Runtime, tenant_id: TenantId, claimed_id: str, payload: object) -> tuple[Payload, str]:
    """The body of an answer that nobody could read, as it was sent, with its digest. Raises TooLarge, StoreError."""
    text = JsonText(json_text(payload))
    body = Payload(type_name="", json=text)
    # Not under the execution that it may claim: it stays when that is removed.
    return await payloads.stored(runtime, tenant_id, "orphan", claimed_id, body), digest(text)


async def _canonical(
    runtime: Runtime, program: Program, terms: AwaitTerms, seen: InteractionRecord, payload: object
) -> Any:
    """The value in the step's own type: decoded as what the outside sends, and projected if the step says so."""
    spec = program.step(seen.step_index).await_spec
    if spec is None or spec.completion_type is None:
        return _decoded(runtime, program, seen.output_type, payload, many=terms.gives_many)
    completion = _decoded(runtime, program, spec.completion_type, payload, many=terms.gives_many)
    request = await payloads.any_value_of(runtime, program, seen.tenant_id, question_of(seen))
    projected = await contained(functools.partial(_projected, program, terms, seen, request, completion))
    if isinstance(projected, Failure):
        log.warning(
            "projector_failed",
            interaction_id=seen.interaction_id,
            step_id=seen.step_id,
            code=projected.code,
            message=projected.message,
        )
        problem = Problem("$", f"the projector of {seen.step_id} does not take it: {projected.message}")
        raise PayloadError([problem], code="projector_failed") from projected.error
    return projected


async def _projected(
    program: Program, terms: AwaitTerms, seen: InteractionRecord, request: Any, completion: Any
) -> Any:
    """What the user's projector makes of an answer, checked against the step's type."""
    value = program.functions[seen.step_id].call(request, completion, _metadata(seen))
    if not terms.gives_many:
        return _checked(program, seen.output_type, value)
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"it gave {type(value).__name__}, not a list of {seen.output_type}")
    return [_checked(program, seen.output_type, one) for one in value]


def _checked(program: Program, type_name: str, value: Any) -> Any:
    """The value as it would come back from the store."""
    if program.type_name(value) not in program.pipeline.types.concrete(type_name):
        raise TypeError(f"it gave {type(value).__name__}, which is no {type_name}")
    return program.codec.decode_json(type_name, program.encode(type_name, value))


def _decoded(runtime: Runtime, program: Program, type_name: str, payload: object, *, many: bool) -> Any:
    """A value, or of an aggregate answer the list of values, with every problem's path."""
    if not many:
        return program.codec.decode(type_name, payload)
    if not isinstance(payload, list):
        raise PayloadError([Problem("$", f"a list of {type_name} is wanted")])
    limit = runtime.settings.max_result_items
    if len(payload) > limit > 0:
        raise TooLarge(f"the answer has {len(payload)} items; await.aggregate-max-output-items allows {limit}")
    values: list[Any] = []
    problems: list[Problem] = []
    for place, one in enumerate(payload):
        try:
            values.append(program.codec.decode(type_name, one))
        except PayloadError as error:
            problems.extend(Problem(f"$[{place}]{found.path[1:]}", found.message) for found in error.problems)
    if problems:
        raise PayloadError(problems)
    return values


def _metadata(seen: InteractionRecord) -> Mapping[str, object]:
    return {
        "interactionId": seen.interaction_id,
        "executionId": seen.execution_id,
        "stepId": seen.step_id,
        "itemIndex": seen.item_index,
        **seen.transport_metadata,
    }
