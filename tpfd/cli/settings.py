"""What the options before the command say; every command gets it as its click object."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import click
from attrs import frozen

DEFAULT_URL = "http://127.0.0.1:8081"


class Output(StrEnum):
    """How results are written to stdout."""

    TABLE = "table"
    JSON = "json"


@frozen
class Settings:
    """The global options.

    Attributes:
        config: the configuration file of `serve` and `check`; None means that only defaults and environment count.
        url: the daemon's address.
        token: bearer token, None when none was given.
        token_file: file whose first line is the bearer token; read only when a request needs it.
        tenant: tenant id, None is the daemon's default tenant.
        output: how results are written.
    """

    config: Path | None = None
    url: str = DEFAULT_URL
    token: str | None = None
    token_file: Path | None = None
    tenant: str | None = None
    output: Output = Output.TABLE

    def bearer(self) -> str | None:
        """The bearer token, read from its file if need be.

        Raises:
            click.UsageError: both were given, or the file cannot be read or is empty.
        """
        if self.token_file is None:
            return self.token
        if self.token is not None:
            raise click.UsageError("give --token (or TPFD_TOKEN) or --token-file, not both")
        try:
            lines = self.token_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--token-file: {error}") from error
        if not lines or not lines[0].strip():
            raise click.UsageError(f"--token-file: {self.token_file} is empty")
        return lines[0].strip()


pass_settings = click.make_pass_decorator(Settings)
