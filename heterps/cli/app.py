"""The `heterps` command. Every verb loads its own libraries: `--help` and `place` stay quick."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from heterps.cli.discover import discover
from heterps.cli.examples import EXAMPLES
from heterps.cli.graph import graphs
from heterps.cli.library import library
from heterps.cli.moved import RunCommand
from heterps.cli.options import Seed, finite
from heterps.cli.other_tools import export, import_plan
from heterps.cli.place import compare, place
from heterps.cli.policy import policies
from heterps.cli.profile import profile
from heterps.cli.report import report
from heterps.cli.run import run
from heterps.cli.simulate import simulate, spot_trace
from heterps.cli.train import train
from heterps_configs.errors import (
    LONGEST_NAME,
    HeterpsError,
    NotEnoughDevicesError,
    shortened,
)
from heterps_configs.units import escaped

# Paths are shorter as a rule.
LONGEST_WORD = 500

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Decide which layer of a neural network runs on which device of a mixed cluster.",
)
app.add_typer(library)
app.add_typer(graphs)
app.add_typer(policies)

_settings = {"debug": False}


def _version(wanted: bool) -> None:
    if wanted:
        from heterps import __version__

        typer.echo(f"heterps {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""
    _settings["debug"] = debug


app.command(epilog=EXAMPLES["place"])(place)
app.command(epilog=EXAMPLES["compare"])(compare)
app.command(cls=RunCommand, epilog=EXAMPLES["run"])(run)
app.command(epilog=EXAMPLES["train"])(train)
app.command(epilog=EXAMPLES["discover"])(discover)
app.command(epilog=EXAMPLES["profile"])(profile)
app.command(epilog=EXAMPLES["simulate"])(simulate)
app.command(name="spot-trace", epilog=EXAMPLES["spot-trace"])(spot_trace)
app.command(epilog=EXAMPLES["export"])(export)
app.command(epilog=EXAMPLES["report"])(report)
app.command("import", epilog=EXAMPLES["import"])(import_plan)


@app.command(epilog=EXAMPLES["demo"])
def demo(
    run_directory: Annotated[
        Path, typer.Option("--run-directory", help="Everything the demo writes.")
    ] = Path("runs/demo"),
    train_s: Annotated[
        float,
        typer.Option("--train-seconds", callback=finite, min=1, help="Seconds of policy training."),
    ] = 60.0,
    seed: Seed = 0,
) -> None:
    """The whole loop on this machine: profile, train, place, compare, run, drift, adapt."""
    from heterps.run_commands.demo import run_demo

    run_demo(run_directory, train_s=train_s, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script.

    Args:
        arguments: The command line without the program's name; by default that of the process.

    Raises:
        SystemExit: 0 when all went well, 2 for what a user can mend, 3 for a run that lost too many
            devices, 1 for a defect of ours. Errors are one line on stderr; with `--debug` they keep
            their traceback.
    """
    # Of a warning, a user needs the text, and neither the file nor the line.
    warnings.formatwarning = lambda message, *where, **more: f"warning: {_one_line(str(message))}\n"
    try:
        _command()(args=None if arguments is None else list(arguments), prog_name="heterps")
    except NotEnoughDevicesError as error:
        _fail(error, str(error), 3)
    except HeterpsError as error:
        _fail(error, str(error), 2)
    except BrokenPipeError:
        _end_quietly()
    except SystemExit as stop:
        # rich and click end the process by themselves where the reader has gone.
        cause = stop.__context__
        if isinstance(cause, BrokenPipeError):
            _end_quietly()
        # An interrupt that reaches typer becomes its code, without a word.
        if cause is not None and isinstance(cause.__cause__, KeyboardInterrupt):
            typer.echo("interrupted", err=True)
        raise
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = shortened(str(error.filename), LONGEST_NAME)
            _fail(error, f"{name}: is too long for the name of a file", 2)
        _fail(error, _internal(error), 1)
    except Exception as error:
        _fail(error, _internal(error), 1)


def _internal(error: Exception) -> str:
    return f"internal error: {type(error).__name__}: {error} (`heterps --debug ...` shows where)"


@cache
def _command() -> Callable[..., object]:
    """What parses command lines: built of the hints of all functions, once in a process."""
    return typer.main.get_command(app)


def _end_quietly() -> None:
    """The reader of our output (head, less) has gone; that is no error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    # Of `heterps ... 2>&1 | head`.
    os.dup2(nothing, sys.stderr.fileno())
    sys.exit(0)


def _fail(error: Exception, text: str, code: int) -> None:
    if _settings["debug"]:
        raise error
    typer.echo(f"error: {_one_line(text)}", err=True)
    sys.exit(code)


def _one_line(text: str) -> str:
    """A message in which no name out of a file moves a terminal's cursor, or fills its screen."""
    words = re.sub(
        rf"\S{{{LONGEST_WORD + 1},}}", lambda found: shortened(found[0], LONGEST_NAME), text
    )
    return escaped(" ".join(words.splitlines()))


if __name__ == "__main__":
    main()
