"""The least memory: a placement exists with it, and hardly ever with less."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_envs.closed_form.formula import REPLICA_SHIFT, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.memory_packing import least_memory_scale
from heterps_envs.cost_tables import CostTables
from tests.envs.small_problems import all_placement_codes, random_tables


def least(tables: CostTables) -> float:
    return least_memory_scale(
        tables.state_bytes,
        tables.activation_bytes,
        tables.memory_bytes,
        tables.device_count,
        tables.num_micro_batches,
        tables.is_gpipe,
        np.random.default_rng(0),
    )


@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.sampled_from([(1, 1), (3,), (2, 1), (2, 2), (1, 1, 1)]),
)
@settings(max_examples=60, deadline=None)
def test_no_placement_on_single_devices_does_with_less(
    seed: int, num_layers: int, counts: tuple[int, ...]
) -> None:
    tables = random_tables(seed, num_layers, counts)
    scale = least(tables)
    codes = all_placement_codes(num_layers, counts)
    single = (codes < 1 << REPLICA_SHIFT).all(1)

    def fitting(factor: float) -> np.ndarray:
        scaled = dataclasses.replace(tables, memory_bytes=tables.memory_bytes * factor)
        return np.isfinite(evaluate(codes, kernel_tables(scaled))[0])

    assert (fitting(scale * 1.001) & single).any()
    assert not (fitting(scale * 0.998) & single).any()
