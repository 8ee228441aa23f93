"""Plain PPO, for each problem anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.layer_ppo import layer_ppo_code
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem_sets.chains import generate


def test_no_folder_of_a_logger_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logger that stable-baselines3 makes where it is given none leaves a folder there."""
    monkeypatch.delenv("SB3_LOGDIR")  # that of all tests
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tables,) = generate(1, seed=21)
    budget = Budget(evaluations=64)
    question = Question(tables, kernel_tables(tables), Goal(), budget)
    start = greedy_code(question._replace(budget=Budget()))
    assert layer_ppo_code(question._replace(start=start)) is not None
    assert budget.is_exhausted
    assert not list(tmp_path.glob("SB3*"))
