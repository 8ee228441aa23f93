"""Stage options: which there are, and what they cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.closed_form.formula import FITS, OPTION_MASK, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import (
    PlacedStage,
    closed_form_of_plan_s,
    decode,
    encode,
    placement_of,
)
from heterps_envs.closed_form.stage_formula import stage_bytes
from heterps_envs.cost_tables import StageOptions
from heterps_envs.options import StageOption, bounding_tables, option_tables, options_of
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem
from tests.envs.stages_that_drop import (
    ROUNDING_BYTES,
    held_in_flight,
    problems,
    simulated_bytes,
    uniform_placements,
)

ALL = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")


@pytest.mark.parametrize(
    ("model", "cluster", "schedule"),
    [
        ("llama-7b", "a100-v100-t4", "1f1b"),
        ("gpt2", "h100-pod", "gpipe"),
        ("resnet-152", "a100-v100", "gpipe"),
        ("llama-tiny", "a100-v100-t4", "1f1b"),
    ],
)
def test_one_option_for_each_class_costs_what_the_class_does_bit_for_bit(
    model: str, cluster: str, schedule: str
) -> None:
    problem = load_problem(model, cluster, schedule=schedule)
    plain = problem.tables
    tables = option_tables(problem, options_of(problem, Strategy()))
    for name in (
        "forward_s", "backward_s", "optimizer_s", "memory_bytes", "price_usd_per_hour",
        "latency_s", "inverse_bandwidth_s_per_byte",
    ):  # fmt: skip
        assert np.array_equal(getattr(tables, name), getattr(plain, name)), name
    assert isinstance(tables.options, StageOptions)
    for name in StageOptions.__dataclass_fields__:
        assert np.array_equal(getattr(tables.options, name), getattr(plain.stage_options, name))


def test_options_of_one_device_that_keeps_all_come_first() -> None:
    problem = load_problem("llama-7b", "a100-v100-t4")
    options = options_of(problem, ALL)
    classes = range(len(problem.classes))
    assert options[: len(problem.classes)] == tuple(StageOption(kind) for kind in classes)
    assert len(set(options)) == len(options)


def test_a_group_holds_less_and_takes_less_time_of_what_is_split() -> None:
    problem = load_problem("llama-7b", "h100-pod")
    options = options_of(problem, ALL)
    tables = option_tables(problem, options)
    alone, four = options.index(StageOption(0)), options.index(StageOption(0, 4))
    block = problem.profile.num_layers // 2
    assert tables.forward_s[block, four] < tables.forward_s[block, alone]
    assert (
        tables.stage_options.state_bytes[block, four]
        < 0.3 * (tables.stage_options.state_bytes[block, alone])
    )
    assert tables.price_usd_per_hour[four] == 4 * tables.price_usd_per_hour[alone]


def test_computing_again_keeps_what_enters_a_layer_and_takes_another_forward_pass() -> None:
    problem = load_problem("llama-7b", "h100-pod")
    options = options_of(problem, ALL)
    tables = option_tables(problem, options)
    keeps, again = options.index(StageOption(0)), options.index(StageOption(0, 1, "recompute"))
    assert (
        tables.backward_s[:, again] == tables.backward_s[:, keeps] + tables.forward_s[:, keeps]
    ).all()
    kept = tables.stage_options.activation_bytes
    assert kept[1:-1, again].max() < 0.1 * kept[1:-1, keeps].max()


def test_state_and_what_replicas_share_of_it_are_all_of_it() -> None:
    problem = load_problem("gpt2", "a100-v100")
    options = options_of(problem, ALL)
    held = option_tables(problem, options).stage_options
    whole, shared = options.index(StageOption(0)), options.index(StageOption(0, 1, "keep", True))
    both = held.state_bytes[:, shared] + held.sharded_bytes[:, shared]
    np.testing.assert_allclose(both, held.state_bytes[:, whole])
    assert held.shards_state[shared]
    assert not held.shards_state[whole]


def test_a_degree_that_no_node_has_is_refused_in_one_line() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    with pytest.raises(HeterpsError, match="no node of 'a100-v100-t4' holds groups of 3 equal"):
        options_of(problem, Strategy(tensor_parallel=(3,)))


def test_a_degree_that_splits_no_layer_is_refused_in_one_line_by_bounds_too() -> None:
    strategy = Strategy(tensor_parallel=(2,))
    problem = load_problem("perceptron", "h100-pod", strategy=strategy)
    for asked in (lambda: options_of(problem, strategy), lambda: bounding_tables(problem)):
        with pytest.raises(HeterpsError, match="no layer of 'perceptron' is split over groups"):
            asked()


def test_offloading_frees_the_device_and_takes_what_the_host_link_cannot_hide() -> None:
    problem = load_problem("llama-7b", "a100-v100-t4")
    options = options_of(problem, Strategy(recompute="auto", offload="auto"))
    tables = option_tables(problem, options)
    keeps, away = options.index(StageOption(0)), options.index(StageOption(0, 1, "offload"))
    later = problem.offload.forward_s[:, 0]
    assert later[1] > 0
    np.testing.assert_array_equal(
        tables.forward_s[:, away], tables.forward_s[:, keeps] + problem.offload.forward_s[:, 0]
    )
    kept = tables.stage_options.activation_bytes
    assert kept[1:-1, away].max() < 0.1 * kept[1:-1, keeps].max()
    assert tables.memory_bytes[away] < tables.memory_bytes[keeps]


@pytest.mark.parametrize("action", ["keep", "recompute", "offload"])
def test_closed_form_and_certificate_of_what_is_done_with_activations_agree(action: str) -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=64)
    options = options_of(problem, Strategy(recompute="auto", offload="auto"))
    last = problem.profile.num_layers - 1
    way = {"keep": {}, "recompute": {"recompute": True}, "offload": {"offload": True}}[action]
    placement = (PlacedStage(0, 4, 1, **way), PlacedStage(5, last, 0))
    code = encode(placement, options)
    assert decode(code, options) == placement
    plan = bind(problem, placement, planner="test", seed=0)
    assert plan.stages[0].offloaded_layers == (tuple(range(5)) if action == "offload" else ())
    step_time_s, _, verdict = evaluate(code[None], kernel_tables(option_tables(problem, options)))
    assert verdict[0] == FITS
    certificate = check_certificate(problem, plan, plan.bound)
    assert certificate.step_time_s == pytest.approx(step_time_s[0], rel=1e-12)
    assert estimate(problem, plan).step_time_s == pytest.approx(step_time_s[0], rel=0.05)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_stage_holds_more_than_its_option_counts(data: st.DataObject) -> None:
    problem = data.draw(problems())
    options = options_of(problem, Strategy(recompute="auto", shard_state="auto", offload="auto"))
    kernel = kernel_tables(option_tables(problem, options))
    placement = data.draw(uniform_placements())
    plan = bind(problem, placement, planner="test", seed=0)
    simulated, held = simulated_bytes(problem, plan), held_in_flight(problem, plan)
    columns = (encode(placement, options) & OPTION_MASK).tolist()
    replicas = {placed.first_layer: placed.replicas for placed in placement}
    for index, stage in enumerate(plan.stages):
        first, stop = stage.first_layer, stage.last_layer + 1
        counted = stage_bytes(
            kernel, first, stop, columns[first], replicas[first], held[index]
        ) - float(kernel.memory_bytes[columns[first]])
        counted += problem.usable_bytes(stage.devices[0])
        assert simulated[index] <= counted + ROUNDING_BYTES


def test_what_layers_put_off_in_a_zero_bubble_schedule_counts_in_every_option() -> None:
    problem = chain_problem(
        [1.0] * 2, [2.0] * 2, counts=(1,), activation_bytes=[10.0] * 2, schedule="zero-bubble"
    )
    layers = tuple(layer.changed(deferred_bytes=30.0) for layer in problem.profile.layers)
    problem = replace(problem, profile=problem.profile.changed(layers=layers))
    options = options_of(problem, Strategy(recompute="auto"))
    kept = option_tables(problem, options).stage_options.activation_bytes
    assert kept.tolist() == [[30.0] * len(options)] * 2


def test_offloading_without_a_link_to_any_host_is_refused_in_one_line() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    types = tuple(entry.type.changed(host_bandwidth_bytes_per_s=None) for entry in problem.classes)
    cluster = problem.cluster.changed(device_types=types)
    with pytest.raises(HeterpsError, match="no device type of 'a100-v100-t4' has host_bandwidth"):
        options_of(replace(problem, cluster=cluster), Strategy(offload="auto"))
    with pytest.raises(HeterpsError, match="offload: auto, but recompute is full"):
        Strategy.from_mapping({"recompute": "full", "offload": "auto"}, source="options")


def test_bounds_are_below_even_plans_that_divide_nodes_otherwise() -> None:
    for model, cluster in (("gpt2", "h100-pod"), ("llama-tiny", "a100-v100-t4")):
        problem = load_problem(model, cluster, strategy=ALL)
        even = best_uniform(problem.plain, Budget())
        assert even is not None
        plan = even.plan
        placement = placement_of(problem, plan)
        assert placement is not None
        bound_s = lower_bound(bounding_tables(problem))
        assert 0 < bound_s <= closed_form_of_plan_s(problem, plan, placement)
        assert bound_s <= even.cost


def test_a_bound_counts_no_more_than_a_layer_holds_in_any_stage() -> None:
    problem = load_problem("llama-7b", "h100-pod", strategy=ALL)
    tables, by_rule = bounding_tables(problem), option_tables(problem, options_of(problem, ALL))
    for name in ("state_bytes", "activation_bytes"):
        least = getattr(tables.stage_options, name)[:, 0]
        assert (least <= getattr(by_rule.stage_options, name)[:, 0]).all()
    assert {5, 8} <= set(tables.stage_options.devices_of_option.tolist())
