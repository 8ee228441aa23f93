"""AutoHete on our problems: as fast as memory allows, by keeping, computing again, offloading."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.autohete.system import AutoHete
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulated_step_time_s
from tests.agents.systems.autohete.boxes import box, random_layers

LAYERS = random_layers(np.random.default_rng(7), 8)
STATE_GB = 16 * sum(layer.num_parameters for layer in LAYERS) / 1e9
SAVED_GB = 8 * sum(layer.activation_bytes for layer in LAYERS) / 1e9


def tight(share: float, **settings: object) -> Problem:
    """One GPU with room for the state and a share of what layers save of micro-batches of 8."""
    memory_gb = 1.03 * STATE_GB + share * SAVED_GB
    settings = {"global_batch_size": 16, "micro_batch_size": 8, **settings}
    return box(LAYERS, memory_gb, **settings)  # type: ignore[arg-type]


def done(plan: Plan) -> tuple[int, int]:
    """Layers that are computed again, and layers that are offloaded."""
    return (
        sum(len(stage.recompute_layers) for stage in plan.stages),
        sum(len(stage.offloaded_layers) for stage in plan.stages),
    )


def test_with_room_for_all_nothing_is_done_for_memory() -> None:
    plan, own_cost = AutoHete().answer(tight(1.5), Budget())
    assert done(plan) == (0, 0)
    assert own_cost is not None
    assert own_cost.note == ""


@pytest.mark.slow
def test_the_less_room_there_is_the_longer_a_step_takes() -> None:
    seconds, ways = [], set()
    for share in (1.5, 1.1, 0.9, 0.7, 0.5):
        problem = tight(share, host_gb_per_s=5.0)
        plan, own_cost = AutoHete().answer(problem, Budget())
        assert own_cost is not None
        # One device without messages and sums: what the method counts is all there is.
        assert own_cost.seconds == pytest.approx(simulated_step_time_s(problem, plan), rel=0.01)
        seconds.append(own_cost.seconds)
        ways.add(done(plan))
    assert seconds == sorted(seconds)
    assert any(again for again, _ in ways)
    assert any(away for _, away in ways)


def test_a_mixture_is_faster_than_all_computed_again() -> None:
    problem = tight(0.7)
    plan = AutoHete().plan(problem, Budget())
    layers = tuple(range(len(LAYERS)))
    again = plan.changed(
        stages=[plan.stages[0].changed(recompute_layers=layers, offloaded_layers=())]
    )
    assert estimate(problem, again).feasible
    assert simulated_step_time_s(problem, plan) < 0.95 * simulated_step_time_s(problem, again)


def test_without_a_link_to_the_host_nothing_is_offloaded() -> None:
    plan = AutoHete().plan(tight(0.7, host_gb_per_s=None), Budget())
    again, away = done(plan)
    assert again > 0
    assert away == 0


def test_without_such_a_link_layers_that_save_nothing_are_kept_too() -> None:
    problem = tight(0.7, host_gb_per_s=None)
    empty = LAYERS[0].changed(
        activation_bytes=0.0, output_bytes=0.0, saved_input_bytes=0.0, saved_output_bytes=0.0
    )
    profile = problem.profile.changed(layers=[*LAYERS[:-1], empty.changed(name="last")])
    plan = AutoHete().plan(Problem(profile, problem.cluster, problem.job), Budget())
    assert done(plan)[1] == 0


def test_a_slow_link_to_the_host_is_used_less_than_a_fast_one() -> None:
    slow = AutoHete().plan(tight(0.6, host_gb_per_s=2.0), Budget())
    fast = AutoHete().plan(tight(0.6, host_gb_per_s=60.0), Budget())
    assert done(slow)[1] < done(fast)[1]


def test_each_device_has_the_whole_model_and_ways_of_its_own() -> None:
    problem = box(
        LAYERS, 2 * (STATE_GB + SAVED_GB), count=2, global_batch_size=24, micro_batch_size=8,
        slow_memory_gb=1.03 * STATE_GB + 0.8 * SAVED_GB,
    )  # fmt: skip
    plan = AutoHete().plan(problem, Budget())
    assert [stage.layers for stage in plan.stages] == [range(len(LAYERS))] * 3
    assert [len(pipeline.micro_batches) for pipeline in plan.pipelines] == [1, 1, 1]
    needed = {
        stage.devices[0]: bool(stage.recompute_layers + stage.offloaded_layers)
        for stage in plan.stages
    }
    assert needed == {"fast-0": False, "fast-1": False, "slow": True}


def test_what_no_device_holds_is_cut_over_as_few_as_hold_it() -> None:
    plan = AutoHete().plan(box(LAYERS, 0.8 * STATE_GB, count=4, global_batch_size=16), Budget())
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [2, 2]
    assert sum(stage.first_layer == 0 for stage in plan.stages) == 2


def test_what_state_in_host_memory_would_give_is_a_note() -> None:
    problem = box(LAYERS, 0.8 * STATE_GB, count=4, global_batch_size=16)
    _, own_cost = AutoHete().answer(problem, Budget())
    assert own_cost is not None
    assert own_cost.note.startswith("AutoHete's own answer has optimizer state or weights of ")
    assert f"{own_cost.seconds:.4g} s without" in own_cost.note


def test_what_only_state_in_host_memory_would_place_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"^autohete: needs optimizer state .* do not say$"):
        AutoHete().plan(box(LAYERS, 0.5 * STATE_GB), Budget())


def test_what_no_way_places_is_refused() -> None:
    with pytest.raises(HeterpsError, match=r"^autohete: no device has room for its part"):
        AutoHete().plan(box(LAYERS, 0.5 * STATE_GB, host_gb_per_s=None), Budget())


def fits(problem: Problem) -> tuple[int, int] | None:
    """What is done for memory; None where the method itself says that nothing fits."""
    try:
        found = AutoHete().solve(problem, Budget())
    except InfeasibleError:
        return None
    assert estimate(problem, found.plan).feasible
    return done(found.plan)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_what_the_method_takes_for_fitting_fits_by_the_simulator(schedule: str) -> None:
    rng, found = np.random.default_rng(3), list[tuple[int, int] | None]()
    for _ in range(12):
        layers = random_layers(rng, int(rng.integers(3, 8)))
        state = 16 * sum(layer.num_parameters for layer in layers) / 1e9
        size = int(rng.choice([1, 4]))
        saved = size * sum(layer.activation_bytes for layer in layers) / 1e9
        memory_gb = float(rng.uniform(0.7, 1.05)) * state + float(rng.uniform(0.2, 2)) * saved
        problem = box(
            layers, memory_gb, count=int(rng.integers(1, 7)), schedule=schedule,
            global_batch_size=12 * size, micro_batch_size=size,
        )  # fmt: skip
        found.append(fits(problem))
    assert sum(each is not None and sum(each) > 0 for each in found) > 4
