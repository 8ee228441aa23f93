"""The ways to run a stage: GPU type and degree, with their seconds, bytes, loads and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heterps_agents.systems.sailor.cost import (
    FLOAT_BYTES,
    STATE_BYTES_PER_PARAMETER,
    message_s,
    runtime_bytes,
)
from heterps_agents.systems.sailor.goal import SailorGoal
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorCluster, SailorLinks, SailorModel, SailorShape
from heterps_configs.importers.sailor_runs import SailorGroup
from heterps_envs.arrays import Floats, Integers

# Of a bisection, whose lower end counts.
_HALVINGS = 50


@dataclass(frozen=True)
class Options:
    """The ways to run a stage with one micro-batch size: O pairs of GPU type and degree.

    Attributes:
        names: (O,) GPU type and tensor-parallel degree.
        types: (O,) index of the GPU type.
        degrees: (O,) tensor-parallel degree.
        num_gpus: (O,) GPUs of the option's type.
        usd_per_s: (types,) of one GPU.
        compute_s: (O, L + 1) seconds of all layers before a cut.
        update_s: (O, L) optimizer step of each layer.
        to_next_s: See `PipelineTables`.
        to_before_s: See `PipelineTables`.
        state_bytes: See `PipelineTables`.
        flight_bytes: See `PipelineTables`.
        room_bytes: See `PipelineTables`.
    """

    zone: str
    micro_batch_size: int
    names: tuple[tuple[str, int], ...]
    types: Integers
    degrees: Integers
    num_gpus: Integers
    usd_per_s: Floats
    compute_s: Floats
    update_s: Floats
    to_next_s: Floats
    to_before_s: Floats
    state_bytes: Floats
    flight_bytes: Floats
    room_bytes: Floats

    @classmethod
    def of(
        cls,
        model: SailorModel,
        cluster: SailorCluster,
        links: SailorLinks,
        num_gpus: Mapping[str, int],
        micro_batch_size: int,
        names: Sequence[tuple[str, int]],
        goal: SailorGoal = SailorGoal(),
    ) -> Options:
        """The options of the given names, see `option_names`."""
        gpus = sorted({gpu for gpu, _ in names})
        groups = [SailorGroup(gpu, degree, cluster.zone) for gpu, degree in names]
        times = [
            model.layer_times(SailorShape(gpu, micro_batch_size, degree)) for gpu, degree in names
        ]
        sizes = [model.layer_sizes(degree) for _, degree in names]
        forward, backward = _messages(model, links, groups, micro_batch_size)
        return cls(
            cluster.zone,
            micro_batch_size,
            tuple(names),
            np.array([gpus.index(gpu) for gpu, _ in names], np.int64),
            np.array([degree for _, degree in names], np.int64),
            np.array([num_gpus[gpu] for gpu, _ in names], np.int64),
            np.array([goal.usd_per_s(gpu) for gpu in gpus]),
            _prefix([[layer.forward_s + layer.backward_s for layer in rows] for rows in times]),
            np.array([[layer.update_s for layer in rows] for rows in times]),
            forward,
            backward,
            STATE_BYTES_PER_PARAMETER
            * _prefix([[layer.parameters for layer in rows] for rows in sizes]),
            FLOAT_BYTES
            * micro_batch_size
            * _prefix([[layer.activation_memory for layer in rows] for rows in sizes]),
            np.array(
                [
                    cluster.node_type(gpu).memory_bytes - runtime_bytes(degree)
                    for gpu, degree in names
                ]
            ),
        )

    @cached_property
    def least_send_s(self) -> Floats:
        """(O,) seconds that a stage of several spends on messages at least."""
        inner = slice(1, -1)
        least = np.minimum(self.to_next_s[:, :, inner], self.to_before_s[:, :, inner])
        return np.asarray(least.min(axis=(1, 2)), np.float64)

    @cached_property
    def slowness(self) -> Floats:
        """(O,) how much longer an option takes for most layers than the first option.

        1 where that cannot be told: any factors give a bound, good ones prune.
        """
        seconds = np.diff(self.compute_s)
        measured = seconds[0] > 0
        if not measured.any():
            return np.ones(len(seconds))
        ratios = np.median(seconds[:, measured] / seconds[0, measured], axis=1)
        return np.asarray(np.where(ratios > 0, ratios, 1.0), np.float64)

    @cached_property
    def load(self) -> Floats:
        """(L + 1,) of all layers before a cut: a layer takes at least slowness times its load."""
        load: Floats = (np.diff(self.compute_s) / self.slowness[:, None]).min(axis=0)
        return np.concatenate(([0.0], np.cumsum(load)))

    @cached_property
    def least_s(self) -> Floats:
        """(L + 1,) compute of all layers before a cut, each on its fastest option."""
        least: Floats = np.diff(self.compute_s).min(axis=0)
        return np.concatenate(([0.0], np.cumsum(least)))

    @cached_property
    def speed(self) -> Floats:
        """(types,) load that one GPU gets through in a second."""
        most: Floats = np.zeros(len(self.usd_per_s))
        np.maximum.at(most, self.types, 1 / (self.slowness * self.degrees))
        return most

    @cached_property
    def least_usd_per_load(self) -> float:
        """What a second of load costs at least, with GPUs that never wait."""
        return float((self.usd_per_s[self.types] * self.slowness * self.degrees).min())

    def load_per_gpu(self, bottleneck_s: Floats) -> Floats:
        """(..., types) load that one GPU can carry at most if no stage takes longer."""
        room_s = np.maximum(bottleneck_s[..., None] - self.least_send_s, 0)
        most = room_s / (self.slowness * self.degrees)
        kinds = range(len(self.usd_per_s))
        return np.stack([most[..., self.types == kind].max(axis=-1) for kind in kinds], axis=-1)

    def least_bottleneck_s(self, counts: Integers) -> Floats:
        """(...) at which so many GPUs (..., types) can just carry the load, from below."""
        load = float(self.load[-1])
        high_s = float(self.least_send_s.max() + self.compute_s[:, -1].max())
        if not math.isfinite(high_s):
            return np.zeros(counts.shape[:-1])
        low, high = np.zeros(counts.shape[:-1]), np.full(counts.shape[:-1], high_s)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_short = (counts * self.load_per_gpu(middle)).sum(axis=-1) < load
            low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
        return low

    def gpus_per_replica(self, replicas: int) -> Integers:
        """(types,) GPUs of each type that one replica of the pipeline can have, and make use of."""
        counts, widest = np.zeros((2, len(self.usd_per_s)), np.int64)
        counts[self.types] = self.num_gpus // replicas
        np.maximum.at(widest, self.types, self.degrees)
        return np.asarray(np.minimum(counts, widest * (self.compute_s.shape[1] - 1)), np.int64)


def option_names(
    model: SailorModel,
    cluster: SailorCluster,
    num_gpus: Mapping[str, int],
    micro_batch_size: int,
    tensor_parallel: Sequence[int] | None = None,
) -> list[tuple[str, int]]:
    """Every GPU type and degree that was profiled, is allowed, and divides a node."""
    return sorted(
        (shape.gpu, shape.tensor_parallel)
        for shape in model.times
        if shape.micro_batch_size == micro_batch_size
        and num_gpus.get(shape.gpu, 0) >= shape.tensor_parallel
        and shape.tensor_parallel in model.sizes
        and (tensor_parallel is None or shape.tensor_parallel in tensor_parallel)
        and cluster.node_type(shape.gpu).gpus_per_node % shape.tensor_parallel == 0
    )


def _prefix(rows: Sequence[Sequence[float] | Floats]) -> Floats:
    values = np.array(rows, np.float64)
    return np.concatenate((np.zeros((len(values), 1)), np.cumsum(values, axis=1)), axis=1)


def _messages(
    model: SailorModel, links: SailorLinks, groups: Sequence[SailorGroup], size: int
) -> tuple[Floats, Floats]:
    """Seconds to the stage behind and to the stage before, by option, neighbour and cut."""
    shape = (len(groups), len(groups), model.num_layers + 1)
    seconds = np.full(shape, math.inf)
    for sender, group in enumerate(groups):
        outputs = [layer.output for layer in model.layer_sizes(group.tensor_parallel)]
        for receiver, other in enumerate(groups):
            known: dict[int, float] = {}
            for cut in range(1, model.num_layers):
                output = outputs[cut - 1]
                if output not in known:
                    known[output] = _seconds_or_never(model, links, group, other, size, cut)
                seconds[sender, receiver, cut] = known[output]
    # A gradient is as large as the activations that its sender would send over the same cut.
    return seconds, seconds


def _seconds_or_never(
    model: SailorModel,
    links: SailorLinks,
    sender: SailorGroup,
    receiver: SailorGroup,
    size: int,
    cut: int,
) -> float:
    """A link that nobody measured is not used."""
    try:
        return message_s(model, links, sender, receiver, size, cut)
    except HeterpsError:
        return math.inf
