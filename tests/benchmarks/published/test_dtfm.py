"""DT-FM's five networks: their costs as its own program prints them, and our search on them."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.dtfm import (
    CITIES,
    NUM_STAGES,
    PEERS,
    fixed_networks,
    random_s,
    worldwide,
)
from heterps_agents.systems.dtfm.descent import descend
from heterps_agents.systems.dtfm.network import Traffic
from heterps_agents.systems.dtfm.search import Effort, search_groups

QUICK = Effort(population=16, trials=40)
NETWORKS = fixed_networks()


def cost_in_turns(traffic: Traffic) -> tuple[float, float]:
    """Seconds of groups that have the same members from everywhere: sums, and all together."""
    members = np.arange(traffic.num_devices).reshape(-1, NUM_STAGES).T.copy()
    score, _, _ = descend(traffic, traffic.kinds(), members, np.arange(NUM_STAGES), 0)
    sums_s = max(traffic.gradient_s[np.ix_(group, group)].sum(1).max() for group in members)
    return float(sums_s), score.total_s


@pytest.mark.parametrize(
    ("name", "sums_s", "total_s"),
    [
        ("data centre", 2.912, 3.440),
        ("two universities", 5.517, 16.087),
        ("regional", 8.342, 34.80),
    ],
)
def test_the_costs_are_those_that_its_own_program_prints(
    name: str, sums_s: float, total_s: float
) -> None:
    own_sums_s, own_total_s = cost_in_turns(NETWORKS[name])
    assert own_sums_s == pytest.approx(sums_s, abs=5e-4)
    assert own_total_s == pytest.approx(total_s, abs=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_search_reaches_what_its_own_program_reaches(name: str) -> None:
    traffic = NETWORKS[name]
    found = search_groups(traffic, NUM_STAGES, seed=0, effort=QUICK)
    assert found.total_s <= PEERS[name] + 5e-3
    assert found.total_s < random_s(traffic, seed=0)


def test_the_table_of_regions_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "dt-fm"
    folder.mkdir()
    table = [
        {"a": one, "b": other, "delay_ms": 20.0, "bandwidth_gbps": 4.0}
        for one, other in combinations(CITIES, 2)
    ]
    (folder / "region_delay_bandwidth.json").write_text(json.dumps(table))
    traffic = worldwide(tmp_path)
    # Of each other: 5 ms and an eighth of 0.65 GB at 2 Gbit/s; 20 ms and the same at 4.
    assert traffic.gradient_s[0, 7] == pytest.approx(2 * (0.005 + 0.325))
    assert traffic.gradient_s[0, 8] == pytest.approx(2 * (0.020 + 0.1625))


@pytest.mark.slow
def test_the_search_reaches_the_worldwide_case() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", ""))
    if not (folder / "dt-fm").is_dir():
        pytest.skip("no published files")
    traffic = worldwide(folder)
    assert cost_in_turns(traffic) == pytest.approx((22.758, 49.22), abs=5e-3)
    found = search_groups(traffic, NUM_STAGES, seed=0, effort=QUICK)
    assert found.total_s <= PEERS["worldwide"] + 5e-3
