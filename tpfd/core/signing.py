"""Signatures of requests between processes: hex HMAC-SHA256 over method, path, time, nonce and body digest.

The same form signs transition-worker requests and webhook deliveries; only the header names differ.
"""

from __future__ import annotations

import hashlib
import hmac


def signature(secret: bytes, *, method: str, path: str, timestamp: str, nonce: str, body: bytes) -> str:
    """The signature of one request.

    Args:
        method: in capitals.
        path: with its query, if it has one.
        timestamp: ISO instant, as in the header.
        nonce: fresh per request.
        body: the exact bytes.
    """
    text = "\n".join((method, path, timestamp, nonce, hashlib.sha256(body).hexdigest()))
    return hmac.digest(secret, text.encode(), hashlib.sha256().name).hex()


def matches(expected: str, given: str) -> bool:
    """Whether two signatures are equal, in constant time."""
    return hmac.compare_digest(expected.encode(), given.encode())
