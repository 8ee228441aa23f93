"""How sure an estimate of layer times is: leave-one-device-out errors, and the interval they give.

Every measured device type is predicted from the others. The errors of one device are strongly
correlated over its layers (its clock, its cooling, its library are the same for all), so the error
of its whole model counts, and one factor scales all layers of a device type.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.calibration import Calibration, calibrate
from heterps_envs.layer_samples import DeviceSamples

# An interval holds the truth with this probability, as far as the stated numbers go.
COVERAGE = 0.8
# Standard deviation of the logarithm of measured over predicted seconds of a whole model, by the
# number of measured device types that the efficiencies are fitted on; the last one also for more.
# 0 is the plain roofline at its stated constants. Rounded from `benchmarks/calibration.py`.
PRIOR_ERRORS = (0.6, 0.35, 0.25, 0.2)
# The prior weighs as much as this many leave-one-out errors.
PRIOR_WEIGHT = 2.0


class ErrorInterval(NamedTuple):
    """Layer times lie between `low` and `high` times what was predicted; (1, 1): measured."""

    low: float
    high: float


MEASURED = ErrorInterval(1.0, 1.0)


def leave_one_out_errors(samples: Sequence[DeviceSamples]) -> dict[str, float]:
    """Logarithm of measured over predicted seconds of the whole model, by device type.

    Each type is predicted by a calibration on the others; forward plus backward pass, the mean over
    its micro-batch sizes (and over profiles, where several measured it). Empty where fewer than two
    types were measured.
    """
    names = list(dict.fromkeys(entry.device_type for entry in samples))
    if len(names) < 2:
        return {}
    errors = {}
    for name in names:
        fitted = calibrate([entry for entry in samples if entry.device_type != name])
        left_out = [entry for entry in samples if entry.device_type == name]
        errors[name] = float(np.mean([whole_model_error(fitted, entry) for entry in left_out]))
    return errors


def whole_model_error(fitted: Calibration, truth: DeviceSamples) -> float:
    """Logarithm of measured over predicted seconds of the whole model; see above."""
    predicted = fitted.forward.seconds(truth.forward.work, truth.families)
    predicted = predicted + fitted.backward.seconds(truth.backward.work, truth.families)
    measured = truth.forward.seconds + truth.backward.seconds
    logarithms = [
        math.log((measured * truth.counts)[here].sum() / (predicted * truth.counts)[here].sum())
        for here in (truth.sizes == size for size in np.unique(truth.sizes))
        if measured[here].sum() > 0 and predicted[here].sum() > 0
    ]
    return float(np.mean(logarithms)) if logarithms else 0.0


def error_interval(trained_on: Collection[str], errors: Mapping[str, float]) -> ErrorInterval:
    """The factors between which the truth lies with probability `COVERAGE`.

    The variance is the mean of the squared errors and of a prior variance, which weighs as much as
    `PRIOR_WEIGHT` errors; the half-width is Student's quantile for that many degrees of freedom.
    With fewer than two measured types there are no errors, and the prior alone decides.

    Args:
        trained_on: Device types that the estimate is calibrated on.
        errors: Leave-one-out errors; those of other types do not count.
    """
    from scipy.special import stdtrit  # Late: only an estimate that is not measured needs it.

    values = [errors[name] for name in trained_on if name in errors]
    prior = PRIOR_ERRORS[min(len(trained_on), len(PRIOR_ERRORS) - 1)]
    freedom = PRIOR_WEIGHT + len(values)
    variance = (PRIOR_WEIGHT * prior**2 + sum(value**2 for value in values)) / freedom
    half_width = float(stdtrit(freedom, (1 + COVERAGE) / 2)) * math.sqrt(variance)
    return ErrorInterval(math.exp(-half_width), math.exp(half_width))
