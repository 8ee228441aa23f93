"""Layer times of GPUs that were not measured: how far calibrated estimates are from the truth.

    python benchmarks/cost_model/calibration.py --workloads FOLDER
    python benchmarks/cost_model/calibration.py --workloads FOLDER --quick --json calibration.json

FOLDER holds Sailor's published layer times (`sailor/`); without it, `$HETERPS_WORKLOADS`. Each GPU
in turn is predicted from the others (leave one device out). The methods:

* plain roofline: stated efficiencies, no fit;
* nearest peak: the times of the GPU with the nearest peak, scaled by the ratio of the peaks;
* one set of efficiencies: fitted, all layers alike;
* by family: what `heterps` does, efficiencies of each layer family near those of all layers;
* by family, nearest residual: on top, the ratio of measured to fitted seconds of the nearest GPU.

Layer errors are over forward and backward passes of distinct layers at every micro-batch size,
passes under 0.1 ms left out (the files round them). Model errors are over GPUs: forward plus
backward of all layers, the mean over micro-batch sizes. `inside` counts GPUs whose truth lies in
the interval that is stated without having seen them.

The files label all times float32. Many exceed the float32 peak by far, so they ran in TF32 where
the hardware has it; those of some GPUs do not. "As measured" assumes that; the other rates are
shown for comparison.

No efficiency has seen the GPU that it predicts. Chosen on these models, however, are the form of
the roofline, the two spreads of `heterps_envs.layer_costs.calibration`, and (rounded from the last
rows) the three errors of `heterps_envs.layer_costs.intervals`: errors and coverage on other models
may be worse.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cost_model.calibration_profiles import MODELS, PublishedModel, device_type, load
from benchmarks.shared.common import parse_options, report
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.calibration import calibrate
from heterps_envs.layer_costs.intervals import error_interval, expected_error, leave_one_out_errors
from heterps_envs.layer_costs.roofline import plain_roofline_s
from heterps_envs.layer_costs.samples import (
    DeviceSamples,
    PassSamples,
    device_samples,
    measurements_of,
)

NEGLIGIBLE_S = 1e-4
FAR_ERROR = 0.2  # expected error of a model beyond which one extrapolates
MEASURED = "as measured"  # TF32, but plain float32 where the times show that
JOB = Job(global_batch_size=1, dtype="float32", optimizer="adamw")


class Device(NamedTuple):
    """A measured GPU."""

    type: DeviceType
    samples: DeviceSamples


class Predicted(NamedTuple):
    """(N,) seconds of the samples of a GPU."""

    forward_s: Floats
    backward_s: Floats


Method = Callable[[Sequence[Device], Device], Predicted]


def main() -> None:
    """Runs the benchmark and prints its tables."""
    options = parse_options(
        __doc__ or "", workloads="folder of the published files (default: $HETERPS_WORKLOADS)"
    )
    folder = options.workloads or os.environ.get("HETERPS_WORKLOADS")
    try:
        if not folder or not Path(folder).is_dir():
            raise HeterpsError(f"--workloads: {folder or 'nothing'} is no folder")
        rows, summary = run(Path(folder), options.quick)
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    report("Estimated layer times of GPUs left out", rows, summary, options)


def run(folder: Path, quick: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows, and the numbers that count."""
    profiles = {model: load(folder, model) for model in MODELS}
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for model, profile in profiles.items():
        gpus = devices(profile, model, MEASURED)
        for name, method in METHODS.items():
            row = leave_one_out(gpus, method)
            rows.append({"model": f"{model.name}, {MEASURED}", "method": name, **row})
            summary[f"{model.name}, {name}: mean error of models, %"] = row["model_mean"]
        for rate in () if quick else ("float32", "tf32", "float16"):
            row = leave_one_out(devices(profile, model, rate), by_family)
            rows.append({"model": f"{model.name}, {rate}", "method": "by family", **row})
    known = [(model, devices(profile, model, MEASURED)) for model, profile in profiles.items()]
    rows += across_models(known)
    rows += by_number_measured([gpus for _, gpus in known], most=3 if quick else 6)
    return rows, summary


def devices(profile: ModelProfile, model: PublishedModel, rate: str) -> list[Device]:
    """The measured GPUs of a model, their peaks in the given arithmetic."""
    result = []
    for gpu in dict.fromkeys(found.device_type for found in profile.measurements):
        own = rate
        if rate == MEASURED:
            own = "float32" if gpu in model.float32_gpus else "tf32"
        entry = device_type(gpu, own)
        found = list(measurements_of(profile, gpu, JOB).values())
        result.append(Device(entry, device_samples(profile, entry, JOB, found)))
    return result


def plain(training: Sequence[Device], left_out: Device) -> Predicted:
    """Stated efficiencies."""
    samples = left_out.samples
    return Predicted(
        plain_roofline_s(samples.forward.work), plain_roofline_s(samples.backward.work)
    )


def nearest_peak(training: Sequence[Device], left_out: Device) -> Predicted:
    """Scaled from the GPU with the nearest peak; per sample of the nearest micro-batch size."""
    peak = left_out.type.peak("float32")
    near = min(training, key=lambda other: abs(math.log(other.type.peak("float32") / peak)))
    factor = near.type.peak("float32") / peak
    return Predicted(
        factor * _from_nearest_size(near.samples, left_out.samples, near.samples.forward.seconds),
        factor * _from_nearest_size(near.samples, left_out.samples, near.samples.backward.seconds),
    )


def _from_nearest_size(near: DeviceSamples, wanted: DeviceSamples, seconds: Floats) -> Floats:
    sizes, result = np.unique(near.sizes), []
    for size in np.unique(wanted.sizes):
        nearest = sizes[np.argmin(np.abs(np.log(sizes / size)))]
        result.append(seconds[near.sizes == nearest] * (size / nearest))
    return np.concatenate(result)


def all_alike(training: Sequence[Device], left_out: Device) -> Predicted:
    """One set of fitted efficiencies."""
    fitted, samples = calibrate([entry.samples for entry in training]), left_out.samples
    return Predicted(
        fitted.forward.overall.seconds(samples.forward.work),
        fitted.backward.overall.seconds(samples.backward.work),
    )


def by_family(training: Sequence[Device], left_out: Device) -> Predicted:
    """The calibration of `heterps`."""
    return _by_family([entry.samples for entry in training], left_out.samples)


def _by_family(training: Sequence[DeviceSamples], samples: DeviceSamples) -> Predicted:
    fitted = calibrate(training)
    return Predicted(
        fitted.forward.seconds(samples.forward.work, samples.families),
        fitted.backward.seconds(samples.backward.work, samples.families),
    )


def nearest_residual(training: Sequence[Device], left_out: Device) -> Predicted:
    """By family, times what the nearest GPU (by peak and bandwidth) took over its own fit."""
    predicted = by_family(training, left_out)
    near = min(training, key=lambda other: _distance(other.type, left_out.type)).samples
    own = _by_family([entry.samples for entry in training], near)
    return Predicted(
        predicted.forward_s * _residual(near, near.forward, own.forward_s, left_out),
        predicted.backward_s * _residual(near, near.backward, own.backward_s, left_out),
    )


def _residual(near: DeviceSamples, truth: PassSamples, own: Floats, left_out: Device) -> Floats:
    factors = np.ones(len(left_out.samples.families))
    for family in np.unique(left_out.samples.families):
        here = (near.families == family) & (truth.seconds > NEGLIGIBLE_S)
        if here.any():
            ratio = np.exp(np.mean(np.log(truth.seconds[here] / own[here])))
            factors[left_out.samples.families == family] = ratio
    return factors


def _distance(first: DeviceType, second: DeviceType) -> float:
    peaks = math.log(first.peak("float32") / second.peak("float32"))
    bandwidths = math.log(first.memory_bandwidth_bytes_per_s / second.memory_bandwidth_bytes_per_s)
    return math.hypot(peaks, bandwidths)


METHODS: dict[str, Method] = {
    "plain roofline": plain,
    "nearest peak": nearest_peak,
    "one set of efficiencies": all_alike,
    "by family": by_family,
    "by family, nearest residual": nearest_residual,
}


def leave_one_out(gpus: Sequence[Device], method: Method) -> dict[str, Any]:
    """Errors in per cent over all GPUs, each predicted from the others."""
    layers: list[float] = []
    models: dict[str, float] = {}
    inside = 0
    for left_out in gpus:
        training = [entry for entry in gpus if entry is not left_out]
        predicted = method(training, left_out)
        layers += layer_errors(predicted, left_out.samples)
        models[left_out.type.name] = error = model_error(predicted, left_out.samples)
        inside += _is_inside(training, left_out, error)
    row = _error_row(layers, list(models.values()))
    if method is by_family:
        row["inside"] = f"{inside} of {len(gpus)}"
        row["gpus"] = ", ".join(f"{name} {100 * _relative(e):+.0f}" for name, e in models.items())
    return row


def _is_inside(training: Sequence[Device], left_out: Device, error: float) -> bool:
    samples = [entry.samples for entry in training]
    errors = leave_one_out_errors(samples)
    interval = error_interval(left_out.samples.balance, samples, errors)
    return interval.low <= math.exp(error) <= interval.high


def layer_errors(predicted: Predicted, truth: DeviceSamples) -> list[float]:
    """Logarithms of measured over predicted seconds of every pass that is not negligible."""
    result: list[float] = []
    for seconds, measured in zip(
        predicted, (truth.forward.seconds, truth.backward.seconds), strict=True
    ):
        counted = (measured > NEGLIGIBLE_S) & (seconds > 0)
        result += np.log(measured[counted] / seconds[counted]).tolist()
    return result


def model_error(predicted: Predicted, truth: DeviceSamples) -> float:
    """Logarithm of measured over predicted seconds of all layers, mean over micro-batch sizes."""
    guess = (predicted.forward_s + predicted.backward_s) * truth.counts
    seconds = (truth.forward.seconds + truth.backward.seconds) * truth.counts
    here = [truth.sizes == size for size in np.unique(truth.sizes)]
    return float(np.mean([math.log(seconds[h].sum() / guess[h].sum()) for h in here]))


def _relative(logarithm: float) -> float:
    """Of a logarithm of measured over predicted: predicted over measured, minus one."""
    return math.exp(-logarithm) - 1


def _error_row(layers: Sequence[float], models: Sequence[float]) -> dict[str, Any]:
    layer = [100 * abs(_relative(value)) for value in layers]
    medians = {"layer_median": float(np.median(layer)), "layer_mean": float(np.mean(layer))}
    return {**medians, **_model_row(models)}


def _model_row(models: Sequence[float]) -> dict[str, Any]:
    model = [100 * abs(_relative(value)) for value in models]
    return {"model_mean": float(np.mean(model)), "model_worst": float(np.max(model))}


def across_models(known: Sequence[tuple[PublishedModel, list[Device]]]) -> list[dict[str, Any]]:
    """One model predicted from another: measured on the same GPU alone, and on all of its GPUs."""
    rows = []
    for source, training in known:
        for target, gpus in known:
            shared = [gpu for gpu in gpus if any(gpu.type == entry.type for entry in training)]
            if source is target or not shared:
                continue
            name = f"{target.name} from {source.name}"
            for only_same in (True, False):
                layers: list[float] = []
                models: list[float] = []
                for gpu in shared:
                    same = [entry for entry in training if entry.type == gpu.type]
                    predicted = by_family(same if only_same else training, gpu)
                    layers += layer_errors(predicted, gpu.samples)
                    models.append(model_error(predicted, gpu.samples))
                which = "the same GPU" if only_same else f"its {len(training)} GPUs"
                method = f"by family, {which} (of {len(shared)})"
                rows.append({"model": name, "method": method, **_error_row(layers, models)})
    return rows


def by_number_measured(known: Sequence[Sequence[Device]], most: int) -> list[dict[str, Any]]:
    """Errors of whole models by how many GPUs the efficiencies are fitted on; 0: stated ones.

    Where the balance (FLOP/s over bandwidth) of the GPU lies outside of the measured ones, one
    extrapolates: these cases are counted apart.
    """
    rows = []
    for number in range(most + 1):
        for far in (False, True):
            errors, inside = _cases(known, number, far)
            if not errors:
                continue
            where = "outside" if far else "near or inside"
            spread = float(np.sqrt(np.mean(np.square(errors))))
            share = f"{inside} of {len(errors)} ({100 * inside / len(errors):.0f} %)"
            name = f"{number} GPUs measured, {where if number else 'stated efficiencies'}"
            row = {"model": "all", "method": name, "log_rms": spread}
            rows.append({**row, **_model_row(errors), "inside": share})
    return rows


def _cases(known: Sequence[Sequence[Device]], number: int, far: bool) -> tuple[list[float], int]:
    """Errors of every GPU from every set of `number` others, and how many intervals hold them."""
    errors: list[float] = []
    inside = 0
    method = by_family if number else plain
    for gpus in known:
        for left_out in gpus:
            others = [entry for entry in gpus if entry is not left_out]
            for training in combinations(others, number):
                expected = expected_error(
                    left_out.samples.balance, [entry.samples for entry in training]
                )
                if (number > 0 and expected > FAR_ERROR) == far:
                    error = model_error(method(training, left_out), left_out.samples)
                    errors.append(error)
                    inside += _is_inside(training, left_out, error)
    return errors, inside


if __name__ == "__main__":
    main()
