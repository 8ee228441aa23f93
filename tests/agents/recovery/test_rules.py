"""Rules that mend a plan after devices were lost: what each does, and that its plans are valid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.recovery.chains import chains_of
from heterps_agents.recovery.plans import full_plan, rule_plans
from heterps_agents.recovery.rules import RULES, borrow, merge, simple, templates
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.closed_form.placement import PlacedStage, check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem, with_splits
from tests.runtime.random_plans import plans
from tests.runtime.small_runs import DEVICES, problem_of
from tests.uneven_problems import MakeProblem

SMALL = problem_of("sequential", global_batch_size=10)


def plan_of(problem: Problem, *pipelines: list[tuple[int, str]]) -> Plan:
    """Pipelines of (first layer, devices with `|` between replicas); the batch in equal turns."""
    stages: dict[str, Stage] = {}
    routes: list[tuple[tuple[str, ...], list[int]]] = []
    num_layers = problem.profile.num_layers
    for chain in pipelines:
        stops = [first for first, _ in chain[1:]] + [num_layers]
        columns = [names.split("|") for _, names in chain]
        for (first, _), stop, names in zip(chain, stops, columns, strict=True):
            for name in names:
                stages[name] = Stage(
                    name=name, first_layer=first, last_layer=stop - 1, devices=(name,)
                )
        width = max(map(len, columns))
        routes += [(tuple(names[i % len(names)] for names in columns), []) for i in range(width)]
    for micro_batch in range(problem.job.num_micro_batches):
        routes[micro_batch % len(routes)][1].append(micro_batch)
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.layers_fingerprint,
        num_layers=num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages.values()),
        pipelines=tuple(Pipeline(stages=r, micro_batches=tuple(share)) for r, share in routes),
    )


def shape(plan: Plan) -> list[tuple[int, int, str]]:
    return sorted((s.first_layer, s.last_layer, s.devices[0]) for s in plan.stages)


def check(left: Problem, before: Plan, after: Plan) -> None:
    """It belongs to the problem, keeps the batch, and fits."""
    check_plan(left, after)
    assert after.job == before.job
    shown = estimate(left, after)
    assert all(need <= shown.memory_limit_bytes[name] for name, need in shown.memory_bytes.items())
    assert after.predicted_step_time_s == pytest.approx(shown.step_time_s)


def test_simple_drops_the_lost_replica_and_keeps_every_other_stage(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0|middle-1|middle-2")])
    left = without_devices(problem, {"middle-1"})
    found = simple(left, plan, {"middle-1"})
    assert found is not None
    check(left, plan, found)
    assert shape(found) == [entry for entry in shape(plan) if entry[2] != "middle-1"]
    turns = {name: 0 for name in found.devices}
    for pipeline in found.pipelines:
        for stage in pipeline.stages:
            turns[found.stage(stage).devices[0]] += len(pipeline.micro_batches)
    assert turns == {"fast-0": 16, "middle-0": 8, "middle-2": 8}


def test_the_rest_of_a_pipeline_helps_one_with_equal_cuts(make_problem: MakeProblem) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0"), (8, "middle-0")], [(0, "fast-1"), (8, "middle-1")])
    left = without_devices(problem, {"middle-1"})
    found = simple(left, plan, {"middle-1"})
    assert found is not None
    check(left, plan, found)
    assert shape(found) == [(0, 7, "fast-0"), (0, 7, "fast-1"), (8, 9, "middle-0")]


def test_simple_drops_a_pipeline_that_lost_a_stage_and_says_when_none_is_left(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    two = plan_of(problem, [(0, "fast-0"), (5, "middle-0")], [(0, "fast-1"), (4, "middle-1")])
    left = without_devices(problem, {"middle-1"})
    found = simple(left, two, {"middle-1"})
    assert found is not None
    assert shape(found) == [(0, 4, "fast-0"), (5, 9, "middle-0")]
    one = plan_of(problem, [(0, "fast-0"), (5, "middle-0")])
    assert simple(without_devices(problem, {"middle-0"}), one, {"middle-0"}) is None


def test_borrow_fills_the_place_with_the_best_device_from_elsewhere(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0"), (4, "middle-0|middle-1|middle-2"), (8, "small-0")])
    left = without_devices(problem, {"fast-0"})
    found = borrow(left, plan, {"fast-0"})
    assert found is not None
    check(left, plan, found)
    # The other fast device does nothing, and is the fastest that can be had.
    assert (0, 3, "fast-1") in shape(found)


def test_borrow_takes_a_replica_where_no_device_is_idle(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 3, 0))
    plan = plan_of(problem, [(0, "fast"), (2, "middle-0|middle-1|middle-2")])
    left = without_devices(problem, {"fast"})
    found = borrow(left, plan, {"fast"})
    assert found is not None
    assert [entry[:2] for entry in shape(found)] == [(0, 1), (2, 9), (2, 9)]
    check(left, plan, found)


def test_merge_parts_the_lost_layers_among_the_neighbours(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 3, 0))
    plan = plan_of(problem, [(0, "fast-0"), (4, "middle-0"), (8, "middle-1")])
    left = without_devices(problem, {"middle-0"})
    found = merge(left, plan, {"middle-0"})
    assert found is not None
    check(left, plan, found)
    (_, cut, first), (start, _, second) = shape(found)
    assert (first, second) == ("fast-0", "middle-1")
    assert cut + 1 == start
    assert 4 <= start <= 8


def test_merge_gives_the_layers_of_a_lost_end_to_the_stage_beside_it(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(2, 3, 0))
    plan = plan_of(problem, [(0, "fast-0"), (4, "middle-0"), (8, "middle-1")])
    found = merge(without_devices(problem, {"middle-1"}), plan, {"middle-1"})
    assert found is not None
    assert shape(found) == [(0, 3, "fast-0"), (4, 9, "middle-0")]


def test_templates_regroup_the_survivors_of_each_pipeline(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 2, 0))
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0")], [(0, "fast-1"), (4, "middle-1")])
    left = without_devices(problem, {"middle-1"})
    found = templates(left, plan, {"middle-1"})
    assert found is not None
    check(left, plan, found)
    assert {stage.devices[0] for stage in found.stages} == {"fast-0", "fast-1", "middle-0"}


def test_nothing_changes_when_only_an_idle_device_is_lost(make_problem: MakeProblem) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0")])
    found = rule_plans(without_devices(problem, {"small-0"}), plan, {"small-0"})
    assert list(found) == ["unchanged"]
    assert shape(found["unchanged"]) == shape(plan)


def test_a_throughput_floor_that_nothing_reaches_any_more_does_not_end_the_run(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(objective="price", min_throughput_samples_per_s=1e6)
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0")])
    found = full_plan(without_devices(problem, {"fast-0"}), plan)
    assert found is not None
    assert found.job == problem.job


def test_planning_anew_knows_groups_where_the_plan_that_ran_has_them() -> None:
    # No device alone has room for the first layer.
    problem = with_splits(
        chain_problem(
            [1.0] * 3, [2.0] * 3, num_micro_batches=2, counts=(6,), parameters=[20, 10, 10],
            memory_bytes=[90],
        )
    )  # fmt: skip
    placement = [PlacedStage(layer, layer, 0, degree=2) for layer in range(3)]
    plan = bind(problem, placement, planner="test", seed=0)
    left = without_devices(problem, {"d0-4", "d0-5"})
    found = full_plan(left, plan)
    assert found is not None
    assert estimate(left, found).feasible
    assert found.stages[0].degree == 2
    plain = bind(problem, [PlacedStage(0, 2, 0)], planner="test", seed=0)
    assert full_plan(left, plain) is None


@settings(max_examples=20)
@given(st.data())
def test_all_rules_give_valid_plans_of_what_is_left_for_any_plan_and_loss(
    data: st.DataObject,
) -> None:
    plan = data.draw(plans(SMALL))
    lost = data.draw(st.sets(st.sampled_from(DEVICES), min_size=1, max_size=3))
    left = without_devices(SMALL, lost)
    for rule in RULES.values():
        found = rule(left, plan, lost)
        if found is not None:
            check(left, plan, found)
            assert not set(found.devices) & lost
    if not set(plan.devices) <= lost:
        # A model that fits on any device can always go on.
        assert templates(left, plan, lost) is not None


@settings(max_examples=30)
@given(st.data())
def test_chains_hold_every_stage_of_the_plan(data: st.DataObject) -> None:
    plan = data.draw(plans(SMALL))
    chains = chains_of(plan)
    held = {
        (column.first_layer, column.last_layer, device)
        for chain in chains
        for column in chain
        for device in column.devices
    }
    assert held == set(shape(plan))
    for chain in chains:
        layers = [n for c in chain for n in range(c.first_layer, c.last_layer + 1)]
        assert layers == list(range(plan.num_layers))


def test_a_loss_of_all_devices_is_an_error() -> None:
    with pytest.raises(HeterpsError, match="no device is left"):
        without_devices(SMALL, DEVICES)
