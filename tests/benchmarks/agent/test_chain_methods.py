"""Every line of the chain tables keeps its budget, and nothing beats the optimum."""

from __future__ import annotations

import pytest

from benchmarks.agent.chain_methods import NORMAL, Chain, cheapest_entries, cost, entries
from benchmarks.agent.chains import chains_of
from benchmarks.agent.comparison import Measured, measure, summarise
from benchmarks.agent.prices import cheapest_problems
from heterps_agents.learned.policy import Policy
from heterps_envs.problem_sets.chains import generate

POLICY = Policy.load("generalist")
LINES = entries(POLICY, quick=True)


def test_nothing_is_cheaper_than_the_cheapest_that_keeps_the_floor() -> None:
    (chain,) = cheapest_problems(generate(1, 5, layers=(6, 8), classes=(2, 2)))
    lines = cheapest_entries(Policy.load("price-generalist"), POLICY, quick=True)
    found = measure(lines, chain, cost, seed=0)
    optimum = found["exact"]["cost"]
    assert optimum is not None
    assert all(one["cost"] is None or one["cost"] >= optimum * (1 - 1e-9) for one in found.values())


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Measured]]:
    chains: list[Chain] = chains_of(generate(1, 5, layers=(6, 8), classes=(2, 2)))
    lines = [entry for entry in LINES if entry.first is None]
    return [measure(lines, chain, cost, seed=0) for chain in chains]


def test_names_of_lines_are_unique() -> None:
    lines = entries(POLICY, quick=False)
    assert len({entry.name for entry in lines}) == len(lines)


def test_budgets_in_evaluations_are_kept(measured: list[dict[str, Measured]]) -> None:
    for entry in LINES:
        for row in measured:
            if entry.evaluations is not None and entry.name in row:
                assert row[entry.name]["evaluations"] <= entry.evaluations, entry.name


def test_nothing_is_better_than_the_exact_optimum(measured: list[dict[str, Measured]]) -> None:
    for row in measured:
        optimum = row["exact"]["cost"]
        assert optimum is not None
        for name, found in row.items():
            assert found["cost"] is None or found["cost"] >= optimum * (1 - 1e-9), name


def test_every_line_has_a_row(measured: list[dict[str, Measured]]) -> None:
    lines = [entry for entry in LINES if entry.first is None]
    rows = summarise(measured, lines)
    assert [(row["method"], row["budget"]) for row in rows] == [(e.method, e.budget) for e in lines]


def test_searches_get_the_seconds_of_an_effort() -> None:
    assert {e.method for e in LINES if e.cpu_of == NORMAL} >= {"annealing", "random", "genetic"}
