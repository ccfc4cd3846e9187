"""The version of a contract: what a stored value, a step index and an open question mean, as one digest.

It covers what the steps are (ids, kinds, order, cardinalities, types, what an await is answered with) and every type
that they can reach. It does not cover what may change under executions that wait: functions, timeouts, transports,
retries, sources and targets, search keys, the order in which types are written, comments, types that no step uses,
names of aliases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal

from tpfd.pipeline.declarations import AliasDecl, Constraints, RecordDecl, TypeDecl, UnionDecl, WrapperDecl
from tpfd.pipeline.model import Step
from tpfd.pipeline.type_checks import alias_target

Form = object
"""What `json` writes."""


def contract_version(declared: Mapping[str, TypeDecl], steps: Iterable[Step]) -> str:
    """The version, in hex. What goes in is spelt out field by field: a new attribute of a class must not change it."""
    types: dict[str, Form] = {}
    written: list[Form] = []
    for step in steps:
        answered = step.await_spec.completion_type if step.await_spec is not None else None
        own = (step.input_type, step.output_type, answered or step.output_type)
        names = [alias_target(declared, name) for name in own]
        accepts = sorted(alias_target(declared, name) for name in step.accepts)
        for name in (*names, *accepts):
            _add(declared, name, types)
        written.append([step.step_id, step.kind.value, step.cardinality.value, *names, accepts])
    contract = {"types": [types[name] for name in sorted(types)], "steps": written}
    return hashlib.sha256(json.dumps(contract, separators=(",", ":")).encode()).hexdigest()


def _add(declared: Mapping[str, TypeDecl], name: str, types: dict[str, Form]) -> None:
    """Adds a type and all that it reaches."""
    found = declared.get(name)
    if found is None or name in types:  # a scalar's name says all
        return
    match found:
        case RecordDecl():
            # Their order counts: values are compared by the digest of their text, which has them in this order.
            reached = [alias_target(declared, one.type_name) for one in found.fields]
            fields = [
                [one.name, type_name, one.repeated, one.optional, one.nullable, one.min_items, one.max_items]
                for one, type_name in zip(found.fields, reached, strict=True)
            ]
            types[name] = ["record", name, fields]
        case UnionDecl():
            variants = sorted((key, alias_target(declared, value)) for key, value in found.variants.items())
            types[name] = ["union", name, variants]
            reached = [value for _, value in variants]
        case WrapperDecl():
            types[name] = ["wrapper", name, found.scalar.value, _constraints(found.constraints)]
            reached = []
        case AliasDecl():
            raise AssertionError("aliases were followed")
    for one in reached:
        _add(declared, one, types)


def _constraints(one: Constraints) -> Form:
    return [
        one.min_length,
        one.max_length,
        one.pattern,
        one.email,
        _number(one.minimum),
        _number(one.minimum_exclusive),
        _number(one.maximum),
        _number(one.maximum_exclusive),
        sorted(f"{type(value).__name__}:{value}" for value in one.allowed_values),
    ]


def _number(value: Decimal | None) -> str | None:
    """1 and 1.0 are the same bound."""
    return None if value is None else format(value.normalize(), "f")
