"""Wide problems: all sizes, half of them small; stage options that the cost model can count."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import STEP_TIME
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.wide_chains import SMALL, generate_wide

LAYERS, CLASSES, COUNTS = (8, 160), (2, 12), (1, 64)


def drawn(count: int, seed: int = 3) -> list[CostTables]:
    return generate_wide(count, seed, LAYERS, CLASSES, COUNTS)


def test_sizes_stay_within_the_ranges_and_reach_both_ends() -> None:
    problems = drawn(120)
    layers = [entry.num_layers for entry in problems]
    devices = [int(entry.device_count.max()) for entry in problems]
    assert LAYERS[0] <= min(layers)
    assert max(layers) <= LAYERS[1]
    assert max(layers) > 100
    assert max(devices) <= COUNTS[1]
    assert max(devices) > 32
    assert max(entry.num_options for entry in problems) <= CLASSES[1]


def test_about_half_are_as_small_as_those_of_the_other_generator() -> None:
    small = sum(
        entry.num_layers <= SMALL.layers[1]
        and entry.num_classes <= SMALL.classes[1]
        and int(entry.device_count.max()) <= SMALL.count_range[1]
        for entry in drawn(200)
    )
    assert 80 < small < 140


def test_longer_lists_extend_shorter_ones() -> None:
    assert fingerprint(drawn(9)[:4]) == fingerprint(drawn(4))
    assert fingerprint(drawn(4)) != fingerprint(drawn(4, seed=4))


def test_options_take_no_more_devices_than_there_are() -> None:
    with_options = [entry for entry in drawn(120) if entry.options is not None]
    assert len(with_options) > 10
    for entry in with_options:
        options = entry.stage_options
        counts = entry.device_count[options.class_of_option]
        assert (options.devices_of_option <= counts).all()
        assert set(options.class_of_option) == set(range(entry.num_classes))
        assert (options.state_bytes >= 0).all()
        assert (options.sharded_bytes.any(axis=0) == options.shards_state).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_nearly_all_have_a_placement(seed: int) -> None:
    found = 0
    for entry in drawn(30, seed):
        question = Question(entry, kernel_tables(entry), STEP_TIME, Budget())
        code = greedy_code(question)
        found += code is not None and np.isfinite(question.cost(code))
    assert found >= 27
