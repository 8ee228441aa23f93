"""A trained policy is used by `place` and `compare`, and judged by `score`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.commands import score
from heterps_agents.learned.policy import Policy
from tests.heterps.small_profiles import PLAIN

Heterps = Callable[..., Any]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy file of a user's."""
    path = tmp_path / "mine.npz"
    Policy.load("generalist").save(path)
    return path


@pytest.mark.slow
def test_a_policy_of_ones_own_places_and_is_compared(
    heterps: Heterps, blocks: Path, policy: Path
) -> None:
    options = (blocks, "-c", "local-emulated", *PLAIN, "--policy", policy, "--json")
    assert heterps("place", *options).data["planner"] == "ppo:mine"
    compared = heterps("compare", *options, "-p", "even,ppo", "--no-tensorboard").data
    rows = {row["planner"]: row["step_time_s"] for row in compared["rows"]}
    assert set(rows) == {"even", "ppo", "ppo:mine"}
    assert rows["ppo:mine"] == rows["ppo"]


def test_a_policy_belongs_to_chains_and_to_its_planner(heterps: Heterps, policy: Path) -> None:
    options = ("place", "gpt2", "-c", "a100-v100", "--policy")
    other = heterps(*options, policy, "-p", "exact")
    graphs = heterps(*options, "graph-generalist")
    missing = heterps(*options, "no.npz")
    # What the user asks for by name is not replaced in silence.
    assert heterps(*options, policy, "-p", "auto").code == 2
    assert (other.code, graphs.code, missing.code) == (2, 2, 2)
    assert "--policy belongs to the planner ppo" in other.err
    assert "places graphs" in graphs.err
    assert "no.npz: no such file" in missing.err


@pytest.mark.parametrize("name", ["mine.npz", "graph-generalist"])
def test_a_policy_is_scored_on_problems_that_it_never_saw(
    name: str, heterps: Heterps, policy: Path
) -> None:
    reference = policy if policy.name == name else name
    answer = heterps("score", reference, "--problems", 2, "--json").data
    assert answer["num_problems"] == 2
    assert all(value >= 0 for value in answer["scores"].values())
    shown = heterps("score", reference, "--problems", 2)
    assert "-:" not in shown.out
    refused = heterps("score", reference, "--set", "largest")
    assert refused.code == 2
    assert "unknown test set 'largest'" in refused.err


def test_a_policy_that_finds_nothing_is_told_so_in_words(
    heterps: Heterps, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"greedy_median": 0.25, "greedy_mean": math.inf}
    monkeypatch.setattr(score, "_score_chains", lambda *_: (2, found))
    told = heterps("score", policy).out
    assert "inf" not in told
    assert re.search(r"greedy +25\.00 % +- *\n", told)
    assert "-: the policy finds no placement for some of the problems, or for any" in told
