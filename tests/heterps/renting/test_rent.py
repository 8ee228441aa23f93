"""Plans within a budget: what they cost, that more is never slower, and what nothing buys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest

from heterps.micro_batches import one_size
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps.renting import rent
from heterps.renting.bundles import DEARER, LARGER, Bundle, chains
from heterps.renting.offer import Offer
from heterps.renting.rent import place_within, usd_per_hour
from heterps.renting.sizes import on_all
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.job import Objective, Strategy
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError, TooDearError
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.bounds import plans_bound_s
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.step_bounds.executable import executable_bound
from tests.uneven_problems import MakeProblem


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("gpt2", "a100-v100-t4", strategy=Strategy())


def test_each_set_of_a_chain_holds_the_one_before_it(problem: Problem) -> None:
    for chain in chains(problem):
        for smaller, larger in pairwise(chain):
            assert smaller.names < larger.names
        for smaller, larger in pairwise(chain[:-1]):
            is_dearer = larger.usd_per_hour >= DEARER * smaller.usd_per_hour
            assert is_dearer or len(larger.names) >= LARGER * len(smaller.names)
        for bundle in chain:
            price = sum(problem.device_named[name].price_usd_per_hour for name in bundle.names)
            assert bundle.usd_per_hour == pytest.approx(price)


def test_some_chain_is_each_type_alone_and_some_is_all_devices(problem: Problem) -> None:
    ends = {chain[-1].names for chain in chains(problem)}
    assert frozenset(problem.device_named) in ends
    for entry in problem.classes:
        own = {d.name for d in problem.cluster.devices if d.type.name == entry.type.name}
        assert frozenset(own) in ends


def test_sets_have_any_number_of_a_nodes_devices(problem: Problem) -> None:
    def types_of(bundle: Bundle) -> set[str]:
        return {problem.device_named[name].type.name for name in bundle.names}

    alone = [b for chain in chains(problem) for b in chain if types_of(b) == {"A100-40G"}]
    assert {len(bundle.names) for bundle in alone} == {1, 2, 3, 4}


@pytest.mark.slow
def test_a_plan_keeps_its_budget_and_a_larger_one_is_never_slower(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(2, 2, 2))
    last = float("inf")
    for limit in (2.0, 5.0, 6.0, 9.0, 40.0):
        found = place_within(problem, "exact", Offer(usd_per_hour=limit))
        assert usd_per_hour(found) <= limit * (1 + 1e-9)
        assert found.estimate.step_time_s <= last
        last = found.estimate.step_time_s
    assert last <= place(problem, "exact").estimate.step_time_s


def test_the_plan_is_one_of_the_whole_cluster(problem: Problem) -> None:
    found = place_within(problem, "greedy", Offer(exclude=("T4",), usd_per_hour=12.0))
    whole = estimate(problem, found.plan)
    assert whole.step_time_s == pytest.approx(found.estimate.step_time_s)
    assert "T4" not in {problem.device_named[name].type.name for name in found.plan.devices}
    assert found.bound.step_time_s is not None
    assert found.plan.bound.step_time_s is not None
    least_s, of_all_s = found.executable.step_time_s, found.plan.executable_bound.step_time_s
    assert least_s is not None
    assert of_all_s is not None
    assert of_all_s * (1 - 1e-2) <= least_s <= found.estimate.step_time_s
    # Fewer devices: the bound of what is on offer is no lower.
    assert found.bound.step_time_s >= found.plan.bound.step_time_s * (1 - 1e-9)


def test_all_that_was_placed_counts_as_spent(problem: Problem) -> None:
    budget, placed = Budget(), list[Problem]()
    found = place_within(
        problem, "greedy", Offer(usd_per_hour=4.0), budget=budget,
        on_placed=lambda each, found: placed.append(each),
    )  # fmt: skip
    assert placed
    assert found.evaluations == budget.evaluations_used > 0


class _Spender:
    """Answers as `greedy` does, and uses up every evaluation that it may."""

    name = "spender"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        budget.spend(budget.evaluations_left or 0)
        return planner_named("greedy").plan(problem, Budget())


def test_a_limited_search_looks_at_several_sets_and_ends_on_the_best_of_them() -> None:
    fleet = load_problem("bert-large", "eight-types", strategy=Strategy())
    placed: list[tuple[frozenset[str], float | None]] = []
    budget = Budget(evaluations=1000)
    found = place_within(
        fleet, _Spender(), Offer(usd_per_hour=3.0), budget=budget,
        on_placed=lambda each, found: placed.append(
            (frozenset(each.device_named), found.estimate.step_time_s if found else None)
        ),
    )  # fmt: skip
    freely = place_within(fleet, "greedy", Offer(usd_per_hour=3.0))
    assert found.estimate.step_time_s == pytest.approx(freely.estimate.step_time_s)
    assert len({names for names, _ in placed}) > 2
    # What was left goes to the best set.
    assert placed[-1][1] == pytest.approx(found.estimate.step_time_s)
    assert budget.evaluations_left == 0


def test_all_devices_within_a_budget_are_bounded_once(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of all plans takes seconds: only what is shown is bounded, and never twice."""
    asked: list[int] = []

    def count(
        problems: Iterable[Problem], plan: Plan, step_time_s: float, is_over: Callable[[], bool]
    ) -> Bound:
        asked.append(len(list(problems)))
        return executable_bound(problems, plan, step_time_s, is_over)

    monkeypatch.setattr(one_size, "executable_bound", count)
    found = place_within(problem, "greedy", Offer(usd_per_hour=12.0))
    assert len(asked) == 1
    assert found.plan.executable_bound == found.executable
    assert found.plan.bound == found.bound
    place_within(problem, "greedy", Offer(exclude=("T4",)))
    assert len(asked) == 3  # of what is on offer, and of the whole cluster


@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_bounds_and_words_are_about_the_size_that_the_plan_has(objective: Objective) -> None:
    """The size of micro-batches is open: of the job of the cluster it is the smallest."""
    asked = load_problem("gpt2", "a100-v100-t4", strategy=OPEN, objective=objective)
    found = place_within(asked, "greedy", Offer(exclude=("V100-16G",), usd_per_hour=12.0))
    size = found.plan.job.micro_batch_size
    assert size > asked.job.micro_batch_size
    assert found.problem.job.micro_batch_size == size
    assert not check_certificate(with_size(asked, size), found.plan).problems
    closed_s = found.estimate.closed_form_step_time_s
    least_s, gap = found.bound.step_time_s, found.bound.gap
    assert closed_s is not None
    assert least_s is not None
    assert gap is not None
    if objective == "throughput":
        assert gap == pytest.approx(closed_s / least_s - 1)
        assert least_s <= min(
            plans_bound_s(with_size(found.problem, each)) for each in open_sizes(asked)
        )


class _GivesUpAll:
    """Answers as `greedy` does, but nothing of several types of devices."""

    name = "gives up"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        if len({device.type.name for device in problem.cluster.devices}) > 1:
            raise TooDearError("more than one type")
        return planner_named("greedy").plan(problem, budget)


def test_devices_that_are_too_dear_for_a_planner_leave_it_the_others(problem: Problem) -> None:
    found = place_within(problem, _GivesUpAll(), Offer(usd_per_hour=12.0))
    assert len({problem.device_named[name].type.name for name in found.plan.devices}) == 1
    with pytest.raises(TooDearError):
        place_within(problem, _GivesUpAll(), Offer(exclude=("T4",)))


def test_only_what_is_shown_is_held_against_all_that_is_on_offer(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of all sizes took longer than the plans of a search of a second."""
    asked, placed = list[int](), list[Problem]()

    def count(problems: Sequence[Problem], result: PlaceResult) -> PlaceResult:
        asked.append(len(problems))
        return on_all(problems, result)

    monkeypatch.setattr(rent, "on_all", count)
    place_within(
        problem, "greedy", Offer(usd_per_hour=12.0),
        on_placed=lambda each, found: placed.append(each),
    )  # fmt: skip
    assert len(placed) > 1
    assert len(asked) == 1


def test_a_budget_that_buys_nothing_says_what_the_cheapest_costs(problem: Problem) -> None:
    with pytest.raises(InfeasibleError, match=r"buys no device: the cheapest on offer costs 0\.5"):
        place_within(problem, "greedy", Offer(usd_per_hour=0.01))


def test_where_no_bought_set_fits_the_reason_is_said() -> None:
    large = load_problem("llama-7b", "a100-v100-t4", strategy=Strategy())
    with pytest.raises(HeterpsError, match="GiB"):
        place_within(large, "greedy", Offer(usd_per_hour=1.0))


def test_sets_that_lack_what_a_strategy_needs_end_no_search() -> None:
    """Fewer than four devices of a node are no group of four."""
    asked = load_problem("gpt2", "a100-v100-t4", strategy=Strategy(tensor_parallel=(4,)))
    found = place_within(asked, "greedy", Offer(usd_per_hour=12.0))
    assert {stage.degree for stage in found.plan.stages} == {4}
