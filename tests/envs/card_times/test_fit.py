"""The fit to published times finds the factors that made them."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_configs.documents.device import device_type_named
from heterps_configs.errors import HeterpsError
from heterps_envs.card_times.document import kin_of, shipped_calibration
from heterps_envs.card_times.errors import (
    LeftOut,
    block_error,
    left_out_errors,
    share_inside,
    summary,
)
from heterps_envs.card_times.fit import fit_cards
from tests.envs.card_times.made_samples import ERROR, TRUTH, made_samples

ERRORS = {"card": ERROR, "kin": ERROR, "none": ERROR}


def test_times_without_noise_are_predicted_to_two_per_cent() -> None:
    samples = made_samples()
    fitted = fit_cards(samples, TRUTH.sources, ERRORS)  # type: ignore[arg-type]
    errors = [block_error(fitted, sample, "") for sample in samples]
    assert max(abs(error.logarithm) for error in errors) < 0.02
    assert fitted.cards["T4"].tables == {"made up": 12}
    for of in ("forward", "backward"):
        tf32, float32 = fitted.tf32[of], fitted.float32[of]
        assert (tf32.parameters, tf32.traffic) == (float32.parameters, float32.traffic)


def test_one_bad_table_changes_little() -> None:
    samples = made_samples(noise=0.02)
    bad = [
        sample._replace(seconds=(3 * sample.seconds[0], 3 * sample.seconds[1]))
        if sample.table == "2048 A100-40G float16"
        else sample
        for sample in samples
    ]
    fitted = fit_cards(bad, (), ERRORS)  # type: ignore[arg-type]
    others = [
        abs(block_error(fitted, sample, "").logarithm)
        for sample in samples
        if sample.entry.name == "A100-40G"
        and sample.units == "half"
        and sample.model != "model-2048"
    ]
    assert np.median(others) < 0.1


def test_times_below_the_peak_are_impossible_and_left_out() -> None:
    samples = made_samples()
    wrong = samples[0]._replace(seconds=(1e-9, 1e-9))
    assert not wrong.is_possible
    assert fit_cards([wrong, *samples[1:]], (), ERRORS) == fit_cards(samples[1:], (), ERRORS)  # type: ignore[arg-type]


@pytest.mark.parametrize("left_out", ["model", "card and model", "kin"])
def test_times_of_one_table_alone_are_too_few(left_out: LeftOut) -> None:
    first = made_samples()[0]
    of_one_table = [sample for sample in made_samples() if sample.table == first.table]
    with pytest.raises(HeterpsError, match=rf"without the {left_out} .* none are left to fit"):
        left_out_errors(of_one_table, left_out)
    with pytest.raises(HeterpsError, match="none of a known card"):
        left_out_errors([], left_out)


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["model", "card", "kin"])
def test_what_is_left_out_is_predicted_from_the_rest(left_out: str) -> None:
    groups: list[str] = []
    errors = left_out_errors(made_samples(), left_out, groups.append)  # type: ignore[arg-type]
    assert len(errors) == len(made_samples())
    assert {error.group for error in errors} == set(groups)
    # A card's own offsets are at most 30 %: without them it is off by no more.
    assert summary(errors).p90 < 0.35


@pytest.mark.slow
def test_intervals_are_judged_by_the_errors_of_other_groups() -> None:
    errors = left_out_errors(made_samples(noise=0.1), "model")
    assert 0.6 < share_inside(errors) <= 1
    assert summary(errors).half_width == pytest.approx(
        np.quantile([abs(error.logarithm) for error in errors], 0.8)
    )


def test_the_shipped_calibration_knows_cards_their_kin_and_what_it_does_not_know() -> None:
    shipped = shipped_calibration()
    known = {
        name: shipped.knowledge(device_type_named(name)) for name in ("T4", "RTX-4090", "MI300X")
    }
    assert known == {"T4": "card", "RTX-4090": "kin", "MI300X": "none"}
    assert kin_of(device_type_named("MI300X")) == ""
    widths = [shipped.errors[each].half_width for each in ("card", "kin", "none")]
    assert widths == sorted(widths)
    assert all(name in shipped.cards for name in ("A100-40G", "V100-16G", "L4", "A10G", "P40"))
