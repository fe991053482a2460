"""The `journeyman` command.

Each module of this package named in COMMANDS holds the command of that name and exposes
`register(app: typer.Typer) -> None`. A module is imported only when its command runs:
`journeyman --help` reads the modules' first docstring lines from their source instead.
"""

import ast
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from journeyman import __version__
from journeyman.types.failure import JourneymanError, UserError

COMMANDS = (
    "quickstart",
    "learn",
    "train",
    "eval",
    "agent",
    "serve",
    "sandboxd",
    "sandbox",
    "model",
    "tasks",
    "report",
    "bench",
    "doctor",
)

_HERE = Path(__file__).parent
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class LazyGroup(TyperGroup):
    """A group of commands whose modules are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The loaded command, or for the list in the help text one that only knows its help."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=_first_line(_source(cmd_name)))
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.add_command(load_command(args[0]), args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Import `journeyman.cli.NAME` and return the command of that name it registers."""
    module = importlib.import_module(f"journeyman.cli.{name}")
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.callback()(lambda: None)
    module.register(app)
    group = typer.main.get_command(app)
    if not isinstance(group, TyperGroup) or name not in group.commands:
        raise JourneymanError(f"journeyman.cli.{name} registers no command named {name!r}")
    return group.commands[name]


def _source(name: str) -> Path:
    return _HERE / f"{name}.py"


def _first_line(source: Path) -> str:
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    line = (docstring.splitlines() or [""])[0].removeprefix(f"`journeyman {source.stem}`: ")
    return line[:1].upper() + line[1:]


app = typer.Typer(
    cls=LazyGroup,
    name="journeyman",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"journeyman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_trace: Annotated[
        bool,
        typer.Option("--traceback", help="On an error show where in the code it arose, too."),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Train coding agents on the server, tools and sandboxes they work in."""
    if show_trace:
        os.environ["JOURNEYMAN_TRACEBACK"] = "1"


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line. Always ends in SystemExit.

    Exit status: 0 done; 2 the input was wrong (what and how to mend it on stderr, no trace);
    1 something failed underneath; 130 interrupted; 143 terminated. A bug shows its trace.
    """
    try:
        app(args=list(args) if args is not None else None, prog_name="journeyman")
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseExceptionGroup as group:
        sys.exit(_report(_one_cause(group)))
    except Exception as error:
        sys.exit(_report(error))


def _report(error: BaseException) -> int:
    """Tell the person what happened on stderr; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    full = error if isinstance(error, OSError) and error.errno in _DISK_FULL else None
    known = isinstance(error, JourneymanError) or full
    if not known or os.environ.get("JOURNEYMAN_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if full:
        where = f" (while writing {full.filename})" if full.filename else ""
        print(f"error: the disk is full{where}", file=sys.stderr)
        print("  free some space, or point JOURNEYMAN_HOME at a larger disk", file=sys.stderr)
    elif isinstance(error, JourneymanError):
        print(f"error: {error}", file=sys.stderr)
    return 2 if isinstance(error, UserError) else 1


def _one_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception to tell of when tasks of a group failed together.

    An unknown one first (it is a bug and must be seen), then an interruption, then the first.
    """
    leaves = list(_leaves(group))
    bugs = [e for e in leaves if not isinstance(e, (JourneymanError, KeyboardInterrupt, OSError))]
    if bugs:
        return group
    interrupts = [e for e in leaves if isinstance(e, KeyboardInterrupt)]
    return (interrupts or leaves)[0]


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
