"""How sure an estimate of layer times is: leave-one-device-out errors, and the interval they give.

Every measured device type is predicted from the others. The errors of one device are strongly
correlated over its layers (its clock, its cooling, its library are the same for all), so the error
of its whole model counts, and one factor scales all layers of a device type.

How large an error to expect depends on how far one extrapolates. A roofline has two efficiencies;
device types on both sides of a new one, by FLOP/s over bandwidth, pin down what it will reach;
types that are all bound by arithmetic say nothing of one that is bound by memory. So the expected
error is small inside of the measured range of that ratio, and grows with the distance from it. The
leave-one-out errors, each over what was expected of it, scale this up or down.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.layer_costs.calibration import Calibration, calibrate
from heterps_envs.layer_costs.samples import DeviceSamples

# An interval holds the truth with this probability, as far as the stated numbers go.
COVERAGE = 0.8
# Standard deviations of the logarithm of measured over predicted seconds of a whole model, rounded
# from `benchmarks/cost_model/calibration.py` (GPUs): at the stated constants of the plain roofline;
# calibrated and inside of the measured range of machine balances; and for each unit of its
# logarithm outside.
STATED_ERROR = 0.55
INSIDE_ERROR = 0.12
OUTSIDE_ERROR = 0.4
# These numbers weigh as much as this many leave-one-out errors.
PRIOR_WEIGHT = 4.0
# Student's quantiles for them and 0, 1, 2, .. errors beside: to load SciPy's own takes a tenth of a
# second.
QUANTILES = (
    1.533206274058944, 1.4758840488244815, 1.4397557472651483, 1.4149239276505086,
    1.3968153097438654, 1.3830287383966329, 1.372183641110336, 1.3634303180205407,
)  # fmt: skip


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


def expected_error(balance: float, training: Collection[DeviceSamples]) -> float:
    """Standard deviation to expect of `whole_model_error`, before any error was seen.

    Args:
        balance: Of the type to predict; see `heterps_envs.layer_costs.roofline.machine_balance`.
        training: What the efficiencies are fitted on; empty: they are the stated ones.
    """
    if not training:
        return STATED_ERROR
    balances = [entry.balance for entry in training]
    outside = max(0.0, min(balances) - balance, balance - max(balances))
    return math.hypot(INSIDE_ERROR, OUTSIDE_ERROR * outside)


def error_interval(
    balance: float, training: Sequence[DeviceSamples], errors: Mapping[str, float]
) -> ErrorInterval:
    """The factors between which the truth lies with probability `COVERAGE`.

    The expected error times a scale, whose square is the mean of squared ratios of leave-one-out
    errors to what was expected of them; a ratio of one counts `PRIOR_WEIGHT` times. The half-width
    is Student's quantile for that many degrees of freedom. With fewer than two measured types there
    are no errors, and the stated numbers alone decide.

    Args:
        balance: Of the type that was predicted.
        training: What its efficiencies were fitted on.
        errors: `leave_one_out_errors(training)`.
    """
    ratios = []
    for name, error in errors.items():
        others = [entry for entry in training if entry.device_type != name]
        own = next(entry.balance for entry in training if entry.device_type == name)
        ratios.append(error / expected_error(own, others))
    freedom = PRIOR_WEIGHT + len(ratios)
    scale = math.sqrt((PRIOR_WEIGHT + sum(ratio**2 for ratio in ratios)) / freedom)
    half_width = quantile(len(ratios)) * scale * expected_error(balance, training)
    return ErrorInterval(math.exp(-half_width), math.exp(half_width))


def quantile(num_errors: int) -> float:
    """Student's, of so many leave-one-out errors and what was stated, for `COVERAGE`."""
    if num_errors < len(QUANTILES):
        return QUANTILES[num_errors]
    from scipy.special import stdtrit

    return float(stdtrit(PRIOR_WEIGHT + num_errors, (1 + COVERAGE) / 2))
