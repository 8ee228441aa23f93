"""What a layer asks of a card."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_envs.card_times.work import (
    ENERGY,
    LAUNCH,
    PARAMETERS,
    PRODUCTS,
    TRAFFIC,
    card_work,
    pass_seconds,
)
from tests.envs.card_times.made_samples import block

T4, P40, A100 = (device_type_named(name) for name in ("T4", "P40", "A100-40G"))


def job(size: int = 1, dtype: str = "float16") -> Job:
    """A job of one micro-batch."""
    return Job(global_batch_size=size, micro_batch_size=size, dtype=dtype)


def test_columns_are_work_over_what_the_data_sheet_says() -> None:
    layer = block(1024)
    (row,) = card_work([layer], 1.0, T4, job(2)).forward
    assert row[PRODUCTS] == pytest.approx(2 * layer.forward_flops / 65e12)
    assert row[PARAMETERS] == pytest.approx(2 * layer.num_parameters / 320e9)
    assert row[TRAFFIC] == pytest.approx(2 * layer.memory_traffic_bytes / 320e9)
    assert row[LAUNCH] > 0


def test_a_backward_pass_of_which_half_is_computed_counts_half() -> None:
    frozen = block(1024).changed(backward_flops=block(1024).forward_flops)
    whole, half = (
        card_work([layer], 1.0, A100, job()).backward[0] for layer in (block(1024), frozen)
    )
    assert half[PRODUCTS] == pytest.approx(whole[PRODUCTS] / 2)


def test_a_card_without_a_format_computes_it_on_its_ordinary_units() -> None:
    assert card_work([block(1024)], 1.0, T4, job()).units == "half"
    assert card_work([block(1024)], 1.0, T4, job(dtype="bfloat16")).units == "float32"
    assert card_work([block(1024)], 1.0, P40, job()).units == "float32"


def test_without_known_power_only_the_peak_limits_a_card() -> None:
    unknown = T4.changed(power_w=None)
    assert card_work([block(1024)], 1.0, unknown, job()).forward[0, ENERGY] == 0


def test_a_layer_that_does_nothing_takes_no_time() -> None:
    nothing = block(1024).changed(
        num_parameters=0, forward_flops=0.0, backward_flops=0.0, memory_traffic_bytes=0.0
    )
    work = card_work([nothing], 1.0, T4, job())
    assert pass_seconds(np.ones(6), work.forward)[0] == 0
    assert pass_seconds(np.ones(6), work.backward)[0] == 0


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=6), st.integers(1, 64))
def test_a_larger_micro_batch_never_takes_less(factors: list[float], size: int) -> None:
    small, large = (
        pass_seconds(np.array(factors), card_work([block(512)], 1.0, A100, job(count)).forward)[0]
        for count in (size, size + 1)
    )
    assert small < large


def test_tf32_speeds_up_products_alone() -> None:
    plain, fast = (
        card_work([block(1024)], 1.0, A100, job(dtype=dtype)) for dtype in ("float32", "tf32")
    )
    assert (plain.units, fast.units) == ("float32", "tf32")
    assert fast.forward[0, PRODUCTS] == pytest.approx(plain.forward[0, PRODUCTS] / 8)
    assert (fast.forward[0, PARAMETERS:] == plain.forward[0, PARAMETERS:]).all()
    assert card_work([block(1024)], 1.0, T4, job(dtype="tf32")).units == "float32"
