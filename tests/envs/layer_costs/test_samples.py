"""Samples: equal layers count once, families by the names of modules."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_envs.card_times.families import layer_family
from heterps_envs.layer_costs.calibration import Factors
from heterps_envs.layer_costs.samples import device_samples, measurements_of
from tests.envs.measured_devices import JOB, SIZES, SLOW, measured_profile

FACTORS = {name: Factors(1.0, 1.0, 1.0) for name in ("linear", "attention block")}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("LlamaDecoderLayer", "attention block"),
        ("GPT2Block", "attention block"),
        ("ResNetBottleNeckLayer", "convolution"),
        ("Conv2d", "convolution"),
        ("LayerNorm", "normalisation"),
        ("LlamaRMSNorm+Linear", "linear"),
        ("LayerNorm+Linear", "linear"),
        ("BertOnlyMLMHead", "linear"),
        ("Embedding+Embedding+Dropout", "embedding"),
        ("ReLU", "other"),
    ],
)
def test_a_kind_belongs_to_the_heaviest_family_in_its_name(kind: str, family: str) -> None:
    assert layer_family(kind) == family


def test_equal_layers_are_one_sample_that_counts_for_all() -> None:
    profile = measured_profile([SLOW], FACTORS)
    samples = device_samples(
        profile, SLOW, JOB, list(measurements_of(profile, "slow", JOB).values())
    )
    assert samples.counts.tolist() == [1, 2, 1] * len(SIZES)
    assert samples.sizes.tolist() == [1, 1, 1, 4, 4, 4]
    whole = [sum(entry.forward_s) for entry in profile.measurements]
    counted = samples.forward.seconds * samples.counts
    np.testing.assert_allclose([counted[:3].sum(), counted[3:].sum()], whole)


@pytest.mark.parametrize("sizes", [None, (3, 2)])
def test_measured_sizes_need_not_be_possible_ones_of_the_job(sizes: tuple[int, ...] | None) -> None:
    profile = measured_profile([SLOW], FACTORS)
    measured = list(measurements_of(profile, "slow", JOB).values())
    whole = sum(sizes) if sizes else 1
    largest = max(sizes) if sizes else 1
    job = JOB.changed(
        global_batch_size=whole, micro_batch_size=largest, unequal_micro_batch_sizes=sizes
    )
    found, usual = (device_samples(profile, SLOW, each, measured) for each in (job, JOB))
    np.testing.assert_array_equal(found.forward.seconds, usual.forward.seconds)
    np.testing.assert_array_equal(found.sizes, usual.sizes)
    assert found.optimizer_ratio == usual.optimizer_ratio


def test_times_that_a_run_corrected_can_be_left_out() -> None:
    profile = measured_profile([SLOW], FACTORS)
    first, second = profile.measurements
    mixed = profile.changed(measurements=(first, second.changed(source="corrected")))
    assert list(measurements_of(mixed, "slow", JOB)) == [1, 4]
    assert list(measurements_of(mixed, "slow", JOB, only_measured=True)) == [1]
