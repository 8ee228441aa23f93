"""The command about trained policies: `heterps score`."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps.cli.examples import EXAMPLES
from heterps.cli.options import Json

policies = typer.Typer()


@policies.command(epilog=EXAMPLES["score"])
def score(
    policy: Annotated[
        str,
        typer.Argument(
            help="A trained policy: name (`heterps list policies`) or .npz file.",
            show_default=False,
            autocompletion=names_of("policies"),
        ),
    ],
    test_set: Annotated[
        str,
        typer.Option(
            "--set",
            help="in-range, longer or more-types; of policies for graphs in-range, larger.",
            autocompletion=one_of("in-range", "longer", "more-types", "larger"),
        ),
    ] = "in-range",
    num_problems: Annotated[
        int | None,
        typer.Option("--problems", min=1, help="Only the first so many problems of the set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a trained policy on problems that it never saw."""
    from heterps.commands.score import run_score

    run_score(policy, test_set, num_problems, as_json=as_json)
