"""One HTTP exchange with the daemon: send, wait, and turn everything that is not success into a typed error."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Self

import httpx
import orjson

from tpfd.client.errors import ProblemDetail, ServerRefused, Unreachable

CONNECT_TIMEOUT_S = 5.0


class Exchange:
    """Sends requests to one daemon for one tenant.

    Use as an async context manager; the connection pool lives as long as the block.

    Args:
        url: base address, such as ``http://127.0.0.1:8081``; a path prefix is kept.
        tenant: sent as ``x-tenant-id``; None leaves it to the daemon's default tenant.
        token: bearer token; None sends none.
        timeout_s: how long to wait for one answer, on top of what the daemon was asked to wait.
        transport: for tests: an httpx transport in place of the network.

    Raises:
        Unreachable: when ``url`` is not an http or https address.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        host = _host(self.url)
        headers = {"accept": "application/json"}
        if tenant is not None:
            headers["x-tenant-id"] = tenant
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            headers=headers,
            transport=transport,
            # A proxy for the wide world must not get between us and a daemon on this host.
            trust_env=not _is_loopback(host),
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str | int | None] | None = None,
        headers: Mapping[str, str | None] | None = None,
        wait_s: float = 0.0,
    ) -> httpx.Response:
        """Sends one request.

        Args:
            method: HTTP method.
            path: path below the base address, already escaped.
            body: JSON data; an ``orjson.Fragment`` in it goes out byte for byte. None sends no body.
            query: query parameters; those that are None are left out.
            headers: further headers; those that are None are left out.
            wait_s: how long the daemon was asked to hold the request.

        Returns:
            The answer, whose status is below 400.

        Raises:
            ServerRefused: status 400 and above.
            Unreachable: no answer, or a redirect.
        """
        sent = {name: value for name, value in (headers or {}).items() if value is not None}
        content = None
        if body is not None:
            content = orjson.dumps(body)
            sent["content-type"] = "application/json"
        try:
            response = await self._http.request(
                method,
                self.url + path,
                params={name: value for name, value in (query or {}).items() if value is not None},
                headers=sent,
                content=content,
                timeout=httpx.Timeout(self._timeout_s + wait_s, connect=CONNECT_TIMEOUT_S),
            )
        except httpx.TimeoutException as error:
            raise Unreachable(f"no answer from {self.url} to {method} {path} in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"cannot reach {self.url}: {error or type(error).__name__}") from error
        if response.is_redirect:
            raise Unreachable(f"{self.url} redirects to {response.headers['location']}; give that address as --url")
        if response.status_code >= 400:
            raise refusal(response)
        return response


def refusal(response: httpx.Response) -> ServerRefused:
    """The typed error for an answer with status 400 and above."""
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None  # a proxy's own page: the status and its reason are all there is to say
    problem = ProblemDetail.from_json(response.status_code, body, reason=response.reason_phrase)
    return ServerRefused(problem, retry_after_s=retry_after_s(response))


def retry_after_s(response: httpx.Response) -> float | None:
    """The Retry-After header in seconds; None when absent or given as a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def json_body(response: httpx.Response) -> Any:
    """The decoded body of a success.

    Raises:
        Unreachable: the body is not JSON, so this is not the daemon.
    """
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        where = response.request.url.copy_with(query=None)
        raise Unreachable(f"{where} answered {response.status_code} with no JSON; is this a tpfd daemon?") from error


def _host(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"{url!r} is not an address: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise Unreachable(f"{url!r} is not an address like http://127.0.0.1:8081")
    return parsed.host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: whether it is this host is the resolver's business
