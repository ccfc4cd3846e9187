"""Digests of canonical texts."""

from __future__ import annotations

import hashlib


def digest(text: str) -> str:
    """The sha256 of a text's UTF-8 bytes, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
