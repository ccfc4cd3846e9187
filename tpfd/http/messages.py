"""Requests and responses as plain values, with the few readers that every route needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

import orjson
from attrs import define, field, frozen

from tpfd.errors import MalformedError, Problem

JSON = "application/json"
MAX_QUERY_FIELDS = 32


class BadQuery(MalformedError):
    """A query parameter that cannot be used."""

    code = "bad_query"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"query parameter {name!r}: {message}")
        self.problems = (Problem(f"?{name}", message),)


@define
class Request:
    """One HTTP request whose head is read and whose body is not.

    Attributes:
        method: upper case.
        path: as sent, still percent-encoded, without the query.
        query_string: as sent, without the question mark.
        headers: names in lower case; a name that came twice has its values joined by ``", "``.
        peer: the client's address, for logs.
        read_body: reads the whole body once, within the size limit and the deadline.
    """

    method: str
    path: str
    query_string: str
    headers: Mapping[str, str]
    peer: str
    read_body: Callable[[], Awaitable[bytes]]
    has_body: bool = False

    def header(self, name: str) -> str | None:
        """The header's value without surrounding blanks; None when absent or blank."""
        return self.headers.get(name, "").strip() or None

    def query(self) -> Query:
        """The decoded query.

        Raises:
            MalformedError: it is not UTF-8, or a name came twice.
        """
        if not self.query_string:
            return Query({})
        try:
            pairs = parse_qsl(
                self.query_string, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
            )
        except ValueError as error:
            raise MalformedError(f"the query cannot be decoded: {error}", code="bad_query") from error
        values = dict(pairs)
        if len(values) != len(pairs):
            twice = next(name for index, (name, _) in enumerate(pairs) if name in {other for other, _ in pairs[:index]})
            raise BadQuery(twice, "given more than once")
        return Query(values)


@frozen
class Query:
    """Query parameters; a blank value is an absent one."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """The value; None when absent or blank."""
        return self.values.get(name, "").strip() or None

    def count(self, name: str, *, default: int, highest: int) -> int:
        """A whole number from 1 to `highest`.

        Raises:
            BadQuery: it is something else.
        """
        text = self.text(name)
        if text is None:
            return default
        number = _whole(text)
        if number is None or not 1 <= number <= highest:
            raise BadQuery(name, f"expected a whole number from 1 to {highest}, not {text!r}")
        return number

    def sequence(self, name: str) -> int:
        """A sequence number of the journal; 0, before the first, when absent.

        Raises:
            BadQuery: it is something else.
        """
        text = self.text(name)
        if text is None:
            return 0
        number = _whole(text)
        if number is None:
            raise BadQuery(name, f"expected a sequence number, not {text!r}")
        return number

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Parameters whose name starts with `prefix`, without it."""
        return {name[len(prefix) :]: value for name, value in self.values.items() if name.startswith(prefix)}


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


@frozen
class Response:
    """One HTTP response, complete.

    Attributes:
        headers: further headers, names in lower case; type and length are added when it is sent.
    """

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = field(default=())


def json_response(status: int, data: object, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A JSON answer. `data` may hold an ``orjson.Fragment`` for text that is JSON already."""
    return Response(status, orjson.dumps(data), JSON, headers)
