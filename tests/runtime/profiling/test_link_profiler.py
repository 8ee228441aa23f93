"""Links: the fit finds what made the times; real processes are measured both ways."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Optimizer
from heterps_configs.errors import HeterpsError
from heterps_runtime.profiling import host_worker
from heterps_runtime.profiling.host_worker import MESSAGE_BYTES
from heterps_runtime.profiling.link_profiler import (
    MeasuredHost,
    MeasuredLink,
    Together,
    fit_link,
    measure_host,
)

FAST = Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
SLOW = Link(latency_s=2e-4, bandwidth_bytes_per_s=5e8)


@given(latency_s=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e6, 1e11))
def test_the_fit_finds_latency_and_bandwidth(latency_s: float, bandwidth: float) -> None:
    truth = Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    link, residual = fit_link({size: truth.transfer_s(size) for size in MESSAGE_BYTES})
    assert residual < 1e-3
    for size in MESSAGE_BYTES:
        assert link.transfer_s(size) == pytest.approx(truth.transfer_s(size), rel=1e-2)


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=7))
def test_the_fit_is_a_link_whatever_was_measured(seconds: list[float]) -> None:
    link, residual = fit_link(dict(zip(MESSAGE_BYTES, seconds, strict=False)))
    assert link.latency_s >= 0
    assert link.bandwidth_bytes_per_s > 0
    assert residual >= 0


def measured(source: int, destination: int, truth: Link, spread: float) -> MeasuredLink:
    """A direction whose messages take what `truth` says."""
    seconds = {size: truth.transfer_s(size) for size in MESSAGE_BYTES}
    return MeasuredLink(source, destination, seconds, truth, 0.0, spread)


def test_disturbance_is_the_median_of_the_layers_never_falls_and_is_never_below_one() -> None:
    factors = [(1.0, 0.98, 2.0, 1.5), (1.0, 0.9, 8.0, 1.0), (1.0, 1.2, 4.0, 3.0)]
    host = MeasuredHost(
        (measured(0, 1, FAST, 0.1),),
        {str(number): Together(values, (0.0,) * 4) for number, values in enumerate(factors)},
    )
    assert host.slowdown_together() == (1.0, 1.0, 4.0, 4.0)


def test_optimizer_steps_have_factors_of_their_own() -> None:
    found: dict[Optimizer, Together] = {
        "adamw": Together((1.0, 1.4), (0.0, 0.1)),
        "sgd": Together((1.0, 1.2), (0.0, 0.1)),
    }
    host = MeasuredHost((measured(0, 1, FAST, 0.1),), {}, found)
    assert host.optimizer_slowdown_together() == {"adamw": (1.0, 1.4), "sgd": (1.0, 1.2)}


@pytest.mark.parametrize(("spread", "is_told_apart"), [(0.3, True), (1.5, False)])
def test_directions_are_kept_apart_where_they_differ_by_more_than_their_spread(
    spread: float, is_told_apart: bool
) -> None:
    host = MeasuredHost((measured(0, 1, FAST, spread), measured(1, 0, SLOW, spread)), {})
    link, reverse_link = host.node_links()
    if is_told_apart:
        assert reverse_link is not None
        assert link.latency_s == pytest.approx(FAST.latency_s, rel=1e-3)
        assert reverse_link.latency_s == pytest.approx(SLOW.latency_s, rel=1e-3)
    else:
        assert reverse_link is None
        assert FAST.latency_s < link.latency_s < SLOW.latency_s


def test_processes_that_measure_do_not_import_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An optimizer would: for a second of each process."""
    called: list[str] = []
    for name in ("watch_parents", "keep_freed_memory", "keep_compiler_out"):
        monkeypatch.setattr(host_worker, name, lambda name=name: called.append(name))

    def stop() -> None:
        raise HeterpsError("before there is anything to measure")

    monkeypatch.setattr(host_worker, "Communicator", stop)
    assert host_worker.main([str(tmp_path), "2", "0.01", "3"]) == 1
    assert "keep_compiler_out" in called


@pytest.mark.slow
def test_two_processes_measure_their_links_both_ways() -> None:
    shown: list[tuple[int, int, str]] = []
    host = measure_host(
        2, num_rounds=2, phase_s=0.01, num_messages=3, progress=lambda *told: shown.append(told)
    )
    assert [done for done, *_ in shown] == list(range(shown[0][1] + 1))
    assert [text for _, _, text in shown[:2]] == [
        "messages from process 0 to 1",
        "messages from process 1 to 0",
    ]
    assert {total for _, total, _ in shown} == {len(shown) - 1}
    assert {(link.source, link.destination) for link in host.links} == {(0, 1), (1, 0)}
    for link in host.links:
        assert set(link.seconds) == set(MESSAGE_BYTES)
        assert min(link.seconds.values()) > 0
    assert host.node_links()[0].bandwidth_bytes_per_s > 0
    assert {len(found.factors) for found in host.together.values()} == {2}
    assert host.slowdown_together()[0] == 1.0
    factors = host.optimizer_slowdown_together()
    assert set(factors) == set(get_args(Optimizer))
    assert {len(found) for found in factors.values()} == {2}
