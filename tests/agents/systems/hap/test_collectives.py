"""Padded or grouped: decided by what was measured, for each collective."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from heterps_agents.systems.hap.collectives import Rates, conversions, uniform_rates
from heterps_agents.systems.hap.ratios import even_shares, shares_by_speed
from heterps_agents.systems.hap.search import best_program
from heterps_agents.systems.hap.ways import SizedLayer, chain_of
from heterps_configs.documents.cluster import CollectiveKind, Link

MIB = 2**20


class Published(NamedTuple):
    """Bytes per second in a `config` of HAP's code, and what follows from them."""

    gather: float
    grouped_gather: float
    scatter: float
    grouped_scatter: float
    padded_ms: float
    grouped_ms: float


# Source: `worker.py` of HAP's code, of 2023-06-29, 2023-06-21 and 2023-09-28.
SETS = {
    "A": Published(815418707, 549828906, 876490907, 512358434, 30.81, 30.51),
    "B": Published(2911974213, 1823299698, 2697857772, 2031969976, 8.63, 9.20),
    "C": Published(9463184466, 9146232360, 9740459122, 8756865799, 2.66, 1.83),
}
# Two machines of one kind and six of another, by the speeds of that file.
SHARES = shares_by_speed([3858755112937.0] * 2 + [2149250936815.0] * 6)


def rates(of: Published) -> Rates:
    def link(bandwidth: float) -> Link:
        return Link(latency_s=0, bandwidth_bytes_per_s=bandwidth)

    return Rates(
        8,
        {
            "all-reduce": link(1e9),
            "all-gather": link(of.gather),
            "grouped all-gather": link(of.grouped_gather),
            "reduce-scatter": link(of.scatter),
            "grouped reduce-scatter": link(of.grouped_scatter),
        },
    )


@pytest.mark.parametrize("name", SETS)
def test_sixteen_mebibytes_take_what_the_measured_bandwidths_say(name: str) -> None:
    assert pytest.approx(1.4976, abs=5e-5) == 8 * SHARES.max()
    found, expected = rates(SETS[name]), SETS[name]
    padded_s = found.term("all-gather", 16 * MIB).at(SHARES)
    grouped_s = found.term("grouped all-gather", 16 * MIB).at(SHARES)
    assert 1000 * padded_s == pytest.approx(expected.padded_ms, abs=0.006)
    assert 1000 * grouped_s == pytest.approx(expected.grouped_ms, abs=0.006)
    even_s = rates(SETS["A"]).term("all-gather", 16 * MIB).at(even_shares(8))
    assert 1000 * even_s == pytest.approx(20.58, abs=0.006)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A", {"grouped all-gather", "reduce-scatter"}),
        ("B", {"all-gather", "grouped reduce-scatter"}),
        ("C", {"grouped all-gather", "grouped reduce-scatter"}),
    ],
)
def test_the_search_takes_the_quicker_kind_on_the_way_there_and_back(
    name: str, expected: set[CollectiveKind]
) -> None:
    sized = rates(SETS[name])
    gathers = [e for e in conversions(0, 16 * MIB, sized, 0) if e.before == "batch"]
    best = min((e for e in gathers if e.after == "whole"), key=lambda e: e.seconds(SHARES))
    assert set(best.terms) == {sized.term(kind, 16 * MIB) for kind in expected}


def test_the_five_ways_of_a_layer_are_chosen_by_what_they_move() -> None:
    """Many weights are split by columns and rows, many activations by samples."""
    sized = uniform_rates(2, Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9))

    def names(parameter_bytes: float, output_bytes: float) -> list[str]:
        layer = SizedLayer(
            (0.1, 0.3),
            parameter_bytes,
            output_bytes,
            ("replicate", "split batch", "split columns", "split rows"),
        )
        chain = chain_of([layer, layer], sized)
        return [e.name for e in best_program(chain, np.array([[0.75, 0.25]]))]

    assert names(1e8, 1e5)[:2] == ["split columns", "split rows"]
    assert names(1e5, 1e8) == ["split batch", "split batch"]
    assert names(1e12, 1e12) == ["replicate", "replicate"]
