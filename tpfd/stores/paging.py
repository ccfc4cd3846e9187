"""Places in an index, and their opaque text form, the cursor."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from tpfd.core.kinds import KINDS
from tpfd.core.transact import Index, Kind, Sort
from tpfd.errors import InternalError, MalformedError

KIND_BY_INDEX: dict[Index[Any], Kind[Any]] = {index: kind for kind in KINDS for index in kind.indexes}

_INT64 = range(-(2**63), 2**63)


class Place(NamedTuple):
    """Where a record stands within an index partition. Places compare as the index orders."""

    sort: Sort
    tenant: str
    record_id: str


def kind_of_index(index: Index[Any]) -> Kind[Any]:
    """The kind whose records the index shows.

    Raises:
        InternalError: the index belongs to no stored kind.
    """
    kind = KIND_BY_INDEX.get(index)
    if kind is None:
        raise InternalError(f"the index {index.name!r} belongs to no stored kind")
    return kind


def check_limit(limit: int) -> None:
    """Raises InternalError unless a page of `limit` records makes sense."""
    if limit < 1:
        raise InternalError(f"a page of {limit} records was asked for")


def write_cursor(index: Index[Any], place: Place) -> str:
    """The cursor that goes on behind `place`."""
    parts = [_name(index), place.sort, place.tenant, place.record_id]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode()


def read_cursor(index: Index[Any], cursor: str) -> Place:
    """The place a cursor stands for.

    Raises:
        MalformedError: it was not written by `write_cursor` for this index.
    """
    try:
        parts = json.loads(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
        json.dumps(parts, ensure_ascii=False).encode()  # text that is no UTF-8 cannot be looked for
    except (ValueError, RecursionError, binascii.Error) as error:
        raise _not_ours(index) from error
    match parts:
        case [str(name), str() | int() as sort, str(tenant), str(record_id)] if name == _name(index):
            if isinstance(sort, str) or (not isinstance(sort, bool) and sort in _INT64):
                return Place(sort, tenant, record_id)
    raise _not_ours(index)


def _name(index: Index[Any]) -> str:
    return f"{kind_of_index(index).name}.{index.name}"


def _not_ours(index: Index[Any]) -> MalformedError:
    return MalformedError(
        f"the cursor is not one of {_name(index)}: use the cursor of the page before as it came, or none to start over"
    )
