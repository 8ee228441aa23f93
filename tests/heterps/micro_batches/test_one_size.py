"""What a search may spend of a limit, and what the simulator has of it."""

from __future__ import annotations

import pytest

from heterps.micro_batches.one_size import SEARCH_PART, place_one_size
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.reports.ways import way_text
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.plan_choices.divided_state import divided_by_stages
from heterps_configs.documents.plan import Plan
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from tests.uneven_problems import MakeProblem


class _Search:
    """A greedy planner that says what it was given."""

    name, chooses_options = "greedy", False
    search_part: float | None = None

    def __init__(self, hands_over_finds: bool) -> None:
        self.seed, self.hands_over_finds = 0, hands_over_finds
        self.given: list[Budget] = []

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        self.given.append(budget)
        return planner_named("greedy").plan(problem, budget)


@pytest.mark.parametrize(
    ("hands_over_finds", "part"), [(True, SEARCH_PART), (False, 1.0)], ids=["search", "other"]
)
def test_who_hands_over_finds_leaves_the_simulator_its_part_of_a_limit_in_time(
    make_problem: MakeProblem, hands_over_finds: bool, part: float
) -> None:
    search = _Search(hands_over_finds)
    budget = Budget(cpu_seconds=40.0)
    place_one_size(make_problem(), search, budget)
    (given,) = search.given
    assert given.cpu_seconds == pytest.approx(part * 40.0, abs=1.0)
    assert budget.evaluations_used >= given.evaluations_used > 0


def test_a_planner_may_say_itself_what_its_search_takes(make_problem: MakeProblem) -> None:
    """As `auto` lets the policy do: what follows it has a part of its own."""
    search = _Search(hands_over_finds=True)
    search.search_part = 1.0
    place_one_size(make_problem(), search, Budget(cpu_seconds=40.0))
    assert search.given[0].cpu_seconds == pytest.approx(40.0, abs=1.0)


def test_without_a_limit_in_time_a_search_has_all_evaluations(make_problem: MakeProblem) -> None:
    search = _Search(hands_over_finds=True)
    place_one_size(make_problem(), search, Budget(evaluations=5000))
    assert search.given[0].evaluations == 5000


def test_divided_state_comes_last_and_its_certificate_holds() -> None:
    """Some layers of a stage are divided and others not: no placement describes that."""
    result = place(load_problem("vit-large", "a100-v100"), "auto")
    assert 0 < len(result.plan.sharded_layers) < result.plan.num_layers
    assert result.executable.status == "proven"
    assert result.bound.gap is None
    assert "unknown" not in result.optimality()
    whole = divided_by_stages(result.plan)
    assert whole.sharded_layers == frozenset(range(result.plan.num_layers))
    assert feasible_step_time_s(result.problem, whole) > result.estimate.step_time_s
    assert not check_certificate(result.problem, result.plan).problems
    tried = {each.size: each.found for each in result.tried_sizes}
    assert tried[result.plan.job.micro_batch_size] == result.estimate.step_time_s
    number = len(result.plan.sharded_layers)
    assert way_text(result.plan, result.plan.stages[0]) == f"state sharded {number} layers"
    assert way_text(whole, whole.stages[0]) == "state sharded"
