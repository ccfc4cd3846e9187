"""The console page, with the headers that keep it to itself."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from tpfd.http.messages import Response


def _response() -> Response:
    html = files(__package__).joinpath("console.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(html, 'script')}",
            f"style-src {_hash(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    )
    return Response(200, html.encode(), "text/html; charset=utf-8", headers)


def _hash(html: str, element: str) -> str:
    """The page's only inline element of this kind, as a source that the policy allows."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


RESPONSE = _response()
