"""DT-FM's five networks: GPT-3 XL, 24 layers in 8 stages on 64 equal devices.

    python benchmarks/published/published.py --workloads FOLDER --only dtfm

Costs are seconds of messages by DT-FM's formula. Its own program (without a seed, population 60,
400 trials, about two minutes on two cores for each case) was run by others; its results are upper
bounds of what it can reach, and compare with the digits that they were given with. Delays,
bandwidths and bytes of a step are those of the published code (DS3Lab/DT-FM, MIT); the links of the
worldwide case are read from FOLDER.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.systems.dtfm.descent import descend
from heterps_agents.systems.dtfm.network import Traffic, traffic_of
from heterps_agents.systems.dtfm.search import Effort, Grouping, search_groups
from heterps_configs.importers.regions import load_region_links

NUM_DEVICES, NUM_STAGES = 64, 8
# 1.3 billion parameters in four bytes, 3 of 24 layers; and, as its code has it, 2024 x 2048 numbers
# of two bytes for each of 125,000 / 2048 sequences, in GiB that the formula takes for GB.
GRADIENT_BYTES = 1.3e9 * 4 * 3 / 24
ACTIVATION_BYTES = 2024 * 2048 * 2 * (125_000 / 2048) / 2**30 * 1e9
# Seconds that its own program has reached.
PEERS = {
    "data centre": 3.440, "spot": 49.50, "two universities": 16.087, "regional": 34.80,
    "worldwide": 49.22,
}  # fmt: skip
CITIES = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")
REGIONS = ("Virginia", "Oregon", "California", "Ohio")
# Milliseconds and Gbit/s.
BETWEEN_REGIONS = {
    ("Virginia", "Oregon"): (67, 1.15), ("Virginia", "California"): (59, 1.05),
    ("Virginia", "Ohio"): (11, 1.12), ("Oregon", "California"): (12, 1.25),
    ("Oregon", "Ohio"): (49, 1.10), ("California", "Ohio"): (52, 1.02),
}  # fmt: skip
WITHIN_A_REGION = (5, 2)
LIMIT_S = 30.0


class Ends(NamedTuple):
    """Milliseconds and Gbit/s of a link."""

    delay_ms: float
    gigabits_per_s: float


def network(
    places: Sequence[str], inside: tuple[float, float], between: Callable[[str, str], Ends]
) -> Traffic:
    """Seconds between devices at places, by their links inside a place and between two."""
    size = len(places)
    delay_ms, gigabits = np.zeros((size, size)), np.ones((size, size))
    for row, one in enumerate(places):
        for column, other in enumerate(places):
            link = Ends(*inside) if one == other else between(one, other)
            delay_ms[row, column], gigabits[row, column] = link
    return traffic_of(
        delay_ms * 1e-3,
        gigabits * 1e9 / 8,
        gradient_bytes=GRADIENT_BYTES,
        activation_bytes=ACTIVATION_BYTES,
        group_size=size // NUM_STAGES,
    )


def fixed_networks() -> dict[str, Traffic]:
    """The four that need no file."""
    instances = [f"instance {index // 8}" for index in range(NUM_DEVICES)]
    # Half of the devices are four to an instance, the others alone.
    spot = [f"spot {index // 4 if index < 32 else index}" for index in range(NUM_DEVICES)]
    universities = ["Ohio"] * 32 + ["Virginia"] * 32
    regions = [REGIONS[index // 16] for index in range(NUM_DEVICES)]

    def between_regions(one: str, other: str) -> Ends:
        known = BETWEEN_REGIONS.get((one, other)) or BETWEEN_REGIONS[other, one]
        return Ends(*known)

    return {
        "data centre": network(instances, (0, 100), lambda one, other: Ends(0, 3.125)),
        "spot": network(spot, (0, 100), lambda one, other: Ends(0, 1.25)),
        "two universities": network(universities, (1, 5), lambda one, other: Ends(11, 1.12)),
        "regional": network(regions, WITHIN_A_REGION, between_regions),
    }


def worldwide(workloads: Path) -> Traffic:
    """Eight cities with eight devices each."""
    links = load_region_links(workloads / "dt-fm" / "region_delay_bandwidth.json")

    def between(one: str, other: str) -> Ends:
        link = links.between(one, other)
        return Ends(link.latency_s * 1e3, link.bandwidth_bytes_per_s * 8e-9)

    return network([CITIES[index // 8] for index in range(NUM_DEVICES)], WITHIN_A_REGION, between)


def random_s(traffic: Traffic, seed: int, count: int = 20) -> float:
    """The median cost of drawn groups in the best order of theirs."""
    random = np.random.default_rng(seed)
    costs = []
    for _ in range(count):
        members = random.permutation(traffic.num_devices).reshape(NUM_STAGES, -1)
        score, _, _ = descend(traffic, traffic.kinds(), members, np.arange(NUM_STAGES), 0)
        costs.append(score.total_s)
    return statistics.median(costs)


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each network."""
    effort = Effort(trials=100) if quick else Effort()
    networks = {**fixed_networks(), "worldwide": worldwide(workloads)}
    search_groups(networks["two universities"], NUM_STAGES, seed, Effort(trials=1))
    table = []
    for name, traffic in networks.items():
        start = time.process_time()
        found = search_groups(traffic, NUM_STAGES, seed, effort)
        table.append(_row(name, traffic, found, time.process_time() - start, seed))
    return table, {"dtfm_met": f"{sum(row['met'] for row in table)} of {len(table)}"}


def _row(name: str, traffic: Traffic, found: Grouping, cpu_s: float, seed: int) -> dict[str, Any]:
    peer_s = PEERS[name]
    # As many digits as the peer's numbers have.
    digits = 3 if name in ("data centre", "two universities") else 2
    return {
        "case": name,
        "total_s": found.total_s,
        "gradients_s": found.gradient_s,
        "activations_s": 2 * found.tour_s,
        "peer_s": peer_s,
        "random_s": random_s(traffic, seed),
        "cpu_s": cpu_s,
        "met": round(found.total_s, digits) <= peer_s and cpu_s < LIMIT_S,
    }
