"""Threads of BLAS."""

from __future__ import annotations

from threadpoolctl import threadpool_info

from heterps_agents.interface.blas_threads import one_blas_thread


def _threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_matrices_are_multiplied_with_one_thread_inside_the_block_only() -> None:
    before = _threads()
    with one_blas_thread():
        inside = _threads()
    assert inside == [1] * len(before)
    assert _threads() == before
