"""The effective configuration as rows for ``tpfd check``, and a command that makes the generated files anew.

``python -m tpfd.config.render etc > etc/tpfd.yaml`` and
``python -m tpfd.config.render schema > tpfd/config/tpfd.schema.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import attrs

from tpfd.config.keys import KEYS
from tpfd.config.load import Loaded
from tpfd.config.reference import reference_text, schema
from tpfd.config.values import show


@attrs.frozen
class Row:
    """One key as it is in effect.

    Attributes:
        key: its path, as ``lease.duration``.
        value: for people: with its unit, secrets masked.
        origin: ``flag``, ``environment TPFD_…``, ``FILE:LINE`` or ``default``.
        framework: the Java framework's property for it; empty when there is none.
    """

    key: str
    value: str
    origin: str
    framework: str


def effective(loaded: Loaded) -> tuple[Row, ...]:
    """Every key in the order of the reference file."""
    return tuple(
        Row(path, show(key, key.value_in(loaded.config)), loaded.origins[path], key.spec.framework)
        for path, key in KEYS.items()
    )


def schema_text() -> str:
    """The JSON schema as the package ships it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print a generated file.

    Returns:
        The exit code: 2 when it was not said which.
    """
    match arguments:
        case ["etc"]:
            sys.stdout.write(reference_text())
        case ["schema"]:
            sys.stdout.write(schema_text())
        case _:
            sys.stderr.write("usage: python -m tpfd.config.render etc|schema\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
