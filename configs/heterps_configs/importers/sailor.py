"""Imports Sailor's files (eth-easl/sailor): layer times and sizes, clusters, links, measured runs.

Times are seconds of one micro-batch on one tensor-parallel group; sizes are float32 elements of one
sample, already divided by the tensor-parallel degree.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.importers.json_entry import Entry, whole_number_key

PathLike = str | os.PathLike[str]
_MEGABYTE, _GIGABYTE = 1e6, 1e9


class SailorLayerTimes(NamedTuple):
    """Seconds of one layer for one micro-batch, and of its optimizer step."""

    forward_s: float
    backward_s: float
    update_s: float


class SailorLayerSizes(NamedTuple):
    """Float32 elements of one layer on one GPU of a tensor-parallel group.

    Attributes:
        parameters: Weights.
        output: Of one sample, sent to the next layer.
        activation_memory: Of one sample, kept for the backward pass.
    """

    parameters: int
    output: int
    activation_memory: int


class SailorShape(NamedTuple):
    """What a layer's times depend on."""

    gpu: str
    micro_batch_size: int
    tensor_parallel: int


@dataclass(frozen=True)
class SailorModel:
    """One model of Sailor's profiles.

    Attributes:
        times: All layers, front to back, by GPU type, micro-batch size and tensor-parallel degree.
        sizes: All layers by tensor-parallel degree.
    """

    name: str
    times: Mapping[SailorShape, tuple[SailorLayerTimes, ...]]
    sizes: Mapping[int, tuple[SailorLayerSizes, ...]]

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return len(next(iter(self.sizes.values())))

    def layer_times(self, shape: SailorShape) -> tuple[SailorLayerTimes, ...]:
        """The times of all layers.

        Raises:
            HeterpsError: Nobody measured that GPU type, micro-batch size and degree.
        """
        if shape not in self.times:
            raise HeterpsError(
                f"{self.name}: no profile of {shape.gpu} with micro-batch size "
                f"{shape.micro_batch_size} and tensor-parallel degree {shape.tensor_parallel}"
            )
        return self.times[shape]

    def layer_sizes(self, tensor_parallel: int) -> tuple[SailorLayerSizes, ...]:
        """The sizes of all layers.

        Raises:
            HeterpsError: They are not given for that tensor-parallel degree.
        """
        if tensor_parallel not in self.sizes:
            raise HeterpsError(
                f"{self.name}: no layer sizes for tensor-parallel degree {tensor_parallel}; "
                f"known: {', '.join(map(str, sorted(self.sizes)))}"
            )
        return self.sizes[tensor_parallel]


class SailorLink(NamedTuple):
    """A link whose bandwidth depends on the message: a quadratic in log2 of its megabytes.

    Attributes:
        coefficients: Of log2 squared, log2 and 1; GB/s.
        max_bytes_per_s: Largest bandwidth that was measured; the fit may exceed it.
        latency_s: Of every message; the published fits have none.
    """

    coefficients: tuple[float, float, float]
    max_bytes_per_s: float
    latency_s: float = 0.0

    def send_s(self, num_bytes: float) -> float:
        """Seconds of one message.

        Raises:
            HeterpsError: The fit has no positive bandwidth for a message of that size.
        """
        if num_bytes == 0:
            return 0.0
        magnitude = math.log2(num_bytes / _MEGABYTE)
        square, linear, constant = self.coefficients
        gigabytes_per_s = square * magnitude**2 + linear * magnitude + constant
        if gigabytes_per_s <= 0:
            raise HeterpsError(
                f"the fit of a link gives {gigabytes_per_s:.3g} GB/s for {num_bytes:.0f} bytes"
            )
        return self.latency_s + num_bytes / _GIGABYTE / gigabytes_per_s


class SailorEnd(NamedTuple):
    """One end of a link: a GPU type, how many of its GPUs of one node take part, and their zone."""

    gpu: str
    num_gpus: int
    zone: str


@dataclass(frozen=True)
class SailorLinks:
    """The measured links between nodes."""

    source: str
    links: Mapping[tuple[SailorEnd, SailorEnd], SailorLink]

    def between(self, sender: SailorEnd, receiver: SailorEnd) -> SailorLink:
        """The link from one end to the other.

        Raises:
            HeterpsError: Nobody measured it. There is no default.
        """
        if (sender, receiver) not in self.links:
            raise HeterpsError(
                f"{self.source}: no link from {_described(sender)} to {_described(receiver)}"
            )
        return self.links[sender, receiver]


class SailorNodeType(NamedTuple):
    """One GPU type of a cluster."""

    gpus_per_node: int
    memory_bytes: int


@dataclass(frozen=True)
class SailorCluster:
    """GPU types by name, and the zone that they stand in."""

    zone: str
    node_types: Mapping[str, SailorNodeType]

    def node_type(self, gpu: str) -> SailorNodeType:
        """The node type of a GPU.

        Raises:
            UnknownNameError: The cluster has no such GPU.
        """
        if gpu not in self.node_types:
            raise UnknownNameError("GPU type", gpu, self.node_types)
        return self.node_types[gpu]


def load_model(profiles: PathLike, sizes: PathLike, name: str) -> SailorModel:
    """Reads one model from `profiles_tmp.json` and `llm_info.json`.

    Raises:
        UnknownNameError: The profiles have no such model.
        DocumentError: A file is malformed.
        HeterpsError: A file cannot be read.
    """
    models = Entry.from_json(profiles)
    if not models.has(name):
        raise UnknownNameError("model", name, map(str, models.mapping()))
    layer_sizes = _read_sizes(Entry.from_json(sizes)[name])
    num_layers = len(next(iter(layer_sizes.values())))
    return SailorModel(name, _read_times(models[name], num_layers), layer_sizes)


def load_links(path: PathLike) -> SailorLinks:
    """Reads `multizone_bandwidths_het.json`.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    table = Entry.from_json(path)
    return SailorLinks(
        os.fspath(path),
        {
            (sender, receiver): _read_link(pair)
            for sender, others in _ends(table)
            for receiver, pair in _ends(others)
        },
    )


def load_intra_node_links(path: PathLike) -> dict[tuple[str, int], SailorLink]:
    """Reads `intra_node_bandwidths.json`: the link inside a node by GPU type and number of GPUs.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    return {
        (gpu, whole_number_key(counts, count, "number of GPUs")): _read_link(pair)
        for gpu, counts in Entry.from_json(path).items()
        for count, pair in counts.items()
    }


def load_cluster(path: PathLike) -> SailorCluster:
    """Reads `basic_cluster_config.json`.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    top = Entry.from_json(path)
    node_types = {
        gpu: SailorNodeType(
            entry["gpus_per_node"].integer(minimum=1), entry["mem_per_gpu"].integer(minimum=1)
        )
        for gpu, entry in top.items()
        if gpu != "zone"
    }
    return SailorCluster(top["zone"].text(), node_types)


def _read_sizes(model: Entry) -> dict[int, tuple[SailorLayerSizes, ...]]:
    sizes = {
        whole_number_key(model, degree, "tensor-parallel degree"): tuple(
            SailorLayerSizes(
                layer["params_floats"].integer(),
                layer["act_output_floats"].integer(),
                layer["act_mem_floats"].integer(),
            )
            for layer in _in_order(layers)
        )
        for degree, layers in model.items()
    }
    if not sizes or len({len(layers) for layers in sizes.values()}) != 1:
        model.fail("every tensor-parallel degree must have the same layers")
    return sizes


def _read_times(model: Entry, num_layers: int) -> dict[SailorShape, tuple[SailorLayerTimes, ...]]:
    times = {}
    for gpu, batches in model.items():
        for batch, degrees in batches.items():
            size = whole_number_key(batches, batch, "micro-batch size")
            for degree, layers in degrees.items():
                width = whole_number_key(degrees, degree, "tensor-parallel degree")
                ordered = _in_order(layers)
                if len(ordered) != num_layers:
                    layers.fail(f"has {len(ordered)} layers, but the sizes have {num_layers}")
                times[SailorShape(gpu, size, width)] = tuple(
                    SailorLayerTimes(*layer.numbers(length=3)) for layer in ordered
                )
    return times


def _in_order(layers: Entry) -> list[Entry]:
    """The layers of a mapping from `"0"`, `"1"`, ... front to back; none may be missing."""
    num_layers = len(layers.mapping())
    if num_layers == 0:
        layers.fail("has no layers")
    return [layers[str(index)] for index in range(num_layers)]


def _ends(table: Entry) -> list[tuple[SailorEnd, Entry]]:
    """The three levels zone, GPU type and number of GPUs of a link table."""
    return [
        (SailorEnd(gpu, whole_number_key(counts, count, "number of GPUs"), zone), entry)
        for zone, gpus in table.items()
        for gpu, counts in gpus.items()
        for count, entry in counts.items()
    ]


def _read_link(pair: Entry) -> SailorLink:
    fit, largest = pair.entries(length=2)
    square, linear, constant = (entry.number(-math.inf) for entry in fit.entries(length=3))
    return SailorLink((square, linear, constant), largest.number(above=True))


def _described(end: SailorEnd) -> str:
    return f"{end.num_gpus} x {end.gpu} in {end.zone}"
