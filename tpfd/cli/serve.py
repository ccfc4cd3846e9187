"""``tpfd serve``: the daemon in the foreground."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from tpfd.cli.settings import Settings, pass_settings
from tpfd.config.load import Loaded, load_config
from tpfd.errors import ConfigError, Problem

config_option = click.option(
    "--config", "own_config", type=click.Path(path_type=Path), metavar="FILE", help="The same as the global --config."
)
set_option = click.option(
    "--set", "flags", multiple=True, metavar="KEY=VALUE", help="A key over everything else: http.bind=127.0.0.1:9000."
)


pipelines_argument = click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")


@click.command(short_help="Run the daemon in the foreground.")
@pipelines_argument
@config_option
@set_option
@pass_settings
def serve(
    settings: Settings, *, pipelines: tuple[str, ...], own_config: Path | None, flags: tuple[str, ...]
) -> int:
    """Run the daemon in the foreground.

    It is ready when /q/health/ready answers 200. SIGTERM drains: intake stops, work in hand may finish within
    drain.grace, the rest is handed back; a second SIGTERM ends at once. Without a configuration file, defaults and
    TPFD_… variables count. PIPELINE is a pipeline.yaml or example:NAME, instead of those that the file names.

    \b
    Example:
      tpfd serve --config /etc/tpfd/tpfd.yaml
      tpfd serve pipeline.yaml --set store.sqlite.path=tpfd.db --set http.bind=127.0.0.1:9000
    """
    reread = functools.partial(load, own_config or settings.config, flags, pipelines)
    loaded = reread()
    from tpfd.daemon import run

    return run(loaded, reread)


def load(file: Path | None, flags: Sequence[str], pipelines: Sequence[str] = ()) -> Loaded:
    """Reads the configuration that a command line names.

    Args:
        file: the configuration file; None is defaults and environment only.
        flags: ``KEY=VALUE`` texts.
        pipelines: named on the command line, instead of those of the file.

    Raises:
        ConfigError: it cannot be read or used; every problem.
        click.UsageError: a flag has no ``=``.
    """
    text = None
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError([Problem("$", f"cannot read {file}: {error.strerror}")]) from error
        except UnicodeDecodeError as error:
            problem = Problem("$", f"{file} is not UTF-8 text: {error.reason} at byte {error.start}")
            raise ConfigError([problem]) from error
    values = dict(_pair(flag) for flag in flags)
    if pipelines:
        # A flag's value is YAML, and JSON is YAML.
        values["pipelines"] = json.dumps(list(pipelines))
    return load_config(text, str(file or "tpfd.yaml"), os.environ, values)


def _pair(flag: str) -> tuple[str, str]:
    key, found, value = flag.partition("=")
    if not found or not key:
        raise click.UsageError(f"--set {flag!r}: write KEY=VALUE, as http.bind=127.0.0.1:9000")
    return key, value
