"""Estimated layer times of device types that nobody has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.document import kin_of, shipped_calibration
from heterps_envs.card_times.formula import card_seconds
from heterps_envs.layer_costs.calibration import Calibration, calibrate
from heterps_envs.layer_costs.intervals import ErrorInterval, error_interval, leave_one_out_errors
from heterps_envs.layer_costs.roofline import (
    layer_work,
    machine_balance,
    plain_optimizer_s,
    plain_roofline_s,
)
from heterps_envs.layer_costs.samples import DeviceSamples, device_samples, measurements_of


class EstimatedSeconds(NamedTuple):
    """(L,) seconds of one micro-batch, and what they rest on."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    source: Literal["calibrated roofline", "published measurements", "roofline estimate"]


def is_card(entry: DeviceType) -> bool:
    """Whether the published measurements of cards say anything about a device type."""
    is_known = entry.power_w is not None and entry.process_nm is not None and bool(kin_of(entry))
    return entry.kind == "gpu" and entry.emulation is None and is_known


def published_half_width(entry: DeviceType) -> float:
    """Logarithm of the factor that published estimates of a card are off by, at most."""
    calibration = shipped_calibration()
    return calibration.errors[calibration.knowledge(entry)].half_width


class Estimator:
    """Estimates layer times; what was measured is read, and fitted, when it is first needed.

    A card of which published measurements tell more than those at hand is estimated from them
    (`heterps_envs.card_times`).

    GPUs are estimated from measured GPUs and CPUs from measured CPUs. Peaks of a measured type are
    those of the cluster's type of that name, else of the shipped one; without them its measurements
    do not count. Times that a run has corrected do not count either: what slows down one device
    says nothing about another.
    """

    def __init__(
        self,
        profile: ModelProfile,
        types: Sequence[DeviceType],
        job: Job,
        training: Sequence[ModelProfile] = (),
    ) -> None:
        """Keeps what to learn from: the profile itself first, then other profiles."""
        self._profile, self._types, self._job = profile, types, job
        self._training = training
        self._fitted: dict[str, Calibration] = {}
        self._errors: dict[str, Mapping[str, float]] = {}

    def seconds(
        self, entry: DeviceType, profile: ModelProfile | None = None, job: Job | None = None
    ) -> EstimatedSeconds:
        """Seconds on one type: fitted, or published, or at stated efficiencies.

        The stated ones are those of `heterps_envs.layer_costs.roofline`.

        Args:
            entry: The type.
            profile: Whose layers; by default those of the profile that is learned from.
            job: Its micro-batch size and numbers; by default those of the estimator's job.
        """
        samples, profile, job = self.samples(entry.kind), profile or self._profile, job or self._job
        if self.uses_published(entry):
            found = card_seconds(shipped_calibration(), profile, entry, job)
            optimizer_s = plain_optimizer_s(layer_work(profile, entry, job))
            return EstimatedSeconds(*found, optimizer_s, "published measurements")
        if samples:
            if entry.kind not in self._fitted:
                self._fitted[entry.kind] = calibrate(samples)
            predicted = self._fitted[entry.kind].predict(profile, entry, job)
            return EstimatedSeconds(*predicted, "calibrated roofline")
        work = layer_work(profile, entry, job)
        return EstimatedSeconds(
            plain_roofline_s(work.forward),
            plain_roofline_s(work.backward),
            plain_optimizer_s(work),
            "roofline estimate",
        )

    def interval(self, entry: DeviceType) -> ErrorInterval:
        """Factors on the estimated seconds of one type between which the truth lies."""
        if self.uses_published(entry):
            half_width = published_half_width(entry)
            return ErrorInterval(math.exp(-half_width), math.exp(half_width))
        return self._own_interval(entry)

    def uses_published(self, entry: DeviceType) -> bool:
        """Whether published measurements of a card, or its kin, tell more than those at hand."""
        if not is_card(entry):
            return False
        own = self._own_interval(entry)
        return 2 * published_half_width(entry) <= math.log(own.high / own.low)

    def _own_interval(self, entry: DeviceType) -> ErrorInterval:
        return error_interval(
            machine_balance(entry, self._job),
            self.samples(entry.kind),
            self.leave_one_out_errors(entry.kind),
        )

    def leave_one_out_errors(self, kind: str) -> Mapping[str, float]:
        """Logarithm of measured over predicted seconds of the model, by measured type of a kind.

        Each is predicted from the other measured types.
        """
        if kind not in self._errors:
            self._errors[kind] = leave_one_out_errors(self.samples(kind))
        return self._errors[kind]

    def samples(self, kind: str) -> tuple[DeviceSamples, ...]:
        """What was measured on device types of that kind."""
        return self._samples.get(kind, ())

    @cached_property
    def _samples(self) -> Mapping[str, tuple[DeviceSamples, ...]]:
        known = {**shipped_device_types(), **{entry.name: entry for entry in self._types}}
        by_kind: dict[str, tuple[DeviceSamples, ...]] = {}
        for profile in (self._profile, *self._training):
            names = dict.fromkeys(found.device_type for found in profile.measurements)
            for entry in (known[name] for name in names if name in known):
                if entry.emulation is not None:
                    continue  # Its seconds are the host's, and its peaks are not its own.
                found = measurements_of(profile, entry.name, self._job, only_measured=True)
                if found:
                    new = device_samples(profile, entry, self._job, list(found.values()))
                    by_kind[entry.kind] = (*by_kind.get(entry.kind, ()), new)
        return by_kind
