"""The ``tpfd`` command: global options, and commands that are imported only when they are used.

The HTTP client, Trio and the tables take a quarter of a second to import; ``tpfd --help`` and shell completion need
none of them, so the list of commands stands here as text and each command's module is imported when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from tpfd import __version__
from tpfd.cli.exits import Exit, exit_code
from tpfd.cli.settings import DEFAULT_URL, Output, Settings
from tpfd.errors import TpfdError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tpfd.cli.serve:serve", "Run the daemon in the foreground."),
    "demo": ("tpfd.cli.demo:demo", "Run a shipped example from end to end; nothing else is needed."),
    "submit": ("tpfd.cli.work:submit", "Submit an input; prints the execution id."),
    "run": ("tpfd.cli.work:run", "Submit an input and wait for its result."),
    "status": ("tpfd.cli.work:status", "Show where an execution stands."),
    "result": ("tpfd.cli.work:result", "Print the result of an execution."),
    "list": ("tpfd.cli.work:list_executions", "List executions."),
    "history": ("tpfd.cli.history:history", "Show what happened to an execution."),
    "watch": ("tpfd.cli.watch:watch", "Follow what happens, as it happens."),
    "cancel": ("tpfd.cli.work:cancel", "Cancel an execution."),
    "redrive": ("tpfd.cli.redrive:redrive", "Put failed executions back to work."),
    "pending": ("tpfd.cli.human:pending", "List interactions that wait for an answer."),
    "complete": ("tpfd.cli.human:complete", "Answer an interaction."),
    "orphans": ("tpfd.cli.orphans:orphans", "List completions that met no interaction; match one."),
    "check": ("tpfd.cli.check:check", "Check configuration and pipelines; show the effective values."),
    "provision": ("tpfd.cli.provision:provision", "Make the tables and queues that a configuration uses."),
    "doctor": ("tpfd.cli.doctor:doctor", "Look at a live store; say what needs an operator."),
    "types": ("tpfd.cli.check:types", "Print a pipeline's types as a Python module."),
    "provider": ("tpfd.cli.provider:provider", "Run the mock payment provider."),
}
"""Command name -> where it is, and its line in ``tpfd --help`` (a test compares it with the command's own)."""

FILE = click.Path(path_type=Path)
FORM = click.Choice([form.value for form in Output])


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The commands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; for one that is not there, the nearest name."""
        from difflib import get_close_matches

        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--config", envvar="TPFD_CONFIG", type=FILE, metavar="FILE", help="Configuration of `serve` and `check`.")
@click.option("--url", envvar="TPFD_URL", default=DEFAULT_URL, show_default=True, metavar="URL", help="The daemon.")
@click.option("--token", envvar="TPFD_TOKEN", metavar="TOKEN", help="Bearer token; better in TPFD_TOKEN or a file.")
@click.option("--token-file", envvar="TPFD_TOKEN_FILE", type=FILE, metavar="FILE", help="File with the bearer token.")
@click.option("--tenant", envvar="TPFD_TENANT", metavar="ID", help="Tenant; the daemon's default tenant if absent.")
@click.option("--output", envvar="TPFD_OUTPUT", type=FORM, default="table", show_default=True, help="Form of stdout.")
@click.version_option(__version__, prog_name="tpfd", message="%(prog)s %(version)s")
@click.pass_context
def cli(
    ctx: click.Context,
    config: Path | None,
    url: str,
    token: str | None,
    token_file: Path | None,
    tenant: str | None,
    output: str,
) -> None:
    """tpfd, the durable pipeline daemon.

    Options of this list stand before the command.

    \b
    Example:
      tpfd demo csv-payments
      tpfd --output json status 01J…
    """
    ctx.obj = Settings(
        config=config, url=url, token=token, token_file=token_file, tenant=tenant, output=Output(output)
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; errors are told on stderr.

    Args:
        arguments: without the program's name; None takes those of the process.
    """
    try:
        returned = cli.main(
            args=None if arguments is None else list(arguments), prog_name="tpfd", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except TpfdError as error:
        from tpfd.cli.output import tell_error

        tell_error(error)
        return exit_code(error)
    return returned if isinstance(returned, int) else Exit.OK


def main() -> NoReturn:
    """The console entry point."""
    sys.exit(run())


if __name__ == "__main__":
    main()
