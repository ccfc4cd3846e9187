"""What the URL of an SQS queue says: its name, whose it is, and where it is."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_HOST = re.compile(
    r"(?:sqs(?:-fips)?\.(?P<region>[a-z0-9-]+)|(?P<older>[a-z]{2}-[a-z-]+-\d)\.queue)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)",
    re.ASCII,
)
_ACCOUNT = re.compile(r"\d{12}", re.ASCII)


def queue_name(url: str) -> str:
    """The last part of the path: ``tpf-work``."""
    return urlsplit(url).path.rstrip("/").rpartition("/")[2]


def queue_account(url: str) -> str:
    """The account in the path: ``123456789012``; empty when it names none."""
    owner = urlsplit(url).path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return owner if _ACCOUNT.fullmatch(owner) else ""


def queue_region(url: str) -> str:
    """The region in the host: ``eu-west-1``; empty when it names none, as a stand-in's does not."""
    found = _HOST.fullmatch(urlsplit(url).hostname or "")
    return "" if found is None else found["region"] or found["older"]
