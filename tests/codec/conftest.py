"""A codec over a few types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpfd.codec.payloads import PayloadCodec
from tpfd.errors import PayloadError
from tpfd.pipeline.loader import load_pipeline


@pytest.fixture
def codec_of() -> Callable[[str], PayloadCodec]:
    """A codec for `types` (YAML, one per line)."""

    def made(types: str) -> PayloadCodec:
        text = f"version: 3\nappName: x\ntypes:\n  Anything: {{fields: []}}\n{types}\n"
        steps = 'steps: [{name: S, input: Anything, output: Anything, python: "m:f"}]\n'
        return PayloadCodec(load_pipeline(text + steps, "t", {}).types)

    return made


@pytest.fixture
def one_field(codec_of: Callable[[str], PayloadCodec]) -> Callable[[str, str], str]:
    """Read ``{"v": <json>}`` as a field of a type and write it again; the JSON of the value, or its refusal."""

    def round_trip(declaration: str, json_text: str) -> str:
        codec = codec_of(f"  T: {{fields: [[v, {declaration}]]}}")
        try:
            value = codec.decode_json("T", f'{{"v": {json_text}}}')
        except PayloadError as error:
            return "; ".join(str(problem) for problem in error.problems)
        return codec.encode("T", value)[len('{"v":') : -1]

    return round_trip
