"""Calibration: efficiencies of the roofline, fitted on the device types that were measured.

Seconds of one pass of one layer are

    hypot(compute_s / compute efficiency, memory_s / bandwidth efficiency) + launch_s * factor

with the work of `heterps_envs.layer_costs.roofline`. The root of the sum of squares lies between
the two extreme assumptions on a layer, which is many kernels: that traffic overlaps with arithmetic
(the larger of the two) and that nothing hides (their sum). Of these three forms it predicted GPUs
that were left out of the profiles of `benchmarks/cost_model/calibration.py` best. Forward and
backward pass have their own factors.

The fit has three levels: stated constants, all layers, layers of one family (attention blocks,
convolutions, linear layers, ...). Each level is a normal prior of the next in log space: a family
with few measurements stays near the factors of all layers, and a factor that nothing depends on
stays where the level above has it. Errors are relative, and robust: a few bad measurements have
little weight. The optimizer step has one factor, the median ratio of measured to counted seconds.

The dependence on the micro-batch size needs no further term: a compute efficiency that saturates,
`e F / (F + F_half)`, makes `F / P` into `F / (e P) + F_half / (e P)`, a constant for each pass,
which is what the launch factor fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.families import layer_family
from heterps_envs.layer_costs.roofline import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    PassWork,
    layer_work,
    plain_optimizer_s,
)
from heterps_envs.layer_costs.samples import DeviceSamples, PassSamples, joined

# Relative scatter of a single measured layer around the formula.
LAYER_SCATTER = 0.1
# How far (standard deviation of the logarithm) a level may lie from the level above it. A single
# device type cannot tell the two efficiencies apart: the one that matters less to it stays put.
# The spreads were chosen by the same leave-one-out errors.
LEVEL_SPREAD = 2.0
ONE_TYPE_LEVEL_SPREAD = 0.2
_STATED = np.log([1 / COMPUTE_EFFICIENCY, 1 / BANDWIDTH_EFFICIENCY, 1.0])
_MOST_STEPS = 50
_SMALL_STEP = 1e-4


class Factors(NamedTuple):
    """Inverse efficiencies, and how many times the stated launch seconds one pass takes."""

    compute: float
    memory: float
    launch: float

    def seconds(self, work: PassWork) -> Floats:
        """Seconds of each layer."""
        parts = np.hypot(self.compute * work.compute_s, self.memory * work.memory_s)
        return np.asarray(parts + self.launch * work.launch_s)


@dataclass(frozen=True)
class PassCalibration:
    """Factors of all layers, and of the families that were measured."""

    overall: Factors
    families: Mapping[str, Factors]

    def seconds(self, work: PassWork, families: NDArray[np.str_]) -> Floats:
        """(N,) seconds of layers, each with the factors of its family."""
        result = self.overall.seconds(work)
        for family, factors in self.families.items():
            result = np.where(families == family, factors.seconds(work), result)
        return result


@dataclass(frozen=True)
class Calibration:
    """The roofline with fitted efficiencies.

    Attributes:
        optimizer_factor: Over the stated bandwidth alone; None where no optimizer was measured.
    """

    forward: PassCalibration
    backward: PassCalibration
    optimizer_factor: float | None

    def predict(
        self, profile: ModelProfile, entry: DeviceType, job: Job
    ) -> tuple[Floats, Floats, Floats]:
        """(L,) forward, backward and optimizer seconds on a device type."""
        work = layer_work(profile, entry, job)
        families = np.array([layer_family(layer.kind) for layer in profile.layers])
        factor = self.optimizer_factor
        optimizer_s = plain_optimizer_s(work) if factor is None else factor * work.optimizer_s
        return (
            self.forward.seconds(work.forward, families),
            self.backward.seconds(work.backward, families),
            optimizer_s,
        )


def calibrate(samples: Sequence[DeviceSamples]) -> Calibration:
    """Fits the factors to what was measured on one or more device types."""
    assert samples
    families = np.concatenate([entry.families for entry in samples])
    one_type = len({entry.device_type for entry in samples}) == 1
    spread = ONE_TYPE_LEVEL_SPREAD if one_type else LEVEL_SPREAD
    ratios = [entry.optimizer_ratio for entry in samples if entry.optimizer_ratio is not None]
    return Calibration(
        _calibrate_pass(joined([entry.forward for entry in samples]), families, spread),
        _calibrate_pass(joined([entry.backward for entry in samples]), families, spread),
        float(np.exp(np.median(np.log(ratios)))) if ratios else None,
    )


def _calibrate_pass(
    samples: PassSamples, families: NDArray[np.str_], spread: float
) -> PassCalibration:
    usable = (samples.work.launch_s > 0) & (samples.seconds > 0)
    overall = _fit(samples.where(usable), _STATED, spread)
    return PassCalibration(
        Factors(*np.exp(overall).tolist()),
        {
            str(family): Factors(
                *np.exp(
                    _fit(samples.where(usable & (families == family)), overall, spread)
                ).tolist()
            )
            for family in np.unique(families[usable])
        },
    )


def _fit(samples: PassSamples, prior: Floats, spread: float) -> Floats:
    """(3,) logarithms of the factors: the least robust squared error plus distance to the prior.

    A factor that has become tiny hardly moves any more, so there are two starts; the better wins.
    """
    starts = (prior,) if prior is _STATED else (prior, _STATED)
    return min(
        (_descend(start, samples, prior, spread) for start in starts), key=lambda found: found[1]
    )[0]


def _descend(
    start: Floats, samples: PassSamples, prior: Floats, spread: float
) -> tuple[Floats, float]:
    """A local optimum and its loss, by Levenberg-Marquardt with reweighting.

    The loss of a residual r (in units of the scatter) is `2 (sqrt(1 + r^2) - 1)`.
    """
    theta, damping = start, 1e-3
    cost, gradient, curvature = _objective(theta, samples, prior, spread)
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
        trial = _objective(theta + step, samples, prior, spread)
        if trial[0] <= cost:
            theta, damping = theta + step, damping / 10
            cost, gradient, curvature = trial
            if np.abs(step).max() < _SMALL_STEP:
                break
        else:
            damping *= 10
    return theta, cost


def _objective(
    theta: Floats, samples: PassSamples, prior: Floats, spread: float
) -> tuple[float, Floats, Floats]:
    """Loss, half its gradient, and the Gauss-Newton half of its second derivative."""
    compute, memory, launch = np.exp(theta)[:, None] * np.stack(samples.work)
    body = np.hypot(compute, memory)
    predicted = body + launch + samples.negligible_s
    residual = np.log(predicted / (samples.seconds + samples.negligible_s)) / LAYER_SCATTER
    slopes = np.stack([compute**2, memory**2]) / np.maximum(body, 1e-300)
    jacobian = np.concatenate([slopes, launch[None]]) / predicted / LAYER_SCATTER
    weight = 1 / np.sqrt(1 + residual**2)
    away = (theta - prior) / spread**2
    cost = float(2 * (1 / weight - 1).sum() + (theta - prior) @ away)
    curvature = (jacobian * weight) @ jacobian.T + np.eye(3) / spread**2
    return cost, jacobian @ (weight * residual) + away, curvature
