"""Which hosts requests may go to, and which addresses those hosts may have. Pure; nothing is resolved here.

Two questions, asked at different times. *May we call this host?* is asked of the URL, when it is configured and again
on connecting: only what the list names. *May we connect to this address?* is asked of what a name resolved to: only
the public internet, unless the list names the address itself or its network. So a name on the list cannot be pointed at
the metadata service, a router or a neighbour, whoever runs its DNS; and an operator who does mean an inner service says
so by its network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Self

from attrs import frozen

from tpfd.errors import ConfigError, Problem

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCALHOST = "localhost"
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*{_LABEL}")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ENTRY = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@frozen
class _Entry:
    """One line of the list.

    Attributes:
        host: a name, or ``.suffix`` for everything below it; "" for a network.
        network: an address or network; None for a name.
        port: None: any.
    """

    host: str
    network: Network | None
    port: int | None

    def names(self, host: str) -> bool:
        """Whether it is about this name."""
        if self.host.startswith("."):
            return host.endswith(self.host) and len(host) > len(self.host)
        return bool(self.host) and self.host == host

    def holds(self, address: Address) -> bool:
        """Whether it is about this address."""
        return self.network is not None and address in self.network


@frozen
class AllowList:
    """The hosts, addresses and networks of ``await.webhook.allow``.

    Attributes:
        entries: in the order of the file.
    """

    entries: tuple[_Entry, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str], path: str) -> Self:
        """Reads the list.

        Args:
            texts: each a name, ``*.name``, an address or a network (``10.1.0.0/16``), each with ``:port`` if only that
                port is meant; an IPv6 address with a port stands in brackets.
            path: of the list, for messages.

        Raises:
            ConfigError: every entry that is none of these.
        """
        entries: list[_Entry] = []
        problems: list[Problem] = []
        for index, text in enumerate(texts):
            try:
                entries.append(_entry(text))
            except ValueError as error:
                problems.append(Problem(f"{path}[{index}]", f"{text!r} {error}"))
        if problems:
            raise ConfigError(problems)
        return cls(tuple(entries))

    def admits_host(self, host: str, port: int) -> bool:
        """Whether a URL may name this host and port.

        Args:
            host: as `normal_host` gives it.
        """
        literal = as_address(host)
        return any(entry.names(host) if literal is None else entry.holds(literal) for entry in self._at(port))

    def admits_address(self, host: str, address: Address, port: int) -> bool:
        """Whether a connection for this host may go to this address."""
        if is_public(address) or any(entry.holds(address) for entry in self._at(port)):
            return True
        # That name can mean nothing else (RFC 6761, section 6.3), so whoever lists it has said it.
        return host == LOCALHOST and address.is_loopback and self.admits_host(host, port)

    def _at(self, port: int) -> Iterator[_Entry]:
        return (entry for entry in self.entries if entry.port in (None, port))


def normal_host(text: str) -> str:
    """A host as it is compared: lower case, no last dot, no brackets; an address in its one usual form.

    Raises:
        ValueError: no host name, or an address in a spelling that programs read differently.
    """
    host = text.lower().removesuffix(".")
    address = as_address(host.removeprefix("[").removesuffix("]"))
    if address is not None:
        return str(address)
    if _NUMERIC.fullmatch(host.rpartition(".")[2]):
        raise ValueError("is an address in an odd spelling; write it as 192.0.2.1")
    if not _NAME.fullmatch(host):
        raise ValueError("is not a host name; write one outside ASCII in its xn-- form")
    return host


def as_address(text: str) -> Address | None:
    """The address that a text is in its usual spelling; None for everything else."""
    if "%" in text:
        return None  # an address of one network card
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, looking through what carries an IPv4 address inside.

    Source: the IANA special-purpose registries, as `ipaddress` knows them; RFC 4291, 6052 and 3056 for the wrappings.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if inner is not None:
        return is_public(inner)
    return address in _GLOBAL_UNICAST and address.is_global


def _entry(text: str) -> _Entry:
    written = text.strip().lower()
    if (network := _network(written)) is not None:
        return _Entry("", network, None)
    match = _ENTRY.fullmatch(written)
    if match is None:
        raise ValueError("is no host, address or network; write api.example.org, *.example.org or 10.1.0.0/16")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"names port {port}; ports go from 1 to 65535")
    inside = match["six"] if match["six"] is not None else match["host"]
    if (network := _network(inside)) is not None:
        return _Entry("", network, port)
    if inside.startswith("*."):
        return _Entry("." + normal_host(inside[2:]), None, port)
    return _Entry(normal_host(inside), None, port)


def _network(text: str) -> Network | None:
    if "%" in text:
        return None
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        if "host bits" in str(error):
            raise ValueError(f"is no network: {error}") from error
        return None
