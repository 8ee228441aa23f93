"""Stage options: which there are, and what they cost."""

import numpy as np
import pytest

from heterps.planning.problems import load_problem
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError
from heterps_envs.cost_tables import StageOptions
from heterps_envs.options import StageOption, option_tables, options_of

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
    keeps, again = options.index(StageOption(0)), options.index(StageOption(0, 1, True))
    assert (
        tables.backward_s[:, again] == tables.backward_s[:, keeps] + tables.forward_s[:, keeps]
    ).all()
    kept = tables.stage_options.activation_bytes
    assert kept[1:-1, again].max() < 0.1 * kept[1:-1, keeps].max()


def test_state_and_what_replicas_share_of_it_are_all_of_it() -> None:
    problem = load_problem("gpt2", "a100-v100")
    options = options_of(problem, ALL)
    held = option_tables(problem, options).stage_options
    whole, shared = options.index(StageOption(0)), options.index(StageOption(0, 1, False, True))
    both = held.state_bytes[:, shared] + held.sharded_bytes[:, shared]
    np.testing.assert_allclose(both, held.state_bytes[:, whole])
    assert held.shards_state[shared]
    assert not held.shards_state[whole]


def test_a_degree_that_no_node_has_is_refused_in_one_line() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    with pytest.raises(HeterpsError, match="no node of 'a100-v100-t4' holds groups of 3 equal"):
        options_of(problem, Strategy(tensor_parallel=(3,)))
