"""Where a webhook step sends its requests: the transport settings of the pipeline, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from attrs import define, field, frozen

from tpfd.durations import parse_duration_ms
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.model import Pipeline, Step
from tpfd.pipeline.names import did_you_mean
from tpfd.transports.allow_list import AllowList, normal_host

WEBHOOK = "webhook"
COMPLETION_PATH = "/pipeline/interactions/complete"
METHODS = ("POST", "PUT", "PATCH")

_REQUEST_KEYS = ("url", "method", "headers", "timeout", "timeoutMillis")
_TOP_KEYS = ("request", "dispatch", "callback", *_REQUEST_KEYS)
_CALLBACK_KEYS = ("baseUrl", "completionPath", "completionUrl")
_OURS = ("idempotency-key", "traceparent", "host", "content-length", "transfer-encoding", "connection", "expect", "te",
         "trailer", "upgrade", "content-encoding")  # fmt: skip
_OUR_PREFIX = "x-tpf-"
_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json(?:\s*;\s*charset=utf-?8)?", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_PORTS = {"http": 80, "https": 443}


@frozen(kw_only=True)
class WebhookTarget:
    """One webhook step, ready to be called.

    Attributes:
        host: as compared with the allow-list; no brackets.
        path: with the query; it begins with a slash.
        headers: the pipeline's own, names in lower case; none that are ours.
        timeout_ms: of one request, from connecting to the answer.
        callback: the envelope's callback block; None: none is configured.
    """

    scheme: str
    host: str
    port: int
    path: str
    method: str
    headers: tuple[tuple[str, str], ...]
    timeout_ms: int
    callback: Mapping[str, str] | None

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def webhook_steps(pipeline: Pipeline) -> list[Step]:
    """The await steps that send webhooks."""
    return [step for step in pipeline.steps if step.await_spec is not None and step.await_spec.transport == WEBHOOK]


def read_targets(pipeline: Pipeline, allowed: AllowList, timeout_ms: int) -> dict[int, WebhookTarget]:
    """The targets of a pipeline's webhook steps, by step index.

    Args:
        allowed: what may be called.
        timeout_ms: of a step that names none.

    Raises:
        ConfigError: every setting that cannot be used.
    """
    problems: list[Problem] = []
    found: dict[int, WebhookTarget] = {}
    for step in webhook_steps(pipeline):
        assert step.await_spec is not None
        reader = _Reader(f"$.steps[{step.index}].await.transport", step.await_spec.settings)
        target = reader.target(allowed, timeout_ms)
        problems.extend(reader.problems)
        if target is not None:
            found[step.index] = target
    if problems:
        raise ConfigError(problems)
    return found


@define
class _Reader:
    """Reads the settings of one step, noting every problem."""

    path: str
    settings: Mapping[str, object]
    problems: list[Problem] = field(factory=list)

    def target(self, allowed: AllowList, timeout_ms: int) -> WebhookTarget | None:
        self._check_keys(self.path, self.settings, _TOP_KEYS)
        # The framework takes these in `request`, in `dispatch`, or directly in `transport`.
        places = [(f"{self.path}.{name}", self._section(self.settings, name)) for name in ("request", "dispatch")]
        for path, section in places:
            self._check_keys(path, section, _REQUEST_KEYS)
        places.append((self.path, self.settings))
        url_path, url = self._first(places, "url")
        method_path, method = self._first(places, "method")
        headers_path, headers = self._first(places, "headers")
        text = "POST" if method is None else str(method).upper()
        if text not in METHODS:
            self._problem(method_path, f"{method!r} is not a method for sending a body; use {', '.join(METHODS)}")
        address = self._url(f"{self.path}.request.url" if url is None else url_path, url, allowed)
        own = tuple(self._headers(headers_path, headers))
        wait_ms = self._timeout_ms(places, timeout_ms)
        callback = self._callback()
        if address is None or self.problems:
            return None
        return WebhookTarget(
            scheme=address.scheme,
            host=normal_host(address.hostname or ""),
            port=address.port or _PORTS[address.scheme],
            path=(address.path or "/") + (f"?{address.query}" if address.query else ""),
            method=text,
            headers=own,
            timeout_ms=wait_ms,
            callback=callback,
        )

    def _url(self, path: str, value: object, allowed: AllowList) -> SplitResult | None:
        if value is None:
            self._problem(path, "is missing: a webhook step needs the address that its requests go to")
            return None
        address = self._address(path, value)
        if address is None:
            return None
        if address.username is not None or address.password is not None:
            self._problem(path, "has a user name in it, which would end up in logs; send credentials as a header")
            return None
        try:
            host = normal_host(address.hostname or "")
        except ValueError as error:
            self._problem(path, f"its host {address.hostname!r} {error}")
            return None
        port = address.port or _PORTS[address.scheme]
        if not allowed.admits_host(host, port):
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self._problem(path, f"{place} is not on the allow-list; add it to await.webhook.allow if it may be called")
        return address

    def _address(self, path: str, value: object) -> SplitResult | None:
        """An http or https URL that can be put into a request as it is."""
        if not isinstance(value, str) or not _VISIBLE.fullmatch(value):
            self._problem(path, "is not a URL in visible ASCII; percent-encode everything else")
            return None
        try:
            address = urlsplit(value)
            usable = address.scheme in _PORTS and bool(address.hostname) and address.port != 0
        except ValueError as error:
            self._problem(path, f"is not a URL: {error}")
            return None
        if not usable or address.fragment:
            self._problem(path, "is not a URL with http:// or https://, a host, and no fragment")
            return None
        return address

    def _headers(self, path: str, value: object) -> Iterable[tuple[str, str]]:
        if value is None:
            return
        if not isinstance(value, dict):
            self._problem(path, "a mapping of header names to texts is needed here")
            return
        for name, text in value.items():
            lower = str(name).lower()
            here = f"{path}.{name}"
            if not _HEADER_NAME.fullmatch(str(name)):
                self._problem(here, "is not a header name")
            elif not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
                self._problem(here, "is not a header value: text in visible ASCII is needed")
            elif lower in _OURS or lower.startswith(_OUR_PREFIX):
                self._problem(here, "is set by tpfd itself; take it out")
            elif lower == "content-type":
                if not _JSON_TYPE.fullmatch(text):
                    self._problem(here, f"{text!r} is not what is sent: the body is JSON")
                else:
                    yield lower, text
            else:
                yield lower, text

    def _timeout_ms(self, places: list[tuple[str, Mapping[str, object]]], default_ms: int) -> int:
        path, value = self._first(places, "timeout")
        if value is not None:
            try:
                return parse_duration_ms(value)
            except ValueError as error:
                self._problem(path, str(error))
            return default_ms
        path, millis = self._first(places, "timeoutMillis")
        if millis is None:
            return default_ms
        if not isinstance(millis, int) or isinstance(millis, bool) or millis < 1:
            self._problem(path, "a whole number of milliseconds is needed here")
            return default_ms
        return millis

    def _callback(self) -> Mapping[str, str] | None:
        path = f"{self.path}.callback"
        section = self._section(self.settings, "callback")
        self._check_keys(path, section, _CALLBACK_KEYS)
        texts: dict[str, str] = {}
        for name in _CALLBACK_KEYS:
            value = section.get(name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                self._problem(f"{path}.{name}", "text is needed here")
            elif value is not None:
                texts[name] = str(value).strip()
        if not texts:
            return None
        for name in ("baseUrl", "completionUrl"):
            if name in texts:
                self._address(f"{path}.{name}", texts[name])
        if "completionUrl" not in texts:
            if "baseUrl" not in texts:
                self._problem(path, "needs a baseUrl, as https://tpfd.example.org: where answers can reach this daemon")
                return None
            completion_path = "/" + texts.get("completionPath", COMPLETION_PATH).removeprefix("/")
            texts["completionPath"] = completion_path
            texts["completionUrl"] = texts["baseUrl"].rstrip("/") + completion_path
        return texts

    def _first(self, places: list[tuple[str, Mapping[str, object]]], name: str) -> tuple[str, object]:
        """Path and value of a setting in the first place that has it."""
        for path, section in places:
            if section.get(name) is not None:
                return f"{path}.{name}", section[name]
        return f"{self.path}.{name}", None

    def _section(self, values: Mapping[str, object], name: str) -> Mapping[str, object]:
        value = values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problem(f"{self.path}.{name}", "a mapping is needed here")
            return {}
        return value

    def _check_keys(self, path: str, values: Mapping[str, object], known: tuple[str, ...]) -> None:
        for key in values:
            if key not in known:
                self._problem(f"{path}.{key}", f"unknown key {key!r}{did_you_mean(key, known)}")

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))
