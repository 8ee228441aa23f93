"""Links: the fit finds what made the times; real processes are measured both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.cluster import Link
from heterps_runtime.host_worker import MESSAGE_BYTES
from heterps_runtime.link_profiler import MeasuredHost, MeasuredLink, fit_link, measure_host


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


def test_disturbance_is_the_mean_of_both_layers_and_never_below_one() -> None:
    link = MeasuredLink(
        0, 1, {4: 1e-4, 4096: 2e-4}, Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9), 0
    )
    host = MeasuredHost(
        (link,), {"compute-bound": (1.0, 0.98, 2.0), "memory-bound": (1.0, 1.0, 8.0)}
    )
    assert host.slowdown_together() == (1.0, 1.0, 4.0)


@pytest.mark.slow
def test_two_processes_measure_their_links_both_ways() -> None:
    host = measure_host(2)
    assert {(link.source, link.destination) for link in host.links} == {(0, 1), (1, 0)}
    for link in host.links:
        assert set(link.seconds) == set(MESSAGE_BYTES)
        assert min(link.seconds.values()) > 0
    assert host.typical_link().bandwidth_bytes_per_s > 0
    assert {len(values) for values in host.slowdowns.values()} == {2}
