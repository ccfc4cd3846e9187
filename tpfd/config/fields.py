"""How a configuration key is declared: once, as a field of an attrs class.

``duration_ms: int = duration("PT30S", "How long …")`` says the attribute, its type, the default, the range and the
line of documentation. The key's name in YAML follows from the attribute: the unit suffix goes (``_ms``, ``_bytes``) and
``_`` becomes ``-``, so ``retry_wait_ms`` is ``retry-wait``. `tpfd.config.keys` reads all of this back from the classes.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from typing import Final, Literal, TypeVar

import attrs

from tpfd.durations import MAX_DURATION_MS, parse_duration_ms, parse_size_bytes

T = TypeVar("T")

SPEC: Final = "tpfd.config.spec"
"""Metadata name under which a field holds its `Spec` or `SectionSpec`."""

MAX_COUNT: Final = 2**31 - 1


class Kind(enum.StrEnum):
    """What a value is; the value names it in messages and in the reference file."""

    DURATION = "duration"
    SIZE = "size"
    INTEGER = "whole number"
    NUMBER = "number"
    SWITCH = "true or false"
    TEXT = "text"
    URL = "URL"
    ADDRESS = "host:port"
    CHOICE = "one of"
    TEXTS = "list of text"
    MAP = "map of text to text"
    SECRETS = "list of secret references"

    @property
    def unit_suffix(self) -> str:
        """What an attribute of this kind ends with and its key does not."""
        match self:
            case Kind.DURATION:
                return "_ms"
            case Kind.SIZE:
                return "_bytes"
            case _:
                return ""


@attrs.frozen
class Address:
    """A place to listen.

    Attributes:
        host: name or address, an IPv6 address without its brackets.
        port: 0 to 65535; 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@attrs.frozen
class SecretRef:
    """Where a secret is to be found; never the secret itself.

    Attributes:
        source: ``file`` (a path), ``env`` (a variable's name) or ``credential`` (a systemd credential's name).
        name: the path or name.
        kid: key id that tokens carry, so that several secrets can be told apart; empty means none.
    """

    source: Literal["file", "env", "credential"]
    name: str
    kid: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.name}" + (f", kid: {self.kid}" if self.kid else "")


@attrs.frozen
class Spec:
    """Everything about a key but its name, its place and its default value.

    Attributes:
        kind: what a value is.
        doc: one line for the person who sets it.
        default_text: the default as the reference file writes it.
        minimum: smallest value in the attribute's unit; None where there is no order.
        maximum: largest value, likewise.
        framework: the property of the Java framework that means the same, or empty.
        reloadable: whether a running daemon takes a new value on reload.
        masked: whether the value must never be shown.
    """

    kind: Kind
    doc: str
    default_text: str
    minimum: float | None = None
    maximum: float | None = None
    framework: str = ""
    reloadable: bool = False
    masked: bool = False


@attrs.frozen
class SectionSpec:
    """A group of keys.

    Attributes:
        doc: one line saying what the group is about.
    """

    doc: str


def duration(
    default: str,
    doc: str,
    *,
    minimum: str = "1ms",
    maximum: str = "",
    framework: str = "",
    reloadable: bool = False,
) -> int:
    """A time span; the attribute holds milliseconds and ends in ``_ms``."""
    minimum_ms = parse_duration_ms(minimum, zero_ok=True)
    maximum_ms = parse_duration_ms(maximum) if maximum else MAX_DURATION_MS
    spec = Spec(Kind.DURATION, doc, default, minimum_ms, maximum_ms, framework, reloadable)
    return attrs.field(default=parse_duration_ms(default, zero_ok=True), metadata={SPEC: spec})


def size(default: str, doc: str, *, minimum: str = "1B", maximum: str = "1TiB", framework: str = "") -> int:
    """A number of bytes; the attribute ends in ``_bytes``."""
    spec = Spec(Kind.SIZE, doc, default, parse_size_bytes(minimum), parse_size_bytes(maximum), framework)
    return attrs.field(default=parse_size_bytes(default), metadata={SPEC: spec})


def integer(default: int, doc: str, *, minimum: int = 0, maximum: int = MAX_COUNT, framework: str = "") -> int:
    """A count."""
    spec = Spec(Kind.INTEGER, doc, str(default), minimum, maximum, framework)
    return attrs.field(default=default, metadata={SPEC: spec})


def number(default: float, doc: str, *, minimum: float, maximum: float, framework: str = "") -> float:
    """A factor or a share."""
    spec = Spec(Kind.NUMBER, doc, str(default), minimum, maximum, framework)
    return attrs.field(default=default, metadata={SPEC: spec})


def switch(default: bool, doc: str, *, framework: str = "") -> bool:
    """On or off."""
    spec = Spec(Kind.SWITCH, doc, str(default).lower(), framework=framework)
    return attrs.field(default=default, metadata={SPEC: spec})


def text(default: str, doc: str, *, framework: str = "", reloadable: bool = False) -> str:
    """A name or path; empty usually means unset."""
    spec = Spec(Kind.TEXT, doc, default or '""', framework=framework, reloadable=reloadable)
    return attrs.field(default=default, metadata={SPEC: spec})


def url(doc: str, *, framework: str = "") -> str:
    """An http or https URL; empty means unset."""
    return attrs.field(default="", metadata={SPEC: Spec(Kind.URL, doc, '""', framework=framework)})


def address(host: str, port: int, doc: str) -> Address:
    """A place to listen."""
    default = Address(host, port)
    return attrs.field(default=default, metadata={SPEC: Spec(Kind.ADDRESS, doc, str(default))})


def choice(default: T, doc: str, *, framework: str = "", reloadable: bool = False) -> T:
    """One of the words of the attribute's ``Literal`` type."""
    spec = Spec(Kind.CHOICE, doc, str(default), framework=framework, reloadable=reloadable)
    return attrs.field(default=default, metadata={SPEC: spec})


def texts(doc: str, *, framework: str = "", reloadable: bool = False) -> tuple[str, ...]:
    """A list of texts, empty by default."""
    spec = Spec(Kind.TEXTS, doc, "[]", framework=framework, reloadable=reloadable)
    return attrs.field(default=(), metadata={SPEC: spec})


def mapping(doc: str, *, masked: bool = False) -> Mapping[str, str]:
    """Texts by name, empty by default."""
    return attrs.field(factory=dict, metadata={SPEC: Spec(Kind.MAP, doc, "{}", masked=masked)})


def secrets(doc: str, *, framework: str = "", reloadable: bool = False) -> tuple[SecretRef, ...]:
    """References to secrets, none by default."""
    spec = Spec(Kind.SECRETS, doc, "[]", framework=framework, reloadable=reloadable)
    return attrs.field(default=(), metadata={SPEC: spec})


def section(cls: type[T], doc: str) -> T:
    """A group of keys of its own class."""
    return attrs.field(factory=cls, metadata={SPEC: SectionSpec(doc)})
