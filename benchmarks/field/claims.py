"""Claims of papers that the simulator can test: what was claimed, what is found here, and why.

A claim is a method's speed over its paper's baselines on its paper's kind of cluster. Both are
asked here, on one profile and under one simulator; baselines that are no planners of this project
are replaced, and the row says by what.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.field.baselines import EVEN_ON_ALL, EVEN_REPLICAS
from benchmarks.field.claim_cases import ClaimCase, Nodes
from benchmarks.field.scores import AUTO

Row = dict[str, Any]
A100, A80, V16, V32 = "A100-40G", "A100-80G", "V100-16G", "V100-32G"
# As published: within so much of the range.
ROUNDING = 0.05
GIGABIT = 1.25e8


class Claim(NamedTuple):
    """What a paper says of its method.

    Attributes:
        system: The method.
        over: Baselines here; the fastest of those that have a plan counts.
        low: Times faster than the baselines, the least that is claimed; None: `up to` the other.
        high: The most.
        cases: Where.
        source: How the number is known: the paper's text, its abstract, or memory.
        here: What is not as in the paper.
    """

    system: str
    over: tuple[str, ...]
    low: float | None
    high: float
    cases: tuple[ClaimCase, ...]
    source: str
    here: str = ""

    @property
    def claimed(self) -> str:
        """In words."""
        if self.low is None:
            return f"up to {self.high:g} x"
        return f"{self.low:g} x" if self.low == self.high else f"{self.low:g} to {self.high:g} x"


def _opt(fast: int, slow: int) -> ClaimCase:
    nodes = Nodes(fast // 4, {A100: 4}), Nodes(slow // 4, {V16: 4})
    return ClaimCase("opt-350m", 1024, nodes, "same-region")


_HALF, _QUARTER = _opt(32, 32), _opt(32, 96)
_WHALE = tuple(
    ClaimCase(
        model, 256, (Nodes(1, {V32: 8}), Nodes(1, {"P100": 8})), "ethernet-25", dtype="float32"
    )
    for model in ("bert-large", "resnet-50")
)
_THREE_TYPES = tuple(
    ClaimCase(
        model, 128,
        (Nodes(1, {A80: 8}), Nodes(1, {V16: 8}), Nodes(1, {"T4": 8})), "ethernet-25",
    )
    for model in ("gpt-1.3b", "resnet-152")
)  # fmt: skip
_RENTED = tuple(
    ClaimCase(
        model, 64,
        (Nodes(1, {A80: 4}), Nodes(2, {"RTX-A6000": 4}), Nodes(2, {"RTX-3090": 4})), "ethernet-10",
    )
    for model in ("llama-7b", "llama-13b")
)  # fmt: skip
_SLOW_LINK = ClaimCase("gpt-1.3b", 128, (Nodes(2, {A100: 4}), Nodes(2, {V32: 4})), "ethernet-10")
_AMP = ClaimCase(
    "gpt-350m", 32,
    (Nodes(3, {V16: 4}, 170 * GIGABIT), Nodes(1, {"T4": 4}, 50 * GIGABIT)), 10 * GIGABIT,
)  # fmt: skip
_CEPHALO = tuple(
    ClaimCase(
        model,
        128,
        (
            Nodes(1, {"L4": 2, "RTX-A6000": 1, "P40": 1}, "pcie3"),
            Nodes(1, {"P40": 2, "P100": 2}, "pcie3"),
        ),
        50 * GIGABIT,
    )
    for model in ("bert-large", "gpt-1.3b")
)
_WHIMPY = ClaimCase(
    "resnet-152", 512,
    tuple(
        Nodes(1, {kind: 4}, "pcie3")
        for kind in ("V100-16G-PCIe", "Titan-RTX", "RTX-2080-8G", "RTX-2080-Ti")
    ),
    "ethernet-40", dtype="float32",
)  # fmt: skip
_REGIONS = ClaimCase(
    "gpt-1.3b", 1024,
    tuple(Nodes(1, {V16: 8}, "same-region", f"region{index}") for index in range(8)),
    "same-region", "between-continents",
)  # fmt: skip
_HOST = tuple(
    ClaimCase(model, 32, (Nodes(1, {A100: 4}),), "ethernet-25", offloads=True)
    for model in ("llama-7b", "gpt-2.7b")
)
_HAP = tuple(
    ClaimCase(
        model, 2048, (Nodes(2, {V16: 8}), Nodes(6, {"P100": 8})), 10.4 * GIGABIT, dtype="float32"
    )
    for model in ("bert-large", "vit-large")
)  # fmt: skip
_STRAGGLER = ClaimCase("llama-13b", 64, (Nodes(2, {A80: 8}),), "infiniband-hdr", slower=5.0)
_ASYMMETRIC = ClaimCase(
    "llama-7b", 128, (Nodes(1, {"H100-80G": 4}), Nodes(1, {A80: 8}), Nodes(1, {A80: 2})),
    "infiniband-hdr",
)  # fmt: skip

_RULES = "the best of all even plans on all devices in place of Megatron's rules"
_DECIDED = "cluster and baselines decided here"
CLAIMS: Sequence[Claim] = (
    Claim("sailor", ("amp",), 1.9, 1.9, (_HALF,), "text"),
    Claim("sailor", ("amp",), 1.57, 1.57, (_QUARTER,), "text"),
    Claim("sailor", ("metis",), 1.15, 1.15, (_HALF,), "text"),
    Claim("sailor", ("metis",), 1.39, 1.39, (_QUARTER,), "text"),
    Claim("sailor", ("hexiscale",), 2.03, 2.03, (_HALF,), "text"),
    Claim("sailor", ("hexiscale",), 1.55, 1.55, (_QUARTER,), "text"),
    Claim("whale", (EVEN_REPLICAS,), 1.2, 1.4, _WHALE, "abstract and notes"),
    Claim("amp", (EVEN_ON_ALL,), 1.54, 1.54, (_AMP,), "code and abstract", _RULES),
    Claim("metis", (EVEN_ON_ALL,), 1.05, 8.43, _THREE_TYPES, "abstract", _RULES),
    Claim("hexiscale", (EVEN_ON_ALL, "whale", "metis"), 1.5, 2.4, _RENTED, "abstract", _DECIDED),
    Claim("tangram", ("metis",), None, 2.3, (_HALF, *_THREE_TYPES), "abstract", _DECIDED),
    Claim("tangram", ("sailor",), None, 2.3, (_HALF, *_THREE_TYPES), "abstract", _DECIDED),
    Claim("harp", (EVEN_ON_ALL, "metis"), 1.3, 1.6, (_SLOW_LINK,), "abstract", _DECIDED),
    Claim(
        "cephalo", (EVEN_ON_ALL, "whale", "hexiscale"), 1.2, 10.8, _CEPHALO, "abstract", _DECIDED
    ),
    Claim(
        "hetpipe", (EVEN_REPLICAS,), 1.39, 1.49, (_WHIMPY,), "abstract and memory",
        "its ratio is of time to accuracy with late gradients; here steps are synchronous, and the "
        "cards are the nearest of the catalogue",
    ),
    Claim("dt-fm", (EVEN_ON_ALL,), None, 4.8, (_REGIONS,), "abstract", _RULES),
    Claim(
        "autohete", (EVEN_ON_ALL,), 1.32, 1.91, _HOST, "abstract",
        "its baselines keep parameters and the optimizer on the host, which no plan here does",
    ),
    Claim(
        "hap", (EVEN_REPLICAS, "whale"), None, 2.41, _HAP, "abstract",
        "BERT large in place of base; large models only",
    ),
    Claim("malleus", (EVEN_ON_ALL,), 2.63, 5.28, (_STRAGGLER,), "abstract", _RULES),
    Claim(
        "asymmetric", (EVEN_ON_ALL, "whale"), None, 1.79, (_ASYMMETRIC,), "abstract of AutoHet",
        "our planner for AutoHet's question; no H20 in the catalogue",
    ),
)  # fmt: skip
QUICK = ("whale",)


def planners_of(claim: Claim) -> tuple[str, ...]:
    """Who is asked for a claim."""
    return tuple(dict.fromkeys((claim.system, *claim.over, AUTO)))


def claim_row(claim: Claim, answers: Mapping[tuple[str, str], Row]) -> Row:
    """Claimed, found, and why these are not the same.

    Args:
        claim: The claim.
        answers: By name of the case and the planner.
    """
    ratios, rooms, behind, reasons = list[float](), list[float](), list[float](), list[str]()
    for case in claim.cases:
        own = answers[case.name, claim.system]
        bases = [answers[case.name, name] for name in claim.over]
        times = [row["step_time_s"] for row in bases if row["step_time_s"] is not None]
        best_s = answers[case.name, AUTO]["step_time_s"]
        if own["step_time_s"] is None:
            reasons.append(f"no plan for {case.model}: {own['reason']}")
        elif not times:
            reasons.append(f"no baseline has a plan for {case.model}: {bases[0]['reason']}")
        else:
            ratios.append(min(times) / own["step_time_s"])
            if best_s is not None:
                rooms.append(min(times) / best_s)
                behind.append(own["step_time_s"] / best_s)
    why = _why(claim, ratios, rooms, behind) if ratios else ""
    return {
        "system": claim.system,
        "over": " or ".join(claim.over),
        "on": "; ".join(case.name for case in claim.cases),
        "claimed": claim.claimed,
        "found": _range_text(ratios),
        "auto_over_baseline": _range_text(rooms),
        "why": "; ".join(part for part in (why, *reasons, claim.here) if part),
        "known_from": claim.source,
    }


def _why(
    claim: Claim, ratios: Sequence[float], rooms: Sequence[float], behind: Sequence[float]
) -> str:
    """Where the difference comes from, as far as the numbers tell."""
    least, most = claim.low or claim.high, claim.high
    found = max(ratios) if claim.low is None else statistics.median(ratios)
    if least * (1 - ROUNDING) <= found <= most * (1 + ROUNDING):
        return "as published"
    if found > most:
        return "the baseline is further from the best here than in the paper"
    room = max(rooms, default=0.0)
    if room < least * (1 - ROUNDING):
        return f"no plan known here is more than {room:.3g} x as fast as the baseline"
    return f"its plan takes {statistics.median(behind):.3g} x the best known here"


def _range_text(values: Sequence[float]) -> str:
    if not values:
        return "none"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return f"{low} x" if low == high else f"{low} to {high} x"
