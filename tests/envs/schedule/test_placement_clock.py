"""The step of a placement by a clock, against the simulator and the closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from heterps_configs.documents.cluster import Link
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import stages_step_time_s
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import in_flight_micro_batches, round_trips_in_flight
from heterps_envs.schedule.placement_clock import (
    clocked_in_flight,
    clocked_step_time_s,
    step_time_bound_s,
)
from heterps_envs.schedule.plan_arrays import plan_arrays
from heterps_envs.schedule.shared_sums import shared_parameters
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import simulated_step_time_s
from tests.envs.small_problems import FAST, chain_problem, placements
from tests.envs.tied_problems import with_own

LINK = Link(latency_s=0.003, bandwidth_bytes_per_s=1e9)


def problem_with(
    schedule: str = "1f1b",
    tied_to: dict[int, int] | None = None,
    parameters: int = 10**5,
    link: Link = LINK,
    message_bytes: float = 1e6,
) -> Problem:
    """Six unequal layers on two classes of devices of one node, so that all links are alike."""
    problem = chain_problem(
        [0.03, 0.01, 0.02, 0.025, 0.015, 0.04],
        [0.05, 0.02, 0.05, 0.04, 0.03, 0.07],
        num_micro_batches=14,
        speeds=(1.0, 1.7),
        counts=(9, 8),
        parameters=[parameters * factor for factor in (20, 1, 1, 4, 1, 20)],
        output_bytes=[message_bytes * factor for factor in (4, 1, 2, 2, 8, 0)],
        optimizer_s=[parameters / 1e7, 0.0, 0.0, 0.0, 0.0, parameters / 1e7],
        tied_to=tied_to,
        link=link,
        schedule=schedule,
    )
    return replace(problem, job=problem.job.changed(overlaps_reduce=False))


def _said(
    say: Callable[..., float], problem: Problem, placement: Placement, is_open: bool
) -> float:
    rows = [[each.last_layer + 1, each.device_class, each.replicas] for each in placement]
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    stages, kernel = np.array(rows, np.int64), kernel_tables(problem.tables)
    kernel = kernel._replace(holds_by_rule=not is_open)
    return float(say(stages, len(rows), kernel, shared))


def clocked_s(problem: Problem, placement: Placement, *, is_open: bool = False) -> float:
    return _said(clocked_step_time_s, problem, placement, is_open)


def bound_s(problem: Problem, placement: Placement, *, is_open: bool = False) -> float:
    return _said(step_time_bound_s, problem, placement, is_open)


def closed_form_s(problem: Problem, placement: Placement) -> float:
    rows = [[each.last_layer + 1, each.device_class, each.replicas] for each in placement]
    return float(stages_step_time_s(np.array(rows, np.int64), kernel_tables(problem.tables)))


def simulated_s(problem: Problem, placement: Placement) -> float:
    return simulated_step_time_s(problem, bound_plan(problem, placement, planner="test", seed=0))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("tied_to", "own"), [(None, 0), ({5: 0}, 0), ({5: 0}, 10**4)])
@settings(max_examples=30)
@given(placement=placements(6, (9, 8), max_replicas=8))
def test_where_all_links_are_alike_it_is_near_the_simulator(
    schedule: str, tied_to: dict[int, int] | None, own: int, placement: Placement
) -> None:
    problem = with_own(problem_with(schedule, tied_to), 5, own)
    assert clocked_s(problem, placement) == pytest.approx(simulated_s(problem, placement), rel=0.02)


@settings(max_examples=30)
@given(placement=placements(6, (9, 8), max_replicas=8))
def test_with_as_many_in_flight_as_round_trips_need_it_is_near_the_simulator(
    placement: Placement,
) -> None:
    """As far as memory has room: all of it here. Small messages are all asked for ahead."""
    link = Link(latency_s=0.1, bandwidth_bytes_per_s=1e7)
    problem = problem_with(link=link, message_bytes=1e4)
    plan = bound_plan(problem, placement, planner="test", seed=0)
    by_rule = in_flight_micro_batches(plan)
    needed = round_trips_in_flight(plan_arrays(problem, plan)).tolist()
    stages = tuple(
        stage.changed(in_flight=max(by_rule[stage.name], more))
        for stage, more in zip(plan.stages, needed, strict=True)
    )
    expected = simulated_step_time_s(problem, plan.changed(stages=stages))
    assert clocked_s(problem, placement, is_open=True) == pytest.approx(expected, rel=0.02)


@settings(max_examples=30)
@given(placement=placements(6, (9, 8), max_replicas=8))
def test_stages_hold_on_the_clock_what_they_hold_in_plans(placement: Placement) -> None:
    problem = problem_with(link=Link(latency_s=0.1, bandwidth_bytes_per_s=1e9))
    plan = bound_plan(problem, placement, planner="test", seed=0)
    arrays, by_rule = plan_arrays(problem, plan), in_flight_micro_batches(plan)
    needed = dict(zip([s.name for s in plan.stages], round_trips_in_flight(arrays), strict=True))
    expected = {
        stage.last_layer + 1: max(by_rule[stage.name], min(needed[stage.name], most))
        for stage, most in zip(plan.stages, arrays.shape.routed, strict=True)
        # Replicas that have a micro-batch more than others of their stage.
        if arrays.shape.routed[arrays.shape.layers[:, 1] == stage.last_layer].max() == most
    }
    rows = [[each.last_layer + 1, each.device_class, each.replicas] for each in placement]
    held = clocked_in_flight(np.array(rows, np.int64), len(rows), kernel_tables(problem.tables))
    assert dict(zip([row[0] for row in rows], held.tolist(), strict=True)) == expected


def test_no_more_is_in_flight_than_memory_has_room_for() -> None:
    problem = problem_with(link=Link(latency_s=0.5, bandwidth_bytes_per_s=1e9))
    placement = (PlacedStage(0, 2, 0, 1), PlacedStage(3, 5, 1, 1))
    kernel = kernel_tables(problem.tables)
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    stages = np.array([[3, 0, 1], [6, 1, 1]], np.int64)
    # Each layer keeps a byte of a micro-batch: the front stage has three of each of two.
    kept = np.arange(7.0)[:, None] * np.ones((1, 2))
    state = kernel.state_prefix_bytes[3, 0] - kernel.state_prefix_bytes[0, 0]

    def with_room_for(micro_batches: int) -> float:
        memory = np.array([state + 3.0 * micro_batches, 1e12])
        own = kernel._replace(activation_prefix_bytes=kept, memory_bytes=memory)
        return float(clocked_step_time_s(stages, 2, own, shared))

    assert with_room_for(2) == clocked_s(problem, placement)
    assert with_room_for(2) > with_room_for(3) > with_room_for(4) > with_room_for(5)
    assert with_room_for(5) == clocked_s(problem, placement, is_open=True)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@settings(max_examples=30)
@given(placement=placements(6, (9, 8), max_replicas=8))
def test_it_is_never_below_the_closed_form(schedule: str, placement: Placement) -> None:
    """Without links, which it shares out among replicas, and sums, which may hide behind passes."""
    problem = problem_with(schedule, parameters=0, link=FAST)
    assert clocked_s(problem, placement) >= closed_form_s(problem, placement) * (1 - 1e-9)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("tied_to", [None, {5: 0}])
@pytest.mark.parametrize("link", [FAST, LINK, Link(latency_s=0.2, bandwidth_bytes_per_s=1e8)])
@settings(max_examples=15)
@given(placement=placements(6, (9, 8), max_replicas=8))
def test_its_bound_is_never_above_it(
    link: Link, tied_to: dict[int, int] | None, schedule: str, is_open: bool, placement: Placement
) -> None:
    problem = problem_with(schedule, tied_to, link=link)
    clocked = clocked_s(problem, placement, is_open=is_open)
    assert bound_s(problem, placement, is_open=is_open) <= clocked * (1 + 1e-9)


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.2])
def test_its_bound_is_it_where_round_trips_or_one_link_decide(latency_s: float) -> None:
    """Two stages; the rule holds two of the micro-batches in front, or messages take longest."""
    placement = (PlacedStage(0, 2, 0, 1), PlacedStage(3, 5, 1, 1))
    far = problem_with(parameters=0, link=Link(latency_s=latency_s, bandwidth_bytes_per_s=1e12))
    slow = problem_with(parameters=0, link=Link(latency_s=latency_s, bandwidth_bytes_per_s=3e6))
    assert bound_s(far, placement) == pytest.approx(clocked_s(far, placement), rel=0.06)
    clocked = clocked_s(slow, placement, is_open=True)
    assert bound_s(slow, placement, is_open=True) == pytest.approx(clocked, rel=0.001)


def test_replicas_that_wait_for_their_turn_are_what_the_closed_form_leaves_out() -> None:
    """Neighbours with two, three and four replicas; with three each nobody waits."""
    problem = problem_with(parameters=0, link=FAST)
    alike, unlike = (
        (PlacedStage(0, 0, 0, first), PlacedStage(1, 3, 0, 3), PlacedStage(4, 5, 0, last))
        for first, last in ((3, 3), (2, 4))
    )
    alike_s = clocked_s(problem, alike, is_open=True)
    assert alike_s == pytest.approx(closed_form_s(problem, alike))
    assert clocked_s(problem, unlike) > 1.05 * closed_form_s(problem, unlike)
    assert clocked_s(problem, unlike) == pytest.approx(simulated_s(problem, unlike))


def test_shared_parameters_are_summed_over_the_devices_of_both_stages() -> None:
    placement = (PlacedStage(0, 0, 0, 3), PlacedStage(1, 4, 1, 1), PlacedStage(5, 5, 0, 2))
    alone, shared = problem_with(), problem_with(tied_to={5: 0})
    ring_s = 2 * 4 * (LINK.latency_s + 4 * 2e6 / 5 / LINK.bandwidth_bytes_per_s)
    # Of the first stage a sum without bytes is left: its layer owns what is shared.
    own_s = 2 * 2 * (4 * 2e6 / 3 / LINK.bandwidth_bytes_per_s)
    more_s = clocked_s(shared, placement) - clocked_s(alone, placement)
    assert more_s == pytest.approx(ring_s - own_s)
    assert math.isclose(closed_form_s(shared, placement), closed_form_s(alone, placement))


def test_what_a_tied_layer_has_of_its_own_is_summed_by_its_replicas_as_simulated() -> None:
    placement = (PlacedStage(0, 0, 0, 3), PlacedStage(1, 4, 1, 1), PlacedStage(5, 5, 0, 2))
    shared = problem_with(tied_to={0: 5})
    more = with_own(shared, 0, 10**6)
    ring_s = 2 * 2 * (LINK.latency_s + 4 * 1e6 / 3 / LINK.bandwidth_bytes_per_s)
    for seconds in (clocked_s, simulated_s):
        assert seconds(more, placement) - seconds(shared, placement) == pytest.approx(ring_s)


def test_its_own_are_summed_while_it_waits_for_the_owner_of_those_that_it_shares() -> None:
    placement = (PlacedStage(0, 4, 0, 1), PlacedStage(5, 5, 0, 5))
    shared = problem_with(tied_to={5: 0})
    more = with_own(shared, 5, 10**4)
    for seconds in (clocked_s, simulated_s):
        assert seconds(more, placement) == pytest.approx(seconds(shared, placement))
