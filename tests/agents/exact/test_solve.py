"""The exact solver against brute force: every cut, class and replica count of small problems."""

import math

import numpy as np
import pytest

from heterps_agents.exact import solve as exact
from heterps_agents.exact.solve import WorkLimits, predicted_seconds, solve, table_bytes
from heterps_envs.closed_form.formula import FITS, evaluate, is_dominated
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.cost_tables import CostTables
from tests.envs.small_problems import all_codes

LARGEST_SPACE = 100_000


def random_tables(
    seed: int,
    num_layers: int,
    device_count: list[int],
    *,
    num_micro_batches: int = 8,
    memory: float = 2.0,
    link: float = 1.0,
    is_gpipe: bool = False,
) -> CostTables:
    """Arbitrary costs; `memory` is the cluster's memory over the model's state."""
    rng = np.random.default_rng(seed)
    classes = len(device_count)
    compute = rng.uniform(0.2, 2, (num_layers, 1)) * rng.uniform(0.3, 3, (1, classes))
    compute = compute * rng.uniform(0.8, 1.2, (num_layers, classes))
    state = rng.uniform(0.2, 3, num_layers)
    count = np.array(device_count, dtype=np.int64)
    share = rng.uniform(0.5, 2, classes)
    output = rng.uniform(0, 1, num_layers)
    output[-1] = 0.0
    latency, inverse = rng.uniform(0, 0.1, (2, classes, classes)) * link
    return CostTables(
        num_micro_batches=num_micro_batches,
        is_gpipe=is_gpipe,
        forward_s=compute / 3,
        backward_s=compute * 2 / 3,
        optimizer_s=rng.uniform(0, 0.1, (num_layers, classes)),
        state_bytes=state,
        gradient_bytes=state / 4,
        activation_bytes=rng.uniform(0.01, 0.6, num_layers),
        output_bytes=output,
        device_count=count,
        memory_bytes=share * memory * state.sum() / (share * count).sum(),
        price_usd_per_hour=rng.uniform(0.2, 5, classes),
        latency_s=(latency + latency.T) / 2,
        inverse_bandwidth_s_per_byte=(inverse + inverse.T) * 5,
    )


def every_placement(kernel: KernelTables) -> np.ndarray:
    """All codes: cuts, classes and replicas, those with too many devices included."""
    options = [
        (kind, replicas)
        for kind in range(kernel.num_classes)
        for replicas in range(1, int(kernel.device_count[kind]) + 1)
    ]
    return all_codes(kernel.num_layers, options)


def random_small_problem(seed: int) -> KernelTables:
    """Memory-tight and link-bound ones are among them, and both schedules."""
    rng = np.random.default_rng(seed + 1000)
    while True:
        num_layers = int(rng.integers(3, 7))
        counts = [int(n) for n in rng.integers(1, 4, int(rng.integers(1, 4)))]
        if sum(counts) * (1 + sum(counts)) ** (num_layers - 1) < LARGEST_SPACE:
            break
    tables = random_tables(
        seed,
        num_layers,
        counts,
        num_micro_batches=int(rng.integers(1, 12)),
        memory=float(rng.choice([1.6, 3.0, 6.0, 20.0])),
        link=float(rng.choice([0.1, 1.0, 10.0])),
        is_gpipe=bool(rng.random() < 0.3),
    )
    return kernel_tables(tables)


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_exact_equals_brute_force(first_seed: int) -> None:
    feasible = 0
    for seed in range(first_seed, first_seed + 20):
        kernel = random_small_problem(seed)
        step_time_s, price, _ = evaluate(every_placement(kernel), kernel)
        best_s = step_time_s.min()
        result = solve(kernel)
        assert result.step_time_s == pytest.approx(best_s, rel=1e-9)
        if result.code is None:
            assert result.status == "infeasible"
            continue
        feasible += 1
        assert evaluate(result.code[None], kernel)[2][0] == FITS
        for floor_s in (best_s * 1.3, math.inf):
            allowed = step_time_s <= floor_s
            cheapest = solve(kernel, Goal(is_price=True, floor_s=floor_s))
            assert cheapest.step_time_s <= floor_s
            assert cheapest.price_usd_per_hour * cheapest.step_time_s == pytest.approx(
                (price * step_time_s)[allowed].min(), rel=1e-9
            )
    assert feasible > 8  # and some that are not: those are proofs too


def test_a_known_placement_changes_nothing_but_the_work() -> None:
    kernel = kernel_tables(random_tables(1, 12, [2, 3, 2], memory=10.0))
    poor = encode([PlacedStage(0, 11, 0)])
    from_poor = solve(kernel, known=poor)
    assert from_poor.code is not None
    from_best = solve(kernel, known=from_poor.code)
    assert from_best.step_time_s == from_poor.step_time_s
    assert from_best.transitions < from_poor.transitions


def test_a_floor_below_the_optimum_is_infeasible() -> None:
    kernel = kernel_tables(random_tables(1, 8, [2, 2], memory=10.0))
    best_s = solve(kernel).step_time_s
    assert solve(kernel, Goal(is_price=True, floor_s=best_s * 0.99)).status == "infeasible"
    assert solve(kernel, Goal(is_price=True, floor_s=best_s * (1 + 1e-9))).status == "optimal"


def test_a_problem_over_the_limits_is_refused_before_the_work() -> None:
    kernel = kernel_tables(random_tables(0, 64, [8] * 10))
    assert solve(kernel).status == "over budget"
    small = kernel_tables(random_tables(0, 8, [2, 2], memory=10.0))
    limits = WorkLimits(table_bytes=int(table_bytes(small)) - 1)
    assert solve(small, limits=limits).status == "over budget"
    refused = solve(small, max_seconds=predicted_seconds(small) * 0.99)
    assert (refused.status, refused.transitions) == ("over budget", 0)


def test_a_search_that_takes_longer_than_predicted_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = kernel_tables(random_tables(0, 24, [3, 3], memory=10.0))
    monkeypatch.setattr(exact, "predicted_seconds", lambda kernel: 0.0)
    result = solve(kernel, max_seconds=1e-6)
    assert (result.code, result.status) == (None, "over budget")
    assert 0 < result.transitions < solve(kernel).transitions


def test_a_proof_that_is_given_up_leaves_a_good_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_tables(random_tables(0, 24, [3, 3], memory=10.0))
    best = solve(kernel)
    monkeypatch.setattr(exact, "predicted_seconds", lambda kernel: 0.0)
    almost = 0.95 * best.transitions * exact.SECONDS_PER_TRANSITION
    result = solve(kernel, max_seconds=almost)
    assert (result.code, result.status) == (None, "over budget")
    assert result.incumbent is not None
    assert best.step_time_s <= Goal().cost(result.incumbent, kernel) < best.step_time_s * 1.1


def test_replicas_are_left_out_only_where_they_cannot_help() -> None:
    """12 replicas of 20 micro-batches do two each, as 10 do, but the stages before hold more."""
    assert is_dominated(20, True, 12)
    assert not is_dominated(20, False, 12)
    assert not is_dominated(20, True, 10)
    assert is_dominated(4, False, 5)
