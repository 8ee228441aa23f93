"""`heterps score`: how good a trained policy is on a frozen set of problems."""

from __future__ import annotations

import math

from rich.table import Table

from heterps.reports.console import (
    answer,
    percent_text,
    print_json,
    remarks,
    say_when_compiling,
)
from heterps_agents.graphs.evaluation import HeldOutGraphs
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.policy_file import finite_or_none, problems_of
from heterps_agents.training.evaluation import SCORE_WIDTHS, HeldOut
from heterps_configs.errors import UnknownNameError
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS, DRAWN_GRAPHS

# Those whose optima the exact solver proves.
CHAIN_SETS = ("in-range", "longer", "more-types")


def run_score(policy: str, test_set: str, num_problems: int | None, *, as_json: bool) -> None:
    """Scores and prints.

    Args:
        policy: Shipped name or file.
        test_set: Name of a frozen set.
        num_problems: Only the first so many; None for all.
        as_json: Print JSON.

    Raises:
        UnknownNameError: No such policy, or no such set for its kind of problems.
        HeterpsError: The file is no policy.
    """
    is_for_graphs = problems_of(policy) is not None
    known = tuple(DRAWN_GRAPHS) if is_for_graphs else CHAIN_SETS
    if test_set not in known:
        raise UnknownNameError("test set", test_set, known)
    say_when_compiling()
    with remarks.status(f"scoring on {test_set}"):
        score = _score_graphs if is_for_graphs else _score_chains
        count, scores = score(policy, test_set, num_problems)
    if as_json:
        print_json(
            {
                "policy": policy,
                "set": test_set,
                "num_problems": count,
                "scores": finite_or_none(scores),
            }
        )
        return
    answer.print(scores_table(scores, f"{policy} on {count} problems of {test_set}"))
    answer.print(
        "step time over that of the earliest-finish rule; below 100 % is better"
        if is_for_graphs
        else "step time over the proven optimum, minus 1; solved: share of problems below 0.1 %"
    )
    if not all(map(math.isfinite, scores.values())):
        answer.print("-: the policy finds no placement for some of the problems, or for any")


def _score_chains(
    reference: str, test_set: str, num_problems: int | None
) -> tuple[int, dict[str, float]]:
    policy = Policy.load(reference)
    held = HeldOut(DRAWN_CHAINS[test_set].problems(num_problems or 0))
    scores = {
        f"{name}_{kind}": value
        for name, width in SCORE_WIDTHS.items()
        for kind, value in held.gap(policy, width)._asdict().items()
    }
    return len(held.tables), scores


def _score_graphs(
    reference: str, test_set: str, num_problems: int | None
) -> tuple[int, dict[str, float]]:
    policy, tables = GraphPolicy.load(reference), DRAWN_GRAPHS[test_set].problems()
    count = min(num_problems or len(tables), len(tables))
    return count, HeldOutGraphs(count, tables).scores(policy)


def scores_table(scores: dict[str, float], title: str) -> Table:
    """One row for each way of decoding, one column for each summary."""
    cells = {tuple(name.split("_")): value for name, value in scores.items()}
    kinds = dict.fromkeys(kind for _, kind in cells)
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("decoding", no_wrap=True)
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True)
    for decoding in dict.fromkeys(name for name, _ in cells):
        table.add_row(decoding, *(_cell(cells[decoding, kind]) for kind in kinds))
    return table


def _cell(score: float) -> str:
    return percent_text(score, 2) if math.isfinite(score) else "-"
