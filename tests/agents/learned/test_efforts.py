"""Efforts: one table, and a word where they are ignored."""

import warnings
from pathlib import Path

import pytest

from heterps.planning.place import place
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned import efforts as module
from heterps_agents.learned.efforts import effort_named, effort_of, efforts, harder, with_effort
from heterps_agents.learned.planner import PolicyPlanner
from heterps_configs import library
from heterps_configs.errors import UnknownNameError
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem


def test_more_effort_is_more_of_everything() -> None:
    fast, normal, high = efforts().values()
    for field in ("width", "rounds", "descents", "window", "price_width", "exact_s"):
        assert getattr(fast, field) <= getattr(normal, field) <= getattr(high, field)


def test_the_efforts_of_a_folder_of_ones_own_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = library.load_efforts()
    quicker = table.efforts["fast"].changed(exact_s=0.0)
    table.changed(efforts={**table.efforts, "quicker": quicker}).to_file(tmp_path / "efforts.yaml")
    monkeypatch.setenv(library.CONFIG_PATH_VARIABLE, str(tmp_path))
    efforts.cache_clear()
    try:
        assert effort_named("quicker") == quicker
    finally:
        efforts.cache_clear()


def test_a_misspelt_effort_names_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="normal"):
        effort_named("nromal")


def test_planners_with_efforts_are_told_and_stay_what_they_were() -> None:
    for planner in (PolicyPlanner(), AutoPlanner()):
        told = with_effort(planner, "high")
        assert isinstance(told, type(planner))
        assert told.effort == "high"
        assert planner.effort == "normal"


@pytest.mark.slow
def test_a_planner_without_efforts_says_that_it_ignores_one(make_problem: MakeProblem) -> None:
    problem: Problem = make_problem()
    with pytest.warns(UserWarning, match="exact knows no efforts: effort fast is ignored"):
        place(problem, "exact", effort="fast")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert place(problem, "auto", effort="fast").plan.planner == "auto"
    with pytest.raises(UnknownNameError, match="fsat"):
        with_effort(planner_named("exact"), "fsat")


def test_the_next_harder_effort_is_there_up_to_the_hardest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [harder(name) for name in ("fast", "normal", "high")] == ["normal", "high", "high"]
    monkeypatch.setattr(module, "efforts", lambda: {"calm": None, "keen": None})
    assert (harder("calm"), harder("keen")) == ("keen", "keen")


def test_planners_without_efforts_try_as_hard_as_by_default() -> None:
    assert effort_of(planner_named("genetic")) == effort_named("normal")
    assert effort_of(PolicyPlanner(effort="high")) == effort_named("high")
