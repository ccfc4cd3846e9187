"""Small pipelines to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tpfd.errors import ConfigError
from tpfd.pipeline.loader import load_pipeline
from tpfd.pipeline.model import Pipeline

Load = Callable[..., Pipeline]
Names = Mapping[str, str]

TYPES = """
version: 3
appName: Order Desk
types:
  Order: {fields: [[orderId, uuid], [amount, decimal]]}
  Accepted: {fields: [[orderId, uuid]]}
  Declined: {fields: [[orderId, uuid], [reason, string]]}
  Decision: {variants: {accepted: Accepted, declined: Declined}}
  Done: {fields: [[orderId, uuid], [outcome, string]]}
"""


@pytest.fixture
def load() -> Load:
    """Load `steps` (and more) on top of a few order types."""

    def loaded(rest: str, environ: Names | None = None, bindings: Names | None = None, head: str = TYPES) -> Pipeline:
        return load_pipeline(head + rest, "p.yaml", environ or {}, bindings)

    return loaded


@pytest.fixture
def problems(load: Load) -> Callable[..., list[str]]:
    """Every problem of a file, without file name and line."""

    def found(rest: str, environ: Names | None = None, bindings: Names | None = None, head: str = TYPES) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(rest, environ, bindings, head)
        return [f"{one.message.partition(': ')[2]} @ {one.path}" for one in caught.value.problems]

    return found
