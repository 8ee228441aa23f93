"""Imports Metis-style profiles: `DeviceType.<GPU>_tp<degree>_bs<size>.json` files of one folder.

Milliseconds and megabytes become seconds and bytes (a megabyte is 2**20 bytes). The format gives
forward and backward pass of a layer as one number; an imported measurement keeps it as one third
forward, two thirds backward, and its sum is what was measured. `total_memory` and `total_memory_mb`
are two spellings of one field: published files and their description disagree.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from heterps_configs.documents.model_profile import LayerProfile, Measurement, ModelProfile
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.importers.json_entry import Entry

_FILE_NAME = re.compile(
    r"DeviceType\.(?P<gpu>.+)_tp(?P<degree>[1-9]\d*)_bs(?P<size>[1-9]\d*)\.json"
)
_MILLISECOND = 1e-3
_MEGABYTE = 2**20
_FLOAT32_BYTES = 4
_FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class MetisProfile:
    """One file: a model on one GPU type, tensor-parallel degree and batch size.

    Attributes:
        parameter_bytes: (L,) weights of each layer.
        layer_s: (L,) forward and backward seconds of each layer.
        layer_memory_bytes: (L,) all memory of each layer.
        optimizer_s: Of the whole model, as the file says (Metis's own loader doubles it).
    """

    gpu: str
    tensor_parallel: int
    batch_size: int
    model: str
    parameter_bytes: tuple[float, ...]
    layer_s: tuple[float, ...]
    layer_memory_bytes: tuple[float, ...]
    total_memory_bytes: float
    optimizer_s: float


def load_profile(path: str | os.PathLike[str]) -> MetisProfile:
    """Reads one file; its name says what was measured.

    Raises:
        DocumentError: The name or the content is malformed.
        HeterpsError: The file cannot be read.
    """
    named = _FILE_NAME.fullmatch(Path(path).name)
    if named is None:
        expected = "DeviceType.<GPU>_tp<degree>_bs<size>.json"
        raise DocumentError(os.fspath(path), [f"the name of the file must be {expected}"])
    top = Entry.from_json(path)
    model, times, memory = top["model"], top["execution_time"], top["execution_memory"]
    num_layers = model["num_layers"].integer(minimum=1)
    layer_ms = times["layer_compute_total_ms"].numbers(num_layers)
    layer_mb = memory["layer_memory_total_mb"].numbers(num_layers)
    spelling = "total_memory_mb" if memory.has("total_memory_mb") else "total_memory"
    return MetisProfile(
        named["gpu"],
        int(named["degree"]),
        int(named["size"]),
        model["model_name"].text(),
        model["parameters"]["parameters_per_layer_bytes"].numbers(num_layers),
        tuple(value * _MILLISECOND for value in layer_ms),
        tuple(value * _MEGABYTE for value in layer_mb),
        memory[spelling].number() * _MEGABYTE,
        times["optimizer_time_ms"].number() * _MILLISECOND,
    )


def load_profiles(folder: str | os.PathLike[str]) -> tuple[MetisProfile, ...]:
    """Reads every `DeviceType.*.json` of a folder, by name.

    Raises:
        DocumentError: A file is malformed, or two are of different models.
        HeterpsError: The folder has no such file.
    """
    files = sorted(Path(folder).glob("DeviceType.*.json"))
    if not files:
        raise HeterpsError(f"{folder}: no file DeviceType.*.json")
    profiles = tuple(load_profile(file) for file in files)
    for file, profile in zip(files, profiles, strict=True):
        if (profile.model, len(profile.layer_s)) != (profiles[0].model, len(profiles[0].layer_s)):
            raise DocumentError(
                str(file),
                [
                    f"{profile.model} of {len(profile.layer_s)} layers, but {files[0].name} has "
                    f"{profiles[0].model} of {len(profiles[0].layer_s)}"
                ],
            )
    return profiles


def to_model_profile(profiles: tuple[MetisProfile, ...], output_bytes: float) -> ModelProfile:
    """The measured times as a model profile.

    A layer's activations are what its memory has beyond weight, gradient and two moments in
    float32, for one sample.

    Args:
        profiles: Of one model.
        output_bytes: That cross every cut, one sample, one way: the format does not say.

    Raises:
        HeterpsError: No profile is without tensor parallelism.
    """
    whole = [profile for profile in profiles if profile.tensor_parallel == 1]
    if not whole:
        raise HeterpsError(f"{profiles[0].model}: no profile with tensor-parallel degree 1")
    base = min(whole, key=lambda profile: profile.batch_size)
    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            kind="MetisLayer",
            num_parameters=int(weights / _FLOAT32_BYTES),
            forward_flops=0,
            backward_flops=0,
            activation_bytes=max(0.0, memory - 4 * weights) / base.batch_size,
            output_bytes=output_bytes if index + 1 < len(base.layer_s) else 0,
        )
        for index, (weights, memory) in enumerate(
            zip(base.parameter_bytes, base.layer_memory_bytes, strict=True)
        )
    )
    return ModelProfile(
        name=base.model,
        description="imported from Metis-style profiles",
        layers=layers,
        measurements=tuple(_measurement(profile) for profile in profiles),
    )


def _measurement(profile: MetisProfile) -> Measurement:
    num_layers = len(profile.layer_s)
    return Measurement(
        device_type=profile.gpu,
        tensor_parallel=profile.tensor_parallel,
        micro_batch_size=profile.batch_size,
        forward_s=tuple(value * _FORWARD_SHARE for value in profile.layer_s),
        backward_s=tuple(value * (1 - _FORWARD_SHARE) for value in profile.layer_s),
        optimizer_s=(profile.optimizer_s / num_layers,) * num_layers,
    )
