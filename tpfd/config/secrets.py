"""Secrets: read from files, the environment or systemd credentials, and never shown again.

Reading touches the file system: at start it is done before the event loop runs, on reload in a thread.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from typing import Final, NoReturn

import attrs

from tpfd.config.fields import SecretRef
from tpfd.config.model import Config
from tpfd.errors import ConfigError, Problem

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
MASKED: Final = "Secret(********)"

_ADMIN = "$.http.admin-token-file"
_API = "$.http.api-token-file"

_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
_CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}", re.ASCII)


class Secret:
    """Bytes that must not be seen in logs, messages or tracebacks."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes, for signing; the name is to be found by a search for places that use them."""
        return self._value

    def matches(self, candidate: bytes) -> bool:
        """Compare in a time that does not tell how much was right."""
        return hmac.compare_digest(self._value, candidate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    __hash__ = None  # type: ignore[assignment]  # a secret is no key of anything

    def __repr__(self) -> str:
        return MASKED

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


@attrs.frozen
class ResumeSecret:
    """A secret of resume tokens.

    Attributes:
        kid: key id carried by the tokens it signs; empty for none.
        secret: the bytes.
    """

    kid: str
    secret: Secret


@attrs.frozen
class Secrets:
    """Every secret that the configuration refers to.

    Attributes:
        resume: secrets of resume tokens, the signing one first; empty when none is configured.
        admin_tokens: content of the file with bearer tokens for everything; None when none is configured.
        api_tokens: content of the file with those for submitting, completing and looking; None likewise.
    """

    resume: tuple[ResumeSecret, ...]
    admin_tokens: Secret | None
    api_tokens: Secret | None


def read_secrets(config: Config, environ: Mapping[str, str]) -> Secrets:
    """Read all secrets.

    Args:
        config: says where they are.
        environ: for ``env`` and for the folder of ``credential`` references.

    Raises:
        ConfigError: every secret that is missing, too short, or kept where others can read it.
    """
    references = {f"$.await.resume-token-secrets[{n}]": one for n, one in enumerate(config.await_.resume_token_secrets)}
    token_files = {_ADMIN: config.http.admin_token_file, _API: config.http.api_token_file}
    tokens = {path: SecretRef("file", file) for path, file in token_files.items() if file}
    found: dict[str, Secret] = {}
    problems: list[Problem] = []
    for path, reference in (references | tokens).items():
        try:
            found[path] = read_secret(reference, environ)
        except ValueError as error:
            problems.append(Problem(path, str(error)))
    if problems:
        raise ConfigError(problems)
    resume = tuple(ResumeSecret(reference.kid, found[path]) for path, reference in references.items())
    return Secrets(resume, found.get(_ADMIN), found.get(_API))


def read_secret(reference: SecretRef, environ: Mapping[str, str]) -> Secret:
    """Read one secret. One line end after it, as editors write it, is not part of it.

    Raises:
        ValueError: it cannot be used; the message says why, never what was read.
    """
    match reference.source:
        case "env":
            if reference.name not in environ:
                raise ValueError(f"environment variable {reference.name} is not set")
            where, value = f"environment variable {reference.name}", os.fsencode(environ[reference.name])
        case "credential":
            file = _credential_file(reference.name, environ)
            where, value = f"credential {reference.name}", _read_private(file)
        case "file":
            where, value = f"file {reference.name}", _read_private(reference.name)
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if len(value) < MIN_SECRET_BYTES:
        raise ValueError(
            f"{where} holds {len(value)} bytes, at least {MIN_SECRET_BYTES} are needed; make one: openssl rand -hex 32"
        )
    return Secret(value)


def _credential_file(name: str, environ: Mapping[str, str]) -> str:
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        raise ValueError(f"credential {name}: no CREDENTIALS_DIRECTORY here; systemd sets it for LoadCredential=")
    if not _CREDENTIAL_NAME.fullmatch(name) or name in {".", ".."}:
        raise ValueError(f"credential {name!r} is not a credential's name")
    return f"{folder}/{name}"


def _read_private(file: str) -> bytes:
    """Read a small regular file that only its owner (and perhaps a group) may read.

    The checks are made on the open file, so that nobody can swap it in between.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold us up
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise ValueError(f"file {file} cannot be read: {reason}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"file {file} is not a regular file")
        if status.st_mode & _TOO_OPEN:
            mode = stat.S_IMODE(status.st_mode)
            raise ValueError(f"file {file} is open to others (mode {mode:04o}); run: chmod 0400 {file}")
        value = os.read(descriptor, MAX_SECRET_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(value) > MAX_SECRET_BYTES:
        raise ValueError(f"file {file} is longer than {MAX_SECRET_BYTES} bytes; it is hardly a secret")
    return value
