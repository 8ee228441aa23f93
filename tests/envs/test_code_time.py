"""What loading and compiling kernels takes is counted, and nothing else."""

from __future__ import annotations

import time

from numba import njit

from heterps_envs.code_time import code_time


def test_compiling_a_kernel_counts_and_calling_it_does_not() -> None:
    @njit(cache=False)
    def inner(value: float) -> float:
        return value + 1.0

    @njit(cache=False)
    def outer(value: float) -> float:
        return float(inner(value) * 2.0)

    before, start_s = code_time(), time.perf_counter()
    outer(1.0)
    after, passed_s = code_time(), time.perf_counter() - start_s
    # The kernel that it calls is compiled within it, and counts once.
    assert 0.5 * passed_s < after.wall_s - before.wall_s <= passed_s
    assert after.cpu_s - before.cpu_s > 0.0
    outer(2.0)
    assert code_time() == after
