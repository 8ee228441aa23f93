"""Searches with a budget of CPU seconds."""

from __future__ import annotations

import numpy as np

from benchmarks.online.drift_cases import step_time_s
from benchmarks.online.fine_tuning import search
from heterps_agents.learned.policy import Policy
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.problem_sets.chains import generate


def test_more_search_is_never_worse_than_where_it_began() -> None:
    tables = generate(1, seed=5, layers=(8, 10), classes=(2, 3))[0]
    policy, kernel = Policy.load("generalist"), kernel_tables(tables)
    # The seconds are the process's: loading compiled kernels, once, is among them.
    first = search(policy, tables, 5.0, None)
    second = search(policy, tables, 0.2, first)
    assert np.isfinite(step_time_s(first, kernel))
    assert step_time_s(second, kernel) <= step_time_s(first, kernel)
