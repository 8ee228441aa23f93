"""The plan that costs least by the simulator, against whole estimates."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import estimate
from tests.envs.simulator.test_device_choice import some_placement, some_problem


def _cost(problem: Problem, plan: Plan) -> tuple[bool, float]:
    shown = estimate(problem, plan)
    is_price = problem.job.objective == "price"
    return not shown.feasible, (
        shown.price_usd_per_million_samples if is_price else shown.step_time_s
    )


def _plans(rng: np.random.Generator, problem: Problem) -> list[Plan]:
    found = list[Plan]()
    while len(found) < 5:
        try:
            placement = some_placement(rng, problem)
            found.append(bound_plan(problem, placement, planner="drawn", seed=0))
        except InfeasibleError:
            continue
    return [*found, found[0].changed(planner="again")]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_it_is_the_least_of_those_that_fit(seed: int, objective: str) -> None:
    rng = np.random.default_rng(seed)
    drawn = some_problem(rng)
    steps = [estimate(drawn, plan).throughput_samples_per_s for plan in _plans(rng, drawn)]
    floor = float(np.median(steps)) if seed % 3 else 2 * max(steps)
    job = drawn.job.changed(objective=objective, min_throughput_samples_per_s=floor)
    problem = Problem(drawn.profile, drawn.cluster, job)
    plans = _plans(rng, problem)
    assert fastest(problem, plans) is min(plans, key=lambda plan: _cost(problem, plan))
    assert fastest(problem, iter(plans[:1])) is plans[0]
