"""Imports PipeEdge's scheduler files (usc-isi/PipeEdge): models, device types and devices.

Its units: MB and Mbit are powers of two; `parameters_in` and `parameters_out` count float32
elements of one sample. A model's lists may hold one block that repeats over the layers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.importers.json_entry import Entry

PathLike = str | os.PathLike[str]
_MEGA = 2**20
_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class PipeEdgeModel:
    """A chain of layers.

    Attributes:
        memory_bytes: (L,) weights and workspace of each layer.
        input_elements: Enter the first layer, one sample.
        output_elements: (L,) leave each layer, one sample.
    """

    name: str
    memory_bytes: tuple[float, ...]
    input_elements: int
    output_elements: tuple[int, ...]


@dataclass(frozen=True)
class PipeEdgeDeviceType:
    """One type of device with the hosts that are of it.

    Attributes:
        bandwidth_bytes_per_s: Of its network interface.
        seconds: (L,) of each layer for one batch.
    """

    name: str
    bandwidth_bytes_per_s: float
    memory_bytes: float
    seconds: tuple[float, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class PipeEdgeProblem:
    """A model and the device types that have both hosts and a profile of it."""

    model: PipeEdgeModel
    device_types: tuple[PipeEdgeDeviceType, ...]
    batch_size: int


def load_problem(
    models: PathLike,
    device_types: PathLike,
    devices: PathLike,
    model: str,
    batch_size: int = 8,
    dtype: str = "torch.float32",
) -> PipeEdgeProblem:
    """Reads `models.yml`, `device_types.yml` and `devices.yml`.

    Raises:
        UnknownNameError: The files have no such model.
        DocumentError: A file is malformed, or hosts are of a type that is not described.
        HeterpsError: A file cannot be read, or no device has a profile of the model.
    """
    known = Entry.from_yaml(models)
    if not known.has(model):
        raise UnknownNameError("model", model, map(str, known.mapping()))
    chain = _read_model(model, known[model])
    types = Entry.from_yaml(device_types)
    usable = []
    for name, hosts in Entry.from_yaml(devices).items():
        names = tuple(host.text() for host in hosts.entries())
        if names and not types.has(name):
            hosts.fail(f"hosts of a type that {types.source} does not describe")
        seconds = _profile(types[name], chain, batch_size, dtype) if names else None
        if seconds is not None:
            usable.append(_device_type(name, types[name], seconds, names))
    if not usable:
        raise HeterpsError(
            f"{types.source}: no device has a profile of {model} with batch size {batch_size} "
            f"and {dtype}"
        )
    return PipeEdgeProblem(chain, tuple(usable), batch_size)


def _read_model(name: str, entry: Entry) -> PipeEdgeModel:
    num_layers = entry["layers"].integer(minimum=1)
    outputs = _repeated(entry["parameters_out"], num_layers)
    return PipeEdgeModel(
        name,
        tuple(value.number() * _MEGA for value in _repeated(entry["mem_MB"], num_layers)),
        entry["parameters_in"].integer(),
        tuple(value.integer() for value in outputs),
    )


def _repeated(entry: Entry, num_layers: int) -> list[Entry]:
    """One value for each layer of a list that may hold one repeating block."""
    block = entry.entries()
    if not block or num_layers % len(block):
        entry.fail(f"{len(block)} values do not repeat over {num_layers} layers")
    return block * (num_layers // len(block))


def _profile(
    device_type: Entry, model: PipeEdgeModel, batch_size: int, dtype: str
) -> tuple[float, ...] | None:
    profiles = device_type["model_profiles"]
    if profiles.value is None or not profiles.has(model.name):
        return None
    for entry in profiles[model.name].entries():
        if entry["batch_size"].integer(minimum=1) == batch_size and entry["dtype"].text() == dtype:
            return entry["time_s"].numbers(length=len(model.memory_bytes))
    return None


def _device_type(
    name: str, entry: Entry, seconds: tuple[float, ...], hosts: tuple[str, ...]
) -> PipeEdgeDeviceType:
    bits_per_s = entry["bw_Mbps"].number(above=True) * _MEGA
    memory_bytes = entry["mem_MB"].number(above=True) * _MEGA
    return PipeEdgeDeviceType(name, bits_per_s / _BITS_PER_BYTE, memory_bytes, seconds, hosts)
