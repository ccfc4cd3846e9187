"""Combinations of settings that are each allowed but cannot be meant together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpfd.config.fields import Kind
from tpfd.config.keys import KEYS
from tpfd.config.model import Config
from tpfd.config.values import show
from tpfd.errors import Problem

LEASE_PER_SKEW = 3
"""A lease is renewed at a third of its length and a takeover waits lease plus skew: with less than this the allowance
for clocks would be of the size of the lease itself."""

_NOT_ABOVE = (
    # (the smaller, the larger, why)
    ("execution.max-payload", "http.max-body", "a payload that is allowed could not be sent"),
    ("retry.delay", "retry.cap", "the first wait would already be capped"),
    ("steps.retry-wait", "steps.max-backoff", "the first wait would already be capped"),
    ("http.header-timeout", "http.request-timeout", "a request is over before its headers are late"),
    ("await.live-poll", "await.live-idle", "a session would park before it looked once"),
    ("store.dynamodb.inline-budget", "execution.max-payload", "no payload could ever reach it"),
)

_NEEDS = (
    # (key, value, what else must be set)
    ("tenancy.required", False, "tenancy.default-tenant"),
    ("store.provider", "sqlite", "store.sqlite.path"),
    ("dispatcher.provider", "sqs", "dispatcher.sqs.queue-url"),
    ("dead-letters.provider", "sqs", "dead-letters.sqs.queue-url"),
    ("dead-letters.provider", "file", "dead-letters.file.path"),
    ("item-rejects.provider", "sqs", "item-rejects.sqs.queue-url"),
    ("item-rejects.provider", "file", "item-rejects.file.path"),
    ("await.sqs.poller.enabled", True, "await.sqs.poller.response-queue-url"),
)

_APART = (
    # (key of a queue that is received from, key of another queue, what would happen in one queue)
    ("dispatcher.sqs.queue-url", "dead-letters.sqs.queue-url", "dead letters would be taken for work and deleted"),
    ("dispatcher.sqs.queue-url", "item-rejects.sqs.queue-url", "rejected items would be taken for work and deleted"),
    ("dispatcher.sqs.queue-url", "await.sqs.poller.response-queue-url", "each would take the other's messages away"),
    ("await.sqs.poller.response-queue-url", "dead-letters.sqs.queue-url", "dead letters would be taken for answers"),
    ("await.sqs.poller.response-queue-url", "item-rejects.sqs.queue-url", "rejected items would be taken for answers"),
)

_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]*", re.ASCII)

_REMOTE_WORKERS = ("worker.rest.base-url", "worker.grpc.endpoint", "worker.sqs.request-queue-url")


def check_combinations(config: Config) -> tuple[Problem, ...]:
    """List what contradicts itself; empty when nothing does."""
    return tuple(_problems(config))


def _problems(config: Config) -> Iterator[Problem]:
    if config.lease.duration_ms < LEASE_PER_SKEW * config.lease.skew_ms:
        lease, skew = _said(config, "lease.duration"), _said(config, "lease.skew")
        message = f"{lease} is shorter than {LEASE_PER_SKEW} times {skew}; lengthen the lease or allow less skew"
        yield Problem("$.lease.duration", message)
    for small, large, why in _NOT_ABOVE:
        small_value, large_value = KEYS[small].value_in(config), KEYS[large].value_in(config)
        assert isinstance(small_value, int)
        assert isinstance(large_value, int)
        if small_value > large_value:
            yield Problem(f"$.{small}", f"{_said(config, small)} is above {_said(config, large)}: {why}")
    for path, value, needed in _NEEDS:
        if KEYS[path].value_in(config) == value and not KEYS[needed].value_in(config):
            yield Problem(f"$.{needed}", f"must be set, because {_said(config, path)}")
    for path, other, why in _APART:
        url = KEYS[path].value_in(config)
        if url and url == KEYS[other].value_in(config):
            yield Problem(f"$.{other}", f"names the same queue as {_said(config, path)}: {why}; use two")
    for path, key in KEYS.items():
        named = path == "store.dynamodb.table-prefix" or path.startswith("store.dynamodb.tables.")
        if named and not _TABLE_NAME.fullmatch(str(key.value_in(config))):
            yield Problem(f"$.{path}", "is no part of a table's name; that has a-z, A-Z, 0-9, _, - and . alone")
    if config.store.sqlite.path.startswith((":memory:", "file:")):
        message = "names no file, so nothing would outlive the process; give a path, or set store.provider: memory"
        yield Problem("$.store.sqlite.path", message)
    if bool(config.http.tls.cert) != bool(config.http.tls.key):
        missing = "key" if config.http.tls.cert else "cert"
        yield Problem(f"$.http.tls.{missing}", "must be set too: TLS takes both cert and key")
    for path, key in KEYS.items():
        if key.spec.kind is Kind.URL and path.endswith("queue-url") and _is_fifo(str(key.value_in(config))):
            yield Problem(f"$.{path}", "is a FIFO queue; tpfd works with standard queues")
    targets = [path for path in _REMOTE_WORKERS if KEYS[path].value_in(config)]
    if len(targets) > 1:
        yield Problem("$.worker", f"one remote worker at most, but {' and '.join(targets)} are set")
    yield from _kids(config)


def _kids(config: Config) -> Iterator[Problem]:
    references = config.await_.resume_token_secrets
    path = "$.await.resume-token-secrets"
    if len(references) > 1 and not references[0].kid:
        yield Problem(f"{path}[0]", "needs a kid, because there are several secrets and this one signs")
    seen: dict[str, int] = {}
    for index, reference in enumerate(references):
        first = seen.setdefault(reference.kid, index)
        if first != index:
            what = f"kid {reference.kid!r}" if reference.kid else "no kid"
            yield Problem(f"{path}[{index}]", f"has {what} like entry {first}; each needs its own")


def _is_fifo(url: str) -> bool:
    return url.partition("?")[0].partition("#")[0].endswith(".fifo")


def _said(config: Config, path: str) -> str:
    return f"{path} ({show(KEYS[path], KEYS[path].value_in(config))})"
