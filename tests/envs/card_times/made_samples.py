"""Samples of cards whose true factors are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heterps_configs.documents.device import DeviceType, device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_envs.card_times.document import CardCalibration, LeftOutError, Offsets, UnitFactors
from heterps_envs.card_times.fit import CardSample
from heterps_envs.card_times.formula import card_factors
from heterps_envs.card_times.work import card_work, pass_seconds

CARDS = ("A100-40G", "V100-16G", "T4", "L4", "RTX-A6000")
ERROR = LeftOutError(half_width=0.2, median=0.1, p90=0.3)
TRUTH = CardCalibration(
    name="truth",
    sources=("made up",),
    half={
        "forward": UnitFactors(
            products=1.4, energy=0.4, parameters=0.8, traffic=1.5, launch=0.5, attention=0.5
        ),
        "backward": UnitFactors(
            products=2.6, energy=0.9, parameters=6.0, traffic=2.5, launch=0.9, attention=0.7
        ),
    },
    tf32={
        "forward": UnitFactors(
            products=1.1, energy=0.5, parameters=0.6, traffic=1.1, launch=0.4, attention=1.0
        ),
        "backward": UnitFactors(
            products=2.0, energy=1.0, parameters=4.0, traffic=1.6, launch=1.0, attention=2.0
        ),
    },
    float32={
        "forward": UnitFactors(
            products=1.2, energy=0.9, parameters=0.6, traffic=1.1, launch=0.4, attention=1.0
        ),
        "backward": UnitFactors(
            products=2.4, energy=1.7, parameters=4.0, traffic=1.6, launch=1.0, attention=2.0
        ),
    },
    kin={},
    cards={"T4": Offsets(half_products=1.3, traffic=1.2), "L4": Offsets(half_energy=0.8)},
    errors={"card": ERROR, "kin": ERROR, "none": ERROR},
)


def block(hidden: int, tokens: int = 512) -> LayerProfile:
    """A transformer block as a trace would describe it."""
    parameters = 12 * hidden**2
    flops = 2.0 * parameters * tokens
    return LayerProfile(
        name="block",
        kind="LlamaDecoderLayer",
        num_parameters=parameters,
        forward_flops=flops,
        backward_flops=2 * flops,
        activation_bytes=40.0 * hidden * tokens,
        output_bytes=2.0 * hidden * tokens,
        memory_traffic_bytes=200.0 * hidden * tokens,
    )


def made_samples(
    truth: CardCalibration = TRUTH, noise: float = 0.0, cards: Sequence[str] = CARDS
) -> list[CardSample]:
    """Four models on all cards, in three formats, at three sizes."""
    rng = np.random.default_rng(0)
    return [
        made_sample(truth, device_type_named(card), hidden, dtype, size, rng.normal(0, noise, 2))
        for card in cards
        for hidden in (1024, 2048, 4096, 8192)
        for dtype in ("float16", "tf32", "float32")
        for size in (1, 4, 16)
    ]


def made_sample(
    truth: CardCalibration, entry: DeviceType, hidden: int, dtype: str, size: int, noise: np.ndarray
) -> CardSample:
    """One block on one card."""
    job = Job(global_batch_size=size, micro_batch_size=size, dtype=dtype)
    work = card_work([block(hidden)], 1.0, entry, job)
    forward_s, backward_s = (
        float(pass_seconds(card_factors(truth, entry, of, work.units), columns[0]) * np.exp(error))  # type: ignore[arg-type]
        for of, columns, error in (
            ("forward", work.forward, noise[0]),
            ("backward", work.backward, noise[1]),
        )
    )
    return CardSample(
        entry, f"model-{hidden}", f"{hidden} {entry.name} {dtype}", work.units,
        work.forward[0], work.backward[0], (forward_s, backward_s),
        is_line=False, repository="made up",
    )  # fmt: skip
