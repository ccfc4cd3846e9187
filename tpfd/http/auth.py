"""Who calls, what they may do, and for which tenant.

A token file has one token a line::

    # token                       roles             tenant
    3b0c5a7e9f2d4c6b8a1f0e2d      submit,complete   acme
    91d2f7a4c5e8b6037f6a2c1e      -                 acme
    c0ffee5f1f2f3f4f5f6f7f8f

Roles and tenant may be left out, ``-`` stands for "as usual in this file". A token with a tenant acts for that tenant
only. The roles:

========  ==============================================================
role      may, besides looking at everything of its tenants
========  ==============================================================
submit    submit inputs
complete  answer interactions, attach as a provider
operate   cancel and re-drive executions, see completions that were lost
admin     everything
========  ==============================================================

Without any token the edge is open; it then takes care that no web page in a browser on the same host can reach it:
such a page cannot name another origin as its own, and cannot use a host name that is not ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection
from enum import Enum, StrEnum
from functools import lru_cache
from urllib.parse import urlsplit

from attrs import field, frozen

from tpfd.core.records import TenantId
from tpfd.errors import ConfigError, MalformedError, Problem, TokenRejected
from tpfd.http.messages import Request
from tpfd.http.problems import RequestRefused

MIN_TOKEN_CHARS = 16
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_SAFE_METHODS = frozenset({"GET", "HEAD"})


class Role(StrEnum):
    SUBMIT = "submit"
    COMPLETE = "complete"
    OPERATE = "operate"
    ADMIN = "admin"


class Access(Enum):
    """What a route asks of its caller."""

    PUBLIC = "nobody is asked for a token"
    READ = "any token"
    SUBMIT = Role.SUBMIT
    COMPLETE = Role.COMPLETE
    OPERATE = Role.OPERATE


API_ROLES = frozenset({Role.SUBMIT, Role.COMPLETE})
ADMIN_ROLES = frozenset({Role.ADMIN})


@frozen
class Token:
    """A bearer token, known only by its digest.

    Attributes:
        digest: sha256 of the token.
        tenant: the only tenant it may act for; None: any.
    """

    digest: bytes = field(repr=False)
    roles: frozenset[Role]
    tenant: TenantId | None = None

    @property
    def name(self) -> str:
        """Names the token in logs and history without giving it away."""
        return f"token-{self.digest.hex()[:8]}"


@frozen
class Caller:
    """Who sent a request."""

    name: str
    roles: frozenset[Role]
    tenant: TenantId | None


_ANYBODY = Caller("local", ADMIN_ROLES, None)


def parse_tokens(text: str, *, origin: str, usual_roles: Collection[Role]) -> tuple[Token, ...]:
    """Reads a token file.

    Args:
        text: its content.
        origin: its name, for messages.
        usual_roles: roles of a line that names none.

    Raises:
        ConfigError: every bad line with its number; the tokens themselves are never repeated.
    """
    tokens: list[Token] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        faults, token = _token(words, usual_roles)
        if any(token.digest == other.digest for other in tokens):
            faults.append("the token stands on an earlier line too")
        problems.extend(Problem(f"{origin}:{number}", fault) for fault in faults)
        tokens.append(token)
    if not tokens and not problems:
        problems.append(Problem(origin, "there is no token in the file"))
    if problems:
        raise ConfigError(problems)
    return tuple(tokens)


def _token(words: list[str], usual_roles: Collection[Role]) -> tuple[list[str], Token]:
    faults: list[str] = []
    if len(words) > 3:
        faults.append("expected: token [roles] [tenant]")
    token, roles_text, tenant = (*words, "-", "-")[:3]
    if len(token) < MIN_TOKEN_CHARS or not token.isascii():
        faults.append(f"a token has at least {MIN_TOKEN_CHARS} ASCII characters")
    roles = set(usual_roles) if roles_text == "-" else set()
    for name in () if roles_text == "-" else roles_text.split(","):
        try:
            roles.add(Role(name))
        except ValueError:
            faults.append(f"unknown role {name!r}; the roles are {', '.join(Role)}")
    if tenant != "-" and not _TENANT.fullmatch(tenant):
        faults.append(f"{tenant!r} is not a tenant id")
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    return faults, Token(digest, frozenset(roles), None if tenant == "-" else TenantId(tenant))


@frozen
class Authority:
    """Decides about callers.

    Attributes:
        tokens: empty: everybody may do everything.
        host: the address we listen on, as configured.
    """

    tokens: tuple[Token, ...]
    host: str
    default_tenant: str
    tenant_required: bool

    def caller(self, request: Request) -> Caller:
        """Finds out who calls.

        Raises:
            TokenRejected: no token, or one that is not ours.
            RequestRefused: open edge, and the request comes from a foreign web page.
        """
        if not self.tokens:
            self._refuse_foreign_pages(request)
            return _ANYBODY
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise TokenRejected("a bearer token is required: Authorization: Bearer TOKEN")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found: Token | None = None
        for known in self.tokens:  # to the end: how long it takes must not say which one matched
            if hmac.compare_digest(known.digest, digest):
                found = known
        if found is None:
            raise TokenRejected("the bearer token is not known here")
        return Caller(found.name, found.roles, found.tenant)

    @staticmethod
    def require(caller: Caller, access: Access) -> None:
        """Refuses a caller whose roles do not include what the route asks for.

        Raises:
            RequestRefused: 403.
        """
        if access in {Access.PUBLIC, Access.READ} or Role.ADMIN in caller.roles or access.value in caller.roles:
            return
        raise RequestRefused(403, "forbidden", f"this needs the role {access.value}, which the token does not have")

    def tenant(self, caller: Caller, *named: str | None) -> TenantId:
        """The tenant to act for.

        Args:
            caller: who calls.
            named: tenant ids given in path, header or body; None where there was none. They must agree.

        Raises:
            MalformedError: not a tenant id, contradicting ones, or none although one is required.
            RequestRefused: the token belongs to another tenant.
        """
        given = {name for name in named if name is not None}
        if len(given) > 1:
            raise MalformedError("path, x-tenant-id and body name different tenants", code="tenant_contradiction")
        if not given:
            if caller.tenant is not None:
                return caller.tenant
            if self.tenant_required:
                raise MalformedError("the header x-tenant-id is required", code="tenant_required")
            return TenantId(self.default_tenant)
        name = given.pop()
        if not _TENANT.fullmatch(name):
            raise MalformedError(
                "a tenant id has 1 to 128 letters, digits and . _ : @ - and starts with a letter or digit",
                code="tenant_invalid",
            )
        if caller.tenant not in {None, name}:
            raise RequestRefused(403, "tenant_forbidden", "the token belongs to another tenant")
        return TenantId(name)

    def _refuse_foreign_pages(self, request: Request) -> None:
        host = request.header("host") or ""
        if not _may_be_reached_as(self.host, host):
            raise RequestRefused(
                421, "foreign_host", f"reached as {host!r}; use {self.host}, localhost or an address"
            )
        origin = request.header("origin")
        if origin is None or (request.method in _SAFE_METHODS and request.header("upgrade") is None):
            return
        if urlsplit(origin).netloc != host:
            raise RequestRefused(403, "foreign_origin", "a page of another origin may not call a daemon without tokens")


@lru_cache(maxsize=256)
def _may_be_reached_as(bound: str, host: str) -> bool:
    """Whether a Host header can be meant for us: bound to loopback, only an address or a name that is always local."""
    if not (bound == "localhost" or (_is_address(bound) and ipaddress.ip_address(bound).is_loopback)):
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a lone bracket
        return False
    return name in {bound, "localhost"} or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
