"""Options that no placement needs; that optima stay is held by `tests/agents/exact`."""

from dataclasses import replace

import numpy as np
import pytest

from heterps.planning.problems import load_problem
from heterps_configs.documents.job import Strategy
from heterps_envs.options import StageOption, option_tables, options_of
from heterps_envs.useful_options import NEVER_FULL, NO_ROOM, dropped_columns, useful_options

ALL = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto", offload="auto")


def test_what_is_left_out_and_what_is_left_are_all_options() -> None:
    problem = load_problem("llama-tiny", "a100-v100", strategy=ALL)
    found = useful_options(problem)
    gone = [each.option for each in found.dropped]
    assert sorted(map(str, [*found.options, *gone])) == sorted(map(str, options_of(problem, ALL)))
    again = next(e for e in found.dropped if e.option == StageOption(0, 1, "recompute"))
    assert (again.by, again.why) == (StageOption(0), NEVER_FULL)
    tables = option_tables(problem, found.options)
    np.testing.assert_array_equal(found.tables.forward_s, tables.forward_s)
    np.testing.assert_array_equal(found.tables.latency_s, tables.latency_s)


def test_an_option_without_room_for_any_layer_is_left_out() -> None:
    problem = load_problem("llama-tiny", "a100-v100", strategy=ALL)
    tables = option_tables(problem, options_of(problem, ALL))
    memory_bytes = tables.memory_bytes.copy()
    memory_bytes[1] = 0.0
    assert dropped_columns(replace(tables, memory_bytes=memory_bytes))[1] == (None, NO_ROOM)


@pytest.mark.parametrize("model", ["llama-tiny", "gpt2"])
def test_of_one_option_for_each_class_none_is_left_out(model: str) -> None:
    problem = load_problem(model, "a100-v100-t4")
    asked = replace(problem, strategy=Strategy())
    assert useful_options(asked).dropped == ()
