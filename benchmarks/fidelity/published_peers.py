"""What peers predict for Sailor's measured runs, from Sailor's profiles, with their own simulators.

Seconds and gigabytes of each program, run for this comparison on the rows that are published:
Sailor's, Metis', FlashFlex' and AMP's simulators as they stand in Sailor's repository. AMP has no
memory model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PeerPredictions(NamedTuple):
    """One run: seconds of a step by peer, and gigabytes of the fullest GPU by peer."""

    step_s: Mapping[str, float]
    memory_gb: Mapping[str, float]


PEERS = ("Sailor", "Metis", "FlashFlex", "AMP")
# Run: Sailor s, Metis s, FlashFlex s, AMP s, Sailor GB, Metis GB, FlashFlex GB.
_TABLE: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("clariden", "N1_D1_M4_G1"): (0.083, 0.116, 0.032, 0.118, 10.39, 4.92, 7.15),
    ("clariden", "N1_D1_M4_G32"): (2.641, 2.674, 1.023, 3.780, 10.39, 4.92, 7.15),
    ("clariden", "N16_D16"): (1.884, 1.889, 2.052, 7.568, 30.31, 24.83, 8.79),
    ("clariden", "N16_D4"): (2.303, 2.254, 2.467, 9.434, 23.91, 7.62, 1.43),
    ("clariden", "N16_D8"): (2.208, 2.187, 2.329, 8.836, 25.59, 14.17, 2.84),
    ("clariden", "N2_D1"): (0.625, 0.636, 0.671, 2.523, 25.59, 14.17, 2.84),
    ("clariden", "N2_D2"): (0.727, 0.747, 0.515, 1.894, 13.24, 7.76, 7.39),
    ("clariden", "N4_D1"): (1.571, 1.565, 0.592, 2.274, 7.88, 1.51, 1.21),
    ("clariden", "N4_D2"): (1.523, 1.526, 0.569, 2.158, 8.67, 2.72, 2.31),
    ("clariden", "N4_D4"): (1.037, 1.049, 1.028, 3.786, 18.93, 13.45, 7.85),
    ("mit", "N2_D1"): (120.952, 83.381, 38.279, 61.557, 15.92, 8.02, 2.38),
    ("mit", "N2_D2"): (81.315, 74.384, 14.734, 54.796, 20.11, 14.23, 7.39),
    ("mit", "N3_D1"): (52.108, 40.894, 26.775, 39.923, 8.40, 1.68, 1.51),
    ("mit", "N6_D3"): (52.122, 43.309, 20.839, 40.036, 8.67, 2.51, 2.38),
    ("mit", "N6_D6"): (51.441, 48.485, 8.408, 38.544, 9.80, 4.53, 7.39),
}


def peer_predictions(cluster: str, run: str) -> PeerPredictions:
    """What peers say of a run; nothing for one that they were not asked about."""
    values = _TABLE.get((cluster, run), ())
    return PeerPredictions(
        dict(zip(PEERS, values[: len(PEERS)], strict=False)),
        dict(zip(PEERS, values[len(PEERS) :], strict=False)),
    )
