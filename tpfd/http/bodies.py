"""Reads JSON bodies: every problem at once, each with its path."""

from __future__ import annotations

from typing import cast

from tpfd.codec.strict_json import parse_json
from tpfd.errors import PayloadError, Problem
from tpfd.http.messages import JSON, Request
from tpfd.http.problems import RequestRefused

MAX_TEXT_CHARS = 4096


def require_json(request: Request) -> None:
    """Refuses a body that does not say it is JSON.

    A browser sends JSON to a foreign origin only after asking, and we never say yes: so this also keeps web pages out.

    Raises:
        RequestRefused: 415.
    """
    media_type, _, rest = (request.header("content-type") or "").partition(";")
    media_type = media_type.strip().lower()
    charset = rest.lower().replace(" ", "").replace('"', "")
    is_json = media_type == JSON or (media_type.startswith("application/") and media_type.endswith("+json"))
    if not is_json or charset not in {"", "charset=utf-8", "charset=utf8"}:
        raise RequestRefused(415, "not_json", "send the body as Content-Type: application/json, in UTF-8")
    if request.header("content-encoding") not in {None, "identity"}:
        raise RequestRefused(415, "encoded_body", "send the body without Content-Encoding")


class Members:
    """The members of one JSON object; unknown ones are ignored, blank texts are absent.

    Ask for what is needed, then call `check`, which raises for all that was wrong.

    Args:
        data: parsed JSON data.
        path: where the object stands in the body.
    """

    def __init__(self, data: object, path: str = "$") -> None:
        self._path = path
        self.problems: list[Problem] = []
        self._members: dict[str, object] = {}
        if isinstance(data, dict):
            self._members = cast("dict[str, object]", data)
        else:
            self.problems.append(Problem(path, "expected an object"))

    @classmethod
    def of_body(cls, body: bytes) -> Members:
        """The members of a body; no body at all is an empty object.

        Raises:
            MalformedError: the body is not JSON.
        """
        return cls(parse_json(body) if body else {})

    def problem(self, name: str, message: str) -> None:
        """Adds a problem with one member."""
        if not self.problems or self.problems[0].path != self._path:  # no object at all says everything
            self.problems.append(Problem(f"{self._path}.{name}", message))

    def has(self, name: str) -> bool:
        return name in self._members

    def value(self, name: str) -> object:
        """Any JSON value that must be there; null counts."""
        if name not in self._members:
            self.problem(name, "is required")
        return self._members.get(name)

    def text(self, name: str, *, required: bool = False) -> str | None:
        """A text; None when absent, null or blank."""
        value = self._members.get(name)
        if isinstance(value, str):
            text = value.strip()
            if len(text) > MAX_TEXT_CHARS:
                self.problem(name, f"has more than {MAX_TEXT_CHARS} characters")
            if text:
                return text
        elif value is not None:
            self.problem(name, "expected a text")
            return None
        if required:
            self.problem(name, "is required")
        return None

    def whole(self, name: str, *, lowest: int, highest: int, default: int | None = None) -> int:
        """A whole number; required when there is no default. What it returns is only good after `check`."""
        value = self._members.get(name)
        if value is None:
            if default is None:
                self.problem(name, "is required")
            return default if default is not None else lowest
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            self.problem(name, f"expected a whole number from {lowest} to {highest}")
            return lowest
        return value

    def flag(self, name: str) -> bool:
        """True or false; false when absent."""
        value = self._members.get(name)
        if value is not None and not isinstance(value, bool):
            self.problem(name, "expected true or false")
        return value is True

    def texts(self, name: str, *, highest_count: int) -> tuple[str, ...]:
        """A list of one or more texts."""
        value = self._members.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= highest_count:
            self.problem(name, f"expected a list of 1 to {highest_count} texts")
            return ()
        if not all(isinstance(item, str) and item.strip() for item in value):
            self.problem(name, "expected texts that are not blank")
            return ()
        return tuple(item.strip() for item in value)

    def check(self) -> None:
        """Raises PayloadError when there was any problem."""
        if self.problems:
            raise PayloadError(self.problems, code="body_invalid")
