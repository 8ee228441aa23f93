"""What the planner for Sailor's cost looks up: options of a stage, seconds, bytes and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_agents.systems.sailor.cost import (
    FLOAT_BYTES,
    SHORT_PIPELINE,
    STATE_BYTES_PER_PARAMETER,
    all_reduce_s,
    message_s,
    runtime_bytes,
)
from heterps_agents.systems.sailor.kernels import PipelineTables
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorCluster, SailorLinks, SailorModel, SailorShape
from heterps_configs.importers.sailor_runs import SailorGroup
from heterps_envs.arrays import Floats, Integers

# Bottleneck, slowest optimizer step of a layer, longest all-reduce; seconds.
Extremes = tuple[float, float, float]

_HALVINGS = 50


@dataclass(frozen=True)
class Options:
    """The ways to run a stage with one micro-batch size: O pairs of GPU type and degree.

    Attributes:
        names: (O,) GPU type and tensor-parallel degree.
        types: (O,) index of the GPU type.
        degrees: (O,) tensor-parallel degree.
        num_gpus: (O,) GPUs of the option's type.
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

    @property
    def least_send_s(self) -> Floats:
        """(O,) seconds that a stage of several spends on messages at least."""
        inner = slice(1, -1)
        least = np.minimum(self.to_next_s[:, :, inner], self.to_before_s[:, :, inner])
        return np.asarray(least.min(axis=(1, 2)), np.float64)

    @property
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

    @property
    def load(self) -> Floats:
        """(L + 1,) of all layers before a cut: a layer takes at least slowness times its load."""
        load: Floats = (np.diff(self.compute_s) / self.slowness[:, None]).min(axis=0)
        return np.concatenate(([0.0], np.cumsum(load)))

    @property
    def least_s(self) -> Floats:
        """(L + 1,) compute of all layers before a cut, each on its fastest option."""
        least: Floats = np.diff(self.compute_s).min(axis=0)
        return np.concatenate(([0.0], np.cumsum(least)))

    def load_per_gpu(self, bottleneck_s: float) -> Floats:
        """(types,) load that one GPU can carry at most if no stage takes longer."""
        room_s = np.maximum(bottleneck_s - self.least_send_s, 0)
        most: Floats = np.zeros(int(self.types.max()) + 1)
        np.maximum.at(most, self.types, room_s / (self.slowness * self.degrees))
        return most

    def num_states(self, replicas: int) -> int:
        """How many states a sweep over all numbers of stages has at most."""
        counts = self.gpus_per_replica(replicas)
        num_options, width = self.compute_s.shape
        stages = min(width - 1, int(counts.sum())) + 1
        pipelines = math.prod(int(count) + 1 for count in counts)
        return int(pipelines * width * num_options**2 * stages)

    def gpus_per_replica(self, replicas: int) -> Integers:
        """(types,) GPUs of each type that one replica of the pipeline can have."""
        counts = np.zeros(self.types.max() + 1, np.int64)
        counts[self.types] = self.num_gpus // replicas
        return counts


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


@dataclass(frozen=True)
class Case:
    """One micro-batch size and number of replicas.

    Attributes:
        rounds: Micro-batches of a replica, less one.
        load: See `Options.load`.
        left: (S, types) GPUs of a replica that are not used.
        least: No pipeline of two stages or more is below.
        most: None is above.
    """

    options: Options
    tables: PipelineTables
    micro_batch_size: int
    replicas: int
    rounds: int
    load: Floats
    left: Integers
    least: Extremes
    most: Extremes

    @property
    def weights(self) -> Extremes:
        """How often each of the extremes counts in an iteration."""
        return float(self.rounds), 1.0, 1.0

    def bound_s(self, extremes: Extremes) -> float:
        """What the extremes add to the iteration."""
        return self.rounds * extremes[0] + extremes[1] + extremes[2]

    def coverable(self, bottleneck_s: float) -> Floats:
        """(S,) load that the GPUs left can carry at most."""
        # A little more, so that rounding refuses nothing.
        return np.asarray(self.left @ self.options.load_per_gpu(bottleneck_s) * (1 + 1e-9))

    def extremes(self, stages: Integers) -> Extremes:
        """Bottleneck, optimizer step and all-reduce of a pipeline (rows: option, first, end)."""
        tables, last = self.tables, len(stages) - 1
        slowest = update_s = reduce_s = 0.0
        for row, (option, first, end) in enumerate(stages):
            seconds = tables.compute_s[option, end] - tables.compute_s[option, first]
            if row < last:
                twice = 2 if row == 0 and len(stages) > SHORT_PIPELINE else 1
                seconds += twice * tables.to_next_s[option, stages[row + 1][0], end]
            if row:
                twice = 2 if row == last else 1
                seconds += twice * tables.to_before_s[option, stages[row - 1][0], first]
            slowest = max(slowest, float(seconds))
            update_s = max(update_s, float(tables.update_s[option, first, end]))
            reduce_s = max(reduce_s, float(tables.reduce_s[option, first, end]))
        return slowest, update_s, reduce_s


def case_bound(options: Options, replicas: int, rounds: int) -> float:
    """Seconds that no pipeline of two stages or more stays below."""
    return rounds * _least_bottleneck_s(options, replicas) + float(options.least_s[-1])


def make_case(
    model: SailorModel, links: SailorLinks, options: Options, replicas: int, rounds: int
) -> Case:
    """Tables and limits of one micro-batch size and number of replicas."""
    counts = options.gpus_per_replica(replicas)
    strides = np.concatenate(([1], np.cumprod(counts + 1)))
    used = np.arange(strides[-1])[:, None] // strides[:-1] % (counts + 1)
    step = strides[:-1][options.types] * options.degrees
    enough = used[:, options.types] + options.degrees <= counts[options.types]
    reached = np.where(enough, np.arange(strides[-1])[:, None] + step, -1)
    update_s, reduce_s = _updates(options), _reduces(model, links, options, replicas)
    tables = PipelineTables(
        options.compute_s,
        options.to_next_s,
        options.to_before_s,
        update_s,
        reduce_s,
        options.state_bytes,
        options.flight_bytes,
        options.room_bytes,
        reached.astype(np.int64),
        step.astype(np.int64),
        options.least_s,
        int(min(model.num_layers, counts.sum())),
    )
    sends = options.to_next_s, options.to_before_s
    slowest_send_s = max(float(send[np.isfinite(send)].max(initial=0.0)) for send in sends)
    return Case(
        options,
        tables,
        options.micro_batch_size,
        replicas,
        rounds,
        options.load,
        (counts - used).astype(np.int64),
        (_least_bottleneck_s(options, replicas), _least_of(update_s), _least_of(reduce_s)),
        (
            float(options.compute_s[:, -1].max()) + 2 * slowest_send_s,
            _largest_of(update_s),
            _largest_of(reduce_s),
        ),
    )


def _least_bottleneck_s(options: Options, replicas: int) -> float:
    """The bottleneck at which the GPUs of a replica can just carry the load, from below."""
    counts = options.gpus_per_replica(replicas)
    load = float(options.load[-1])
    low, high = 0.0, float(options.least_send_s.max() + options.compute_s[:, -1].max())
    if not counts.any() or not math.isfinite(high):
        return math.inf if not counts.any() else 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(counts @ options.load_per_gpu(middle)) < load:
            low = middle
        else:
            high = middle
    return low


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


def _updates(options: Options) -> Floats:
    """(O, L + 1, L + 1) slowest optimizer step of a range of layers."""
    num_options, num_layers = options.update_s.shape
    updates = np.full((num_options, num_layers + 1, num_layers + 1), math.inf)
    for first in range(num_layers):
        running = np.maximum.accumulate(options.update_s[:, first:], axis=1)
        updates[:, first, first + 1 :] = running
    return updates


def _reduces(model: SailorModel, links: SailorLinks, options: Options, replicas: int) -> Floats:
    """(O, L + 1, L + 1) gradient all-reduce of a range of layers."""
    num_layers = model.num_layers
    reduces = np.full((len(options.names), num_layers + 1, num_layers + 1), math.inf)
    for option, (gpu, degree) in enumerate(options.names):
        groups = (SailorGroup(gpu, degree, options.zone),) * replicas
        parameters = [layer.parameters for layer in model.layer_sizes(degree)]
        known: dict[int, float] = {}
        for first in range(num_layers):
            total = 0
            for end in range(first + 1, num_layers + 1):
                total += parameters[end - 1]
                if total not in known:
                    known[total] = _reduce_or_never(links, groups, total * FLOAT_BYTES)
                reduces[option, first, end] = known[total]
    return reduces


def _least_of(table: Floats) -> float:
    """Of every plan: some stage holds the layer whose least value is largest."""
    num_layers = table.shape[1] - 1
    alone = table[:, np.arange(num_layers), np.arange(1, num_layers + 1)]
    return float(alone.min(axis=0).max())


def _largest_of(table: Floats) -> float:
    return float(table[np.isfinite(table)].max(initial=0.0))


def _reduce_or_never(
    links: SailorLinks, groups: tuple[SailorGroup, ...], num_bytes: float
) -> float:
    try:
        return all_reduce_s(links, groups, num_bytes)
    except HeterpsError:
        return math.inf
