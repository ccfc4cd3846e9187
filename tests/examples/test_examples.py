from __future__ import annotations

import importlib
import re
from datetime import datetime
from decimal import Decimal
from typing import Any, get_type_hints
from uuid import UUID

import attrs
import pytest
import yaml

from tpfd import examples
from tpfd.errors import NotFound

PYTHON_TYPES = {
    "string": str,
    "path": str,
    "currency": str,
    "uuid": UUID,
    "decimal": Decimal,
    "int64": int,
    "timestamp": datetime,
}


def _named(binding: str) -> Any:
    module, _, name = binding.partition(":")
    return getattr(importlib.import_module(module), name)


def _camel(name: str) -> str:
    return re.sub(r"_(.)", lambda match: match.group(1).upper(), name)


@pytest.mark.parametrize("name", examples.names())
def test_python_types_have_the_fields_of_the_contract(name: str) -> None:
    contract = yaml.safe_load(examples.pipeline_text(name))
    bound = contract["python"]["types"]
    declared = {name: body["fields"] for name, body in contract["types"].items() if "fields" in body}
    assert bound.keys() == declared.keys()
    for type_name, fields in declared.items():
        cls = _named(bound[type_name])
        assert cls.__name__ == type_name
        assert [_camel(field.name) for field in attrs.fields(cls)] == [field for field, _ in fields]
        hints = get_type_hints(cls)
        assert list(hints.values()) == [
            PYTHON_TYPES.get(kind) or _named(bound[kind]) for _, kind in fields
        ]


@pytest.mark.parametrize("name", examples.names())
def test_every_step_function_is_there_and_typed(name: str) -> None:
    steps = yaml.safe_load(examples.pipeline_text(name))["steps"]
    bindings = [step["python"] for step in steps if step.get("kind", "service") == "service"]
    assert len(bindings) >= 3
    for binding in bindings:
        assert get_type_hints(_named(binding))["return"] is not None


def test_an_unknown_example_lists_the_known_ones() -> None:
    assert examples.names() == ("csv-payments", "restaurant-approval", "deliver-order")
    with pytest.raises(NotFound, match="csv-payments, restaurant-approval, deliver-order") as caught:
        examples.pipeline_text("csv_payments")
    assert caught.value.code == "example_unknown"
