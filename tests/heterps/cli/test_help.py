"""Help in groups, examples that work, and what the shell completes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import typer.main

from heterps.cli import options
from heterps.cli.app import app
from heterps.cli.examples import EXAMPLES
from heterps.cli.library import LISTED
from heterps.commands.library import KINDS
from heterps_agents.interface.registry import planner_names, system_names
from heterps_agents.interface.sentences import SENTENCES
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Objective, Optimizer, Schedule

Heterps = Callable[..., Any]
GROUP: Any = typer.main.get_command(app)


def completed(*words: str) -> list[str]:
    """What a shell offers for the last of some words, from a new process that must not see torch.

    torch's import is made to fail there.
    """
    script = "import sys; sys.modules['torch'] = None; from heterps.cli.app import main; main([])"
    environment = os.environ | {
        "_HETERPS_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(["heterps", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_shell_completes_planners_without_torch() -> None:
    assert completed("place", "gpt2", "-c", "a100-v100", "--planner", "ex") == ["exact"]


@pytest.mark.parametrize(
    ("command", "parameter", "begun", "expected"),
    [
        ("place", "model", "llama-7b", "llama-7b"),
        ("place", "cluster", "a100-v100-", "a100-v100-t4"),
        ("compare", "chosen", "auto,sail", "auto,sailor"),
        ("place", "policy", "price", "price-generalist"),
        ("place-graph", "policy", "graph", "graph-generalist"),
        ("score", "policy", "gen", "generalist"),
        ("train", "config", "qui", "quick"),
        ("run", "cluster", "h100", "h100-pod"),
        ("place", "schedule", "zero", "zero-bubble"),
        ("copy", "name", "run-set", "run-settings"),
        ("list", "kind", "plan", "planners"),
    ],
)
def test_names_are_completed(command: str, parameter: str, begun: str, expected: str) -> None:
    found = next(p for p in GROUP.commands[command].params if p.name == parameter)
    with GROUP.commands[command].make_context(command, [], resilient_parsing=True) as context:
        assert [item.value for item in found.shell_complete(context, begun)] == [expected]


def test_the_choices_that_help_names_are_those_of_the_documents() -> None:
    assert get_args(Dtype) == options.DTYPES
    assert get_args(Optimizer) == options.OPTIMIZERS
    assert get_args(Schedule) == options.SCHEDULES
    assert get_args(Objective) == options.OBJECTIVES
    assert (*KINDS, "planners") == LISTED


@pytest.mark.parametrize("command", GROUP.commands)
def test_the_help_of_a_command_ends_with_an_example_that_it_understands(command: str) -> None:
    program, name, *words = shlex.split(EXAMPLES[command].removeprefix("Example: "))
    assert (program, name) == ("heterps", command)
    assert GROUP.commands[command].epilog == EXAMPLES[command]
    with GROUP.commands[command].make_context(name, words) as context:
        assert not context.args


def test_options_of_a_long_help_stand_in_groups(heterps: Heterps) -> None:
    shown = heterps("place", "--help").out
    assert options.PROBLEM in shown
    assert options.PLANNING in shown
    assert "Example: heterps place" in shown


def test_every_planner_has_a_sentence(heterps: Heterps) -> None:
    listed = heterps("list", "planners", "--json").data
    assert set(SENTENCES) == {*planner_names(), *system_names()} == set(listed["planners"])
    assert "The optimum of the closed form" in heterps("list", "planners").out


@pytest.mark.parametrize("words", ["list", "place --help"])
def test_a_reader_that_goes_early_is_no_error(words: str) -> None:
    # Unbuffered, so that there is something to write after the reader has gone.
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "heterps", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(), said) == (0, b"")
