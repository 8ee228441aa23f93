"""The decision process: exact costs, exact memory, nothing lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.formula import FITS, evaluate_one
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.state import COMPLETE, RUNNING
from heterps_envs.environments.stage.kernels import advance, observe
from heterps_envs.environments.stage.packed import StageProblems, pack_problems, put_problem
from heterps_envs.environments.stage.pool import bottleneck_s, price_greedy
from heterps_envs.environments.stage.state import StageRows, empty_rows, empty_view, start_rows
from heterps_envs.problem_sets.chains import generate
from tests.envs.small_problems import with_options


def rollout(problems: StageProblems, targets: Floats, limits: Floats, seed: int) -> StageRows:
    """One episode of random allowed actions for every problem."""
    rng = np.random.default_rng(seed)
    count, layers = problems.num_problems, problems.output_bytes.shape[1]
    classes = problems.class_price.shape[1]
    everyone = np.arange(count)
    rows, view = empty_rows(count, layers, classes), empty_view(count, classes)
    start_rows(problems, rows, everyone, everyone, targets, limits)
    observe(problems, rows, view, everyone)
    while (rows.status == RUNNING).any():
        noise = np.where(view.allowed, rng.random(view.allowed.shape), -1.0)
        advance(problems, rows, view, noise.argmax(axis=1))
        observe(problems, rows, view, everyone)
    return rows


def half_with_options(seed: int) -> list[CostTables]:
    """Every second problem has several ways to carry out a stage on a class."""
    tables = generate(24, seed)
    return [with_options(entry, i) if i % 2 else entry for i, entry in enumerate(tables)]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.5, 8.0))
def test_finished_placements_cost_what_the_closed_form_says_and_keep_memory_target_and_fill_limit(
    seed: int, share: float
) -> None:
    tables = half_with_options(seed)
    problems = pack_problems(tables)
    targets = share * problems.lower_bound_s
    rows = rollout(problems, targets, targets, seed)
    for index, entry in enumerate(tables):
        if rows.status[index] != COMPLETE:
            continue
        kernel, code = kernel_tables(entry), rows.code[index, : entry.num_layers]
        step_time_s, _, verdict = evaluate_one(code, kernel, np.zeros(entry.num_classes, np.int64))
        assert verdict == FITS
        assert rows.behind_s[index] == pytest.approx(step_time_s, rel=1e-9)
        kept = bottleneck_s(code, kernel, step_time_s)
        assert kept <= targets[index] * (1 + 1e-9)
        assert step_time_s - kept <= targets[index] * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_masked_episodes_never_break_memory_or_run_out_of_devices(seed: int) -> None:
    tables = half_with_options(seed)
    problems = pack_problems(tables)
    rows = rollout(problems, 3 * problems.lower_bound_s, np.full(len(tables), np.inf), seed)
    for index, entry in enumerate(tables):
        assert (rows.used[index, : entry.num_classes] <= entry.device_count).all()
        if rows.status[index] == COMPLETE:
            code = rows.code[index, : entry.num_layers]
            used = np.zeros(entry.num_classes, np.int64)
            assert evaluate_one(code, kernel_tables(entry), used)[2] == FITS


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_stage_leaves_a_layer_in_front_that_fits_on_no_device_that_is_left(seed: int) -> None:
    tables = generate(24, seed)
    problems = pack_problems(tables)
    rows = rollout(problems, 3 * problems.lower_bound_s, np.full(len(tables), np.inf), seed)
    for index, entry in enumerate(tables):
        left = rows.used[index, : entry.num_classes] < entry.device_count
        for layer in range(rows.position[index] if rows.num_stages[index] else 0):
            # At least one micro-batch is in flight.
            least = entry.state_bytes[layer] + entry.activation_bytes[layer]
            assert left.any()
            assert least <= entry.memory_bytes[left].max()


# Means over what 24 random episodes see, of each feature of candidates and of states.
CANDIDATE_MEANS = [
    1, 0.208202, 0.692084, 0.189091, 0.302105, 0.178225, 0.713599, 0.318549, 0.0708996,
    0.210591, 0.0505263, 0.0686373, 0.496114, 0.456379, 0.0884211, 0.0999333, 0.0161842,
    0.0594895, 0.12106, 0.875725, 0.174737, 0.317647, 0.180534, 0.207017, 0.180732, 0.54525,
    0.219236, 0.0497775, 0.280296, 0.0187037, 0.00159817, 0.252632, 0.240938, 0.276382,
    0.424083, 0.413528, 1.58523,
]  # fmt: skip
STATE_MEANS = [
    0.763143, 0.758085, 0.252457, 0.552257, 0.405465, 0.511986, 0.187714, 0.151746, 0.29601,
    0.21885, 0.513699, 0.0684932, 0.2189, 1, 0.411512, 0.7312, 1.16683,
]  # fmt: skip


def test_features_are_those_that_shipped_policies_were_trained_on() -> None:
    tables = generate(16, seed=11) + generate(8, seed=12, classes=(5, 6))
    problems, rng = pack_problems(tables), np.random.default_rng(3)
    count, everyone = len(tables), np.arange(len(tables))
    classes = problems.class_price.shape[1]
    rows = empty_rows(count, problems.output_bytes.shape[1], classes)
    view = empty_view(count, classes, with_prices=True)
    dollars = (problems.price_usd_per_hour * problems.device_count).sum(axis=1)
    times = 1.5 * problems.lower_bound_s, 2 * problems.lower_bound_s
    start_rows(problems, rows, everyone, everyone, *times, 0.7 * dollars)
    observe(problems, rows, view, everyone)
    candidates, states = [], []
    while (rows.status == RUNNING).any():
        candidates.append(view.candidates[view.allowed].astype(float))
        states.append(view.state[rows.status == RUNNING].astype(float))
        noise = np.where(view.allowed, rng.random(view.allowed.shape), -1.0)
        advance(problems, rows, view, noise.argmax(axis=1))
        observe(problems, rows, view, everyone)
    # The prices of problems come from a solver of linear programmes: a little room.
    np.testing.assert_allclose(np.concatenate(candidates).mean(0), CANDIDATE_MEANS, rtol=1e-4)
    np.testing.assert_allclose(np.concatenate(states).mean(0), STATE_MEANS, rtol=1e-4)


def test_padding_changes_nothing() -> None:
    tables = generate(12, seed=5)
    tight, roomy = pack_problems(tables), pack_problems(tables, max_layers=64, max_classes=16)
    for one, other in zip(price_greedy(tight)[:2], price_greedy(roomy)[:2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_greedy_reference_is_a_real_placement() -> None:
    tables = generate(30, seed=6)
    step_time_s, bottleneck, codes = price_greedy(pack_problems(tables))
    assert np.isfinite(step_time_s).mean() > 0.7
    for index in np.flatnonzero(np.isfinite(step_time_s)):
        kernel = kernel_tables(tables[index])
        code = codes[index, : tables[index].num_layers]
        used = np.zeros(tables[index].num_classes, np.int64)
        assert evaluate_one(code, kernel, used)[0] == pytest.approx(step_time_s[index])
        assert bottleneck_s(code, kernel, step_time_s[index]) == pytest.approx(bottleneck[index])


def test_a_problem_that_does_not_fit_into_the_room_is_refused() -> None:
    tables = generate(1, seed=0, layers=(9, 9), classes=(3, 3))
    with pytest.raises(HeterpsError, match="9 layers and 3 device classes; there is room for 8"):
        pack_problems(tables, max_layers=8, max_classes=4)


def test_a_layer_that_fits_nowhere_is_refused() -> None:
    entry = generate(1, seed=0)[0]
    fields = {name: getattr(entry, name) for name in CostTables.__dataclass_fields__}
    hopeless = CostTables(**{**fields, "memory_bytes": entry.memory_bytes * 1e-9})
    problems = pack_problems([entry])
    with pytest.raises(HeterpsError, match="fits on no device"):
        put_problem(problems, 0, hopeless)
