"""Sailor's layer times as samples: single GPUs, blocks of Megatron in float32 or TF32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heterps.calibration.megatron_model import MegatronShape, traced_megatron
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.json_entry import Entry
from heterps_configs.importers.sailor import SailorModel, load_model
from heterps_envs.card_times.fit import CardSample
from heterps_envs.card_times.work import card_work

REPOSITORY = "eth-easl/sailor"
_SIMULATIONS = Path("sailor") / "Planner" / "simulations"
SAILOR = _SIMULATIONS / "profiles_tmp.json"
_SIZES = Path("sailor") / "Planner" / "llm_info.json"
# Sizes: training configurations of the same repository, and Zhang et al. 2022, table 1, for the
# largest. Dropout: Megatron's default, none in GPT-Neo's published configuration. Models that are
# not named here have next to no times of single GPUs.
SHAPES = {
    "OPT-350": MegatronShape(1024, 16, 50272),
    "GPT-Neo-2.7": MegatronShape(2560, 32, 50257, dropout=0.0),
    "OPT-30": MegatronShape(7168, 56, 50272),
}
# GPUs of the file that are in the catalogue; its RTX-2080 has 11 GiB, which only the Ti has.
GPUS = {
    "V100-16": "V100-16G",
    "A100-40": "A100-40G",
    "A100-80": "A100-80G",
    "GH-96": "GH200-96G",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "RTX-2080": "RTX-2080-Ti",
}
# The file does not say it: times on the A100 are below what its ordinary units can do, for all
# other models far above.
_PLAIN_FLOAT32 = ("OPT-30",)
BLOCK_LAYER = 1


def sailor_samples(folder: Path) -> Iterator[CardSample]:
    """One block for each model, GPU and micro-batch size, of a group of one GPU.

    Raises:
        HeterpsError: The sizes are missing, or a file is malformed.
    """
    if not (folder / _SIZES).is_file():
        raise HeterpsError(f"--workloads: {folder} has {SAILOR}, but not {_SIZES}")
    for model in sailor_models(folder):
        yield from _samples(model, SHAPES[model.name])


def sailor_models(folder: Path) -> list[SailorModel]:
    """The models of `SHAPES` that the files in a folder of published workloads have.

    Raises:
        HeterpsError: The files are missing or malformed.
    """
    names = Entry.from_json(folder / SAILOR).mapping()
    return [load_model(folder / SAILOR, folder / _SIZES, name) for name in SHAPES if name in names]


def arithmetic(model: str) -> Dtype:
    """What products of a model were computed in."""
    return "float32" if model in _PLAIN_FLOAT32 else "tf32"


def _samples(model: SailorModel, shape: MegatronShape) -> Iterator[CardSample]:
    profile, dtype = traced_megatron(shape), arithmetic(model.name)
    for measured in sorted(model.times):
        if measured.tensor_parallel > 1:
            continue  # its times have all-reduces in them
        entry, size = device_type_named(GPUS[measured.gpu]), measured.micro_batch_size
        job = Job(global_batch_size=size, micro_batch_size=size, dtype=dtype)
        work = card_work(profile.layers, profile.activation_scale(dtype), entry, job)
        times = model.times[measured][BLOCK_LAYER]
        yield CardSample(
            entry,
            model.name,
            f"{model.name} {entry.name} {shape.sequence_length} {dtype}",
            work.units,
            work.forward[BLOCK_LAYER],
            work.backward[BLOCK_LAYER],
            (times.forward_s, times.backward_s),
            is_line=False,
            repository=REPOSITORY,
        )
