"""Windows of layers: as many bytes as no cache holds, on a GPU several layers besides."""

from __future__ import annotations

import math

import pytest

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile
from heterps_runtime.profiling.windows import (
    NUM_GPU_LAYERS,
    WindowLimits,
    choose_windows,
    layer_bytes,
    overhead_stages,
)

GPU = WindowLimits(NUM_GPU_LAYERS, math.inf)


@pytest.fixture(scope="module")
def gpt2() -> ModelProfile:
    return load_profile("gpt2")


def test_large_micro_batches_leave_each_layer_a_window_of_its_own(gpt2: ModelProfile) -> None:
    assert choose_windows(gpt2, 16, "bfloat16") == ((0, 0), (1, 1), (13, 13))


def test_on_a_gpu_a_window_has_several_layers(gpt2: ModelProfile) -> None:
    windows = choose_windows(gpt2, 16, "bfloat16", GPU)
    assert windows == ((0, 7), (8, 13))
    covered = {gpt2.first_equal_layers()[i] for first, last in windows for i in range(first, last)}
    assert covered | {gpt2.first_equal_layers()[13]} == set(gpt2.first_equal_layers())


def test_a_window_keeps_to_the_memory_unless_one_layer_is_too_large(gpt2: ModelProfile) -> None:
    most = 3.0 * max(layer_bytes(gpt2, index, 16, "bfloat16") for index in range(1, 13))
    for first, last in choose_windows(gpt2, 16, "bfloat16", WindowLimits(NUM_GPU_LAYERS, most)):
        held = sum(layer_bytes(gpt2, index, 16, "bfloat16") for index in range(first, last + 1))
        assert held <= most or first == last


def test_stages_that_tell_what_is_beside_the_layers_grow_in_the_same_way(
    gpt2: ModelProfile,
) -> None:
    assert overhead_stages(gpt2, 16, "bfloat16") == ((0, 0), (1, 1), (7, 7), (13, 13))
    assert overhead_stages(gpt2, 16, "bfloat16", GPU) == ((0, 6), (1, 7), (7, 13), (13, 13))


def test_a_cpu_has_no_other_limits_than_the_bytes() -> None:
    assert WindowLimits.of("cpu") == WindowLimits(1, math.inf)
