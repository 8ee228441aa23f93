"""The hill climb over cuts: never loses, keeps memory, keeps the stages."""

import numpy as np
import pytest

from heterps_agents.search.refine import refine
from heterps_envs.closed_form.formula import FITS, evaluate_one
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import decode
from heterps_envs.environments.stage.packed import pack_problems
from heterps_envs.environments.stage.pool import bottleneck_s, price_greedy
from heterps_envs.problem_sets.chains import generate


def test_refined_placements_are_better_and_real() -> None:
    tables = generate(40, seed=32)
    problems = pack_problems(tables)
    greedy_s, greedy_bottleneck_s, greedy_code = price_greedy(problems)
    step_time_s, bottleneck = greedy_s[:, None].copy(), greedy_bottleneck_s[:, None].copy()
    codes = greedy_code[:, None].copy()
    before, stages_before = step_time_s.copy(), codes.copy()
    refine(problems, step_time_s, bottleneck, codes)
    assert (step_time_s <= before).all()
    assert (step_time_s < 0.999 * before).mean() > 0.1
    for row, entry in enumerate(tables):
        if np.isinf(step_time_s[row, 0]):
            continue
        kernel, code = kernel_tables(entry), codes[row, 0, : entry.num_layers]
        seconds, _, verdict = evaluate_one(code, kernel, np.zeros(entry.num_classes, np.int64))
        assert verdict == FITS
        assert seconds == pytest.approx(step_time_s[row, 0], rel=1e-9)
        assert bottleneck_s(code, kernel, seconds) == pytest.approx(bottleneck[row, 0])
        old = decode(stages_before[row, 0, : entry.num_layers])
        shape = [(stage.device_class, stage.replicas) for stage in decode(code)]
        assert shape == [(stage.device_class, stage.replicas) for stage in old]
