"""HARP on our problems: launch counts in the plan that hide slow links, within memory."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.harp.system import Harp
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s
from tests.envs.small_problems import chain_problem
from tests.uneven_problems import MakeProblem


def far_apart(latency_s: float, memory_bytes: int = 10**12, schedule: str = "1f1b") -> Problem:
    """Eight layers of three seconds on two devices; 100 bytes of activations each."""
    return chain_problem(
        [1.0] * 8,
        [2.0] * 8,
        num_micro_batches=24,
        counts=(2,),
        memory_bytes=[memory_bytes],
        parameters=[10_000] * 8,
        activation_bytes=[100.0] * 8,
        link=Link(latency_s=latency_s, bandwidth_bytes_per_s=1e18),
        schedule=schedule,
    )


def by_rule(plan: Plan) -> Plan:
    """The same with the counts of 1F1B."""
    return plan.changed(stages=tuple(s.changed(in_flight=None) for s in plan.stages))


def test_behind_a_slow_link_the_plan_is_faster_than_with_the_counts_of_1f1b() -> None:
    problem = far_apart(latency_s=20.0, memory_bytes=400_000)
    plan, own_cost = Harp().answer(problem, Budget())
    assert [len(stage.layers) for stage in plan.stages] == [4, 4]
    # 12 s of the stage behind and 40 s of messages, in periods of 12 s.
    assert [stage.in_flight for stage in plan.stages] == [6, None]
    assert own_cost is not None
    simulated_s = simulated_step_time_s(problem, plan)
    assert simulated_s == pytest.approx(own_cost.seconds)
    assert simulated_step_time_s(problem, by_rule(plan)) > 1.5 * simulated_s
    fewer = plan.changed(stages=(plan.stages[0].changed(in_flight=5), plan.stages[1]))
    assert simulated_step_time_s(problem, fewer) > simulated_s


def test_with_free_links_its_counts_are_those_of_1f1b() -> None:
    plan = Harp().plan(far_apart(latency_s=0.0, memory_bytes=400_000), Budget())
    assert len(plan.stages) == 2
    assert all(stage.in_flight is None for stage in plan.stages)
    held = in_flight_micro_batches(plan)
    assert [held[stage.name] for stage in plan.stages] == [2, 1]


def test_where_memory_has_room_no_stage_launches_fewer_than_1f1b() -> None:
    """The first stage would be busy with two: both behind it are done before its next one."""
    problem = chain_problem(
        [4.0, 1.0, 1.0],
        [8.0, 2.0, 2.0],
        num_micro_batches=12,
        counts=(3,),
        memory_bytes=[130_000],
        parameters=[15_000] * 3,
    )
    plan = Harp().plan(problem, Budget())
    held = in_flight_micro_batches(plan)
    assert [held[stage.name] for stage in plan.stages] == [3, 2, 1]


def test_memory_is_counted_with_what_is_in_flight() -> None:
    """Stages have 320,000 bytes of state, and 400 for each micro-batch that they hold."""
    roomy = far_apart(latency_s=20.0, memory_bytes=320_000 + 6 * 400)
    short = far_apart(latency_s=20.0, memory_bytes=320_000 + 4 * 400)
    plans = [Harp().plan(problem, Budget()) for problem in (roomy, short)]
    first, second = (max(in_flight_micro_batches(plan).values()) for plan in plans)
    assert (first, second) == (6, 4)
    assert is_feasible(short, plans[1])


def test_other_schedules_have_their_own_counts() -> None:
    plan, own_cost = Harp().answer(far_apart(0.0, 400_000, schedule="gpipe"), Budget())
    assert all(stage.in_flight is None for stage in plan.stages)
    assert own_cost is not None
    assert own_cost.note == "its launch counts, which gpipe cannot have"


def test_stages_stay_on_devices_of_a_kind_and_kinds_stand_together(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=1.0, global_batch_size=32)
    plan = Harp().plan(problem, Budget())
    kinds: dict[int, set[str]] = {}
    for stage in plan.stages:
        device = problem.device_named[stage.devices[0]]
        kinds.setdefault(stage.first_layer, set()).add(device.type.name)
    assert all(len(names) == 1 for names in kinds.values())
    order = [names.pop() for _, names in sorted(kinds.items())]
    runs = [name for index, name in enumerate(order) if index == 0 or order[index - 1] != name]
    assert len(runs) == len(set(runs)) > 1


def test_a_model_that_is_too_large_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^harp: no cut fits with the micro-batches"):
        Harp().plan(make_problem(memory=0.1), Budget())
