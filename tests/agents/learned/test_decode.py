"""Decoding: real placements, exact costs, never worse than what is known."""

from typing import Any

import numpy as np
import pytest

from heterps_agents.learned.beam import Noise
from heterps_agents.learned.decode import decode
from heterps_agents.learned.policy import Policy
from heterps_envs.closed_form.formula import FITS, OPTION_MASK, evaluate_one
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.environments.stage.packed import pack_problems
from heterps_envs.environments.stage.pool import bottleneck_s
from heterps_envs.problem_sets.chains import generate
from tests.envs.small_problems import with_options

SIZES: list[dict[str, Any]] = [
    {},
    {"classes": (5, 12), "count_range": (1, 10)},
    {"layers": (60, 90)},
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("width", [1, 8])
def test_placements_cost_what_is_said(
    random_policy: Policy, sizes: dict[str, Any], width: int
) -> None:
    tables = generate(8, seed=21, **sizes)
    found = decode(random_policy, pack_problems(tables), width=width)
    assert np.isfinite(found.step_time_s).sum() >= 6
    for index, entry in enumerate(tables):
        if not np.isfinite(found.step_time_s[index]):
            continue
        kernel, code = kernel_tables(entry), found.code[index, : entry.num_layers]
        used = np.zeros(entry.num_classes, np.int64)
        step_time_s, _, verdict = evaluate_one(code, kernel, used)
        assert verdict == FITS
        assert found.step_time_s[index] == pytest.approx(step_time_s, rel=1e-9)
        assert found.bottleneck_s[index] == pytest.approx(bottleneck_s(code, kernel, step_time_s))


def test_with_options_beams_and_samples_place_by_them_and_cost_what_is_said(
    random_policy: Policy,
) -> None:
    tables = [with_options(entry, index) for index, entry in enumerate(generate(8, seed=26))]
    problems, chosen = pack_problems(tables), set[bool]()
    for noise in (None, Noise(1.0, np.random.default_rng(4))):
        found = decode(random_policy, problems, width=8, noise=noise)
        assert np.isfinite(found.step_time_s).sum() >= 6
        for index in np.flatnonzero(np.isfinite(found.step_time_s)):
            entry, code = tables[index], found.code[index, : tables[index].num_layers]
            kernel, used = kernel_tables(entry), np.zeros(entry.num_classes, np.int64)
            step_time_s, _, verdict = evaluate_one(code, kernel, used)
            assert verdict == FITS
            assert found.step_time_s[index] == pytest.approx(step_time_s, rel=1e-9)
            chosen |= set((entry.stage_options.devices_of_option[code & OPTION_MASK] > 1).tolist())
    assert chosen == {False, True}


def test_more_width_and_rounds_from_the_last_result_never_lose(random_policy: Policy) -> None:
    problems = pack_problems(generate(12, seed=22))
    first = decode(random_policy, problems, width=2, rounds=1)
    second = decode(random_policy, problems, width=8, known=first)
    assert (second.step_time_s <= first.step_time_s).all()
    assert (second.step_time_s < first.step_time_s).any()
    assert second.evaluations == first.evaluations + 3 * 8 * 8 * 12


def test_decoding_repeats_itself_and_noise_changes_it(random_policy: Policy) -> None:
    problems = pack_problems(generate(12, seed=23))
    one, same = (decode(random_policy, problems, width=1) for _ in range(2))
    np.testing.assert_array_equal(one.code, same.code)
    noisy, repeated = (
        decode(random_policy, problems, width=1, noise=Noise(1.0, np.random.default_rng(4)))
        for _ in range(2)
    )
    np.testing.assert_array_equal(noisy.code, repeated.code)
    assert (noisy.code != one.code).any()


def test_a_problem_alone_gets_what_it_gets_in_company(random_policy: Policy) -> None:
    tables = generate(6, seed=24)
    together = decode(random_policy, pack_problems(tables), width=4)
    for index, entry in enumerate(tables):
        alone = decode(random_policy, pack_problems([entry]), width=4)
        assert alone.step_time_s[0] == pytest.approx(together.step_time_s[index], rel=1e-3)


def test_stopping_keeps_the_rounds_so_far(random_policy: Policy) -> None:
    problems = pack_problems(generate(3, seed=25))
    stopped = decode(random_policy, problems, width=2, should_stop=lambda: True)
    assert stopped.evaluations == 3 * 8 * 2
