"""Certificates: what the solvers claim is confirmed, and false claims are not."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.planner import ExactPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import Cluster, Link
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.certificates.plain_bounds import own_bound
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.bounds import bound_for, lower_bound, price_bound
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from tests.envs.small_problems import all_placement_codes, chain_problem, plan_of, random_tables
from tests.uneven_problems import MakeProblem


def small_problem(**changes: Any) -> Problem:
    given: dict[str, Any] = {
        "num_micro_batches": 6,
        "speeds": (1.0, 2.5),
        "counts": (2, 2),
        "parameters": [4, 1, 2, 3],
        "activation_bytes": [3.0, 1.0, 2.0, 4.0],
        "memory_bytes": [70, 60],
        "prices": [3.0, 1.0],
    }
    return chain_problem([1, 2, 3, 1], [2, 4, 5, 2], **(given | changes))


def exact(problem: Problem) -> Plan:
    return ExactPlanner().plan(problem, Budget())


@pytest.mark.parametrize("objective", ["throughput", "price"])
@pytest.mark.parametrize("floor", [None, 0.08])
def test_a_proven_optimum_is_confirmed_by_trying_all_others(
    objective: str, floor: float | None
) -> None:
    # Room for gradient sums, which the rule of planners leaves out: the optimum can be run.
    problem = small_problem(objective=objective, min_throughput=floor, memory_bytes=[120, 120])
    plan = exact(problem)
    report = check_certificate(problem, plan, plan.bound)
    assert report.is_valid
    assert report.optimality == "proven"
    assert report.unchecked == ()
    assert report.step_time_s == pytest.approx(plan.bound.step_time_s)


@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_a_plan_that_is_not_the_best_cannot_be_certified_as_such(objective: str) -> None:
    problem = small_problem(objective=objective, memory_bytes=[500, 500])
    poor = bind(problem, [PlacedStage(0, 1, 0), PlacedStage(2, 3, 1)], planner="t", seed=0)
    step_time_s = check_certificate(problem, poor, bound_for(problem, poor)).step_time_s
    claim = Bound(step_time_s=step_time_s, gap=0.0, status="proven")
    report = check_certificate(problem, poor, claim)
    assert not report.is_valid
    assert "another placement is better" in report.problems[0]


def test_a_bound_above_the_plan_or_below_what_its_gap_allows_is_refused() -> None:
    problem = small_problem()
    plan = exact(problem)
    best_s = plan.bound.step_time_s
    assert best_s is not None
    high = check_certificate(problem, plan, Bound(step_time_s=2 * best_s, gap=0, status="proven"))
    assert "above the plan's own" in high.problems[0]
    low = check_certificate(problem, plan, Bound(step_time_s=best_s / 2, gap=0, status="proven"))
    assert "more than the bound" in low.problems[0]


def test_the_bounds_of_other_planners_are_confirmed(make_problem: MakeProblem) -> None:
    for memory in (0.4, 1.0):
        problem = make_problem(memory=memory)
        plan = planner_named("greedy").plan(problem, Budget())
        report = check_certificate(problem, plan, plan.bound)
        assert report.is_valid
        assert (report.optimality, report.unchecked) == ("bounded", ())


def test_a_search_without_an_end_says_what_is_left_open(make_problem: MakeProblem) -> None:
    problem = make_problem()
    plan = exact(problem)
    report = check_certificate(problem, plan, plan.bound, max_steps=50)
    assert report.is_valid
    assert report.optimality == "not re-checked"
    assert "did not end within 51 stages" in report.unchecked[0]


def test_prices_that_are_given_are_what_the_bound_rests_on() -> None:
    problem = small_problem(memory_bytes=[500, 500])
    _, prices = price_bound(problem.tables)
    good = own_bound(problem.tables, prices.tolist())
    poor = own_bound(problem.tables, [0.0, 1.0])
    assert good.step_time_s == pytest.approx(lower_bound(problem.tables), rel=0.03)
    assert poor.step_time_s <= good.step_time_s


def test_memory_devices_and_the_floor_are_counted_anew() -> None:
    roomy = small_problem(memory_bytes=[500, 500])
    plan = bind(roomy, [PlacedStage(0, 3, 0, 2)], planner="t", seed=0)
    tight = small_problem(memory_bytes=[80, 500], min_throughput=100.0)
    report = check_certificate(tight, plan, Bound())
    assert report.problems[0] == ("the layers 0..3 need 90 B on a class0, 10 B more than it has")
    assert "the floor is 100" in report.problems[1]
    shared = plan_of(
        roomy, {"a": (0, 1, "d0-0"), "b": (2, 3, "d0-0")}, {("a", "b"): list(range(6))}
    )
    assert "several stages on one device" in check_certificate(roomy, shared).problems[0]


def test_a_floor_that_the_simulator_sees_kept_is_left_unchecked() -> None:
    # Three samples in micro-batches of two: by the closed form the second one takes as long.
    sized: dict[str, Any] = {"samples": 3, "micro_batch_size": 2, "counts": (1,)}
    for floor, number_of_problems in ((0.6, 0), (0.7, 1)):
        problem = chain_problem([1.0], [2.0], min_throughput=floor, **sized)
        plan = bind(problem, [PlacedStage(0, 0, 0)], planner="t", seed=0)
        report = check_certificate(problem, plan)
        assert len(report.problems) == number_of_problems
        assert len(report.unchecked) == 1 - number_of_problems


def test_digits_that_sums_of_the_kernels_lack_are_held_against_no_plan() -> None:
    # Layer 0 is left to the first class: on the second one it takes 10^11 times as long as others.
    problem = chain_problem([1e-3, 1.0, 1.0], [2e-3, 2.0, 2.0], speeds=(1.0, 1.0), counts=(1, 1))
    fast, slow = problem.profile.measurements
    slow = slow.changed(forward_s=(1e9, 1e-3, 2e-3), backward_s=(1e9, 5.00015e-3, 7e-3))
    problem = replace(problem, profile=problem.profile.changed(measurements=(fast, slow)))
    plan = bind(problem, [PlacedStage(0, 0, 0), PlacedStage(1, 2, 1)], planner="t", seed=0)
    bound = bound_for(problem, plan)
    report = check_certificate(problem, plan, bound)
    assert report.is_valid
    assert bound.step_time_s is not None
    far_off = bound.changed(gap=(bound.gap or 0.0) / 2)
    assert not check_certificate(problem, plan, far_off).is_valid
    # A claim that another placement undercuts by fewer digits than that is neither true nor false.
    assert report.step_time_s is not None
    for share, is_valid in ((1 + 1e-5, True), (1 + 1e-3, False)):
        claim = Bound(step_time_s=report.step_time_s * share, gap=0.0, status="proven")
        shown = check_certificate(problem, plan, claim)
        assert (shown.is_valid, shown.optimality) == (is_valid, "not re-checked")


def test_tied_parameters_count_once() -> None:
    problem = chain_problem([1, 1], [1, 1], parameters=[10, 10], tied_to={1: 0}, memory_bytes=[80])
    plan = bind(problem, [PlacedStage(0, 1, 0)], planner="t", seed=0)
    assert check_certificate(problem, plan, Bound()).is_valid


def test_a_plan_of_unequal_pipelines_is_not_called_checked() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4)
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0-0"), "b": (0, 0, "d0-1"), "c": (1, 1, "d0-2")},
        {("a",): [0, 1], ("b", "c"): [2, 3]},
    )
    report = check_certificate(problem, plan, Bound(step_time_s=1.0, gap=1.0, status="bounded"))
    assert report.step_time_s is None
    assert report.optimality == "not re-checked"
    assert "no chain of stages" in report.unchecked[0]


def test_chunks_are_not_called_checked() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4, schedule="interleaved")
    chunks = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-0")}, {("a", "b"): range(4)})
    whole = plan_of(problem, {"a": (0, 1, "d0-0")}, {("a",): range(4)})
    report = check_certificate(problem, chunks)
    assert report.is_valid
    assert report.step_time_s is None
    assert "no chain of stages" in report.unchecked[0]
    assert check_certificate(problem, whole).step_time_s == pytest.approx(16)


def test_stages_that_compute_again_take_their_forward_seconds_twice() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4)
    whole = plan_of(problem, {"a": (0, 1, "d0-0")}, {("a",): range(4)})
    again = whole.changed(stages=(whole.stages[0].changed(recompute_layers=(1,)),))
    claim = Bound(step_time_s=20.0, gap=0.0, status="proven")
    report = check_certificate(problem, again, claim)
    assert report.is_valid
    assert report.step_time_s == pytest.approx(20)
    assert report.optimality == "not re-checked"
    assert report.lower_bound_s == 0
    late = check_certificate(problem, again, claim.changed(step_time_s=21.0))
    assert "above the plan's own" in late.problems[0]


def test_a_plan_of_groups_is_checked_with_their_own_seconds_and_bytes() -> None:
    problem = chain_problem(
        [2.0, 3.0], [4.0, 5.0], parameters=[10, 10], num_micro_batches=2,
        output_bytes=[6, 0], link=Link(latency_s=1.0, bandwidth_bytes_per_s=2.0),
    )  # fmt: skip
    own = [
        problem.profile.measurements[0].changed(
            tensor_parallel=degree, forward_s=forward_s, backward_s=backward_s
        )
        for degree, forward_s, backward_s in ((2, (1.0, 2.0), (2.0, 3.0)), (4, (0.5, 1), (1, 2)))
    ]
    profile = problem.profile.changed(measurements=(*problem.profile.measurements, *own))
    problem = replace(problem, profile=profile)
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-4")}, {("a", "b"): range(2)})
    first, second = plan.stages
    plan = plan.changed(
        stages=(
            first.changed(devices=("d0-0", "d0-1", "d0-2", "d0-3")),
            second.changed(devices=("d0-4", "d0-5")),
        )
    )
    report = check_certificate(problem, plan)
    # One copy there and two back, on average 1.5 of 3 s and 1 s: the second stage has 5 s for each.
    assert report.step_time_s == pytest.approx(1.5 + 2 * (1 + 4.5) + 2 * 5)
    assert report.is_valid
    assert "memory of every device" in report.checked
    tight = replace(problem, cluster=with_memory(problem.cluster, 100))
    problems = check_certificate(tight, plan).problems
    # 10 parameters of 8 bytes, of which no part is split, and the 6 bytes that came in.
    assert "the layers 1..1 need 86 B on a class0" in problems[0]


def with_memory(cluster: Cluster, num_bytes: int) -> Cluster:
    types = [entry.changed(memory_bytes=num_bytes) for entry in cluster.device_types]
    return cluster.changed(device_types=types)


def test_devices_that_the_cluster_lacks_are_named() -> None:
    plan = bind(small_problem(counts=(2, 3)), [PlacedStage(0, 3, 1, 3)], planner="t", seed=0)
    report = check_certificate(small_problem(counts=(2, 2)), plan, Bound())
    assert report.problems == ("the plan names devices that the cluster lacks: d1-2",)


@given(st.integers(0, 100_000), st.integers(1, 4), st.sampled_from([(1, 1), (3,), (2, 1), (2, 2)]))
@settings(max_examples=60, deadline=None)
def test_its_own_bound_is_below_every_placement(
    seed: int, num_layers: int, counts: tuple[int, ...]
) -> None:
    tables = random_tables(seed, num_layers, counts)
    tables = dataclasses.replace(tables, memory_bytes=tables.memory_bytes / 2)
    codes = all_placement_codes(num_layers, counts)
    best_s = evaluate(codes, kernel_tables(tables))[0].min()
    bound_s = own_bound(tables).step_time_s
    assert bound_s <= best_s * (1 + 1e-9)
    if best_s < math.inf:
        assert bound_s >= lower_bound(tables) * (1 - 1e-6)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_the_exact_solver_proves_is_confirmed(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    seconds = data.draw(st.lists(st.floats(0.1, 4), min_size=size, max_size=size))
    problem = small_problem(
        counts=data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2)])),
        memory_bytes=data.draw(st.lists(st.integers(30, 200), min_size=2, max_size=2)),
        objective=data.draw(st.sampled_from(["throughput", "price"])),
        num_micro_batches=data.draw(st.integers(1, 8)),
    )
    problem = chain_from(problem, seconds)
    try:
        plan = exact(problem)
    except InfeasibleError:
        return
    report = check_certificate(problem, plan)
    assert report.is_valid
    # Where the optimum has no room for gradient sums, the plan is the best that can be run.
    assert report.optimality == plan.bound.status


def chain_from(problem: Problem, seconds: list[float]) -> Problem:
    """The same problem with the first layers, and seconds of their own."""
    layers = problem.profile.layers[: len(seconds)]
    measured = tuple(
        entry.changed(
            forward_s=tuple(factor * value for value in seconds),
            backward_s=tuple(factor * value for value in seconds),
            optimizer_s=(0.0,) * len(seconds),
        )
        for factor, entry in zip((1.0, 2.0), problem.profile.measurements, strict=True)
    )
    profile = problem.profile.changed(layers=layers, measurements=measured)
    return Problem(profile=profile, cluster=problem.cluster, job=problem.job)
