"""Our layers as HAP's: what each way of a layer takes on each of some devices, for a whole step.

Split over a tensor-parallel group, a layer of ours has its columns and rows, heads, experts or
vocabulary inside: it takes in what is whole and returns what is whole, with sums of its own. Which
of these it is, follows from the layer, as in the runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.devices import link_inside
from heterps_agents.systems.hap.chain import STATES, Chain, Instruction, Program, Term, Way
from heterps_agents.systems.hap.collectives import Rates, conversions, uniform_rates
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.problem import Problem

# What a rank has a part of, in the words of the paper; all else are columns, and rows behind them.
_WAYS: dict[str, Way] = {"experts": "split experts", "vocabulary": "split rows"}
TENSOR_WAYS: frozenset[str] = frozenset({"split columns", "split rows", "split experts"})


class SplitSeconds(NamedTuple):
    """(L, n) seconds of both passes of a micro-batch on each device of a group.

    Attributes:
        whole: Of all of the layer.
        fixed: Of what is not split.
        per_share: Of what is, for all of it.
        sums: (L,) of the sums over the group.
    """

    whole: Floats
    fixed: Floats
    per_share: Floats
    sums: Floats


def rates_of(problem: Problem, names: Sequence[str]) -> Rates:
    """Of collectives over some devices: measured where they are on one node, else by its link."""
    nodes = {problem.device_named[name].node for name in names}
    link = link_inside(problem, list(names)) or Link(latency_s=0, bandwidth_bytes_per_s=1e12)
    rates = uniform_rates(len(names), link)
    if len(nodes) > 1:
        return rates
    node = next(entry for entry in problem.cluster.nodes if entry.name in nodes)
    found = {kind: node.measured(kind, len(names)) for kind in rates.links}
    return rates._replace(links={kind: found[kind] or own for kind, own in rates.links.items()})


def split_seconds(problem: Problem, names: Sequence[str]) -> SplitSeconds:
    """What layers take on some devices as a group; a line through two shares and all of it."""
    n, kinds = len(names), [problem.class_of[name] for name in names]

    def seconds(own: Problem) -> Floats:
        return (own.tables.forward_s + own.tables.backward_s)[:, kinds]

    whole = seconds(problem)
    if n == 1:
        return SplitSeconds(whole, whole, np.zeros_like(whole), np.zeros(len(whole)))
    less, more = 0.5 / n, 1.5 / n
    few_s, many_s = (seconds(problem.at_degree(n, share)) for share in (less, more))
    per_share = np.clip((many_s - few_s) / (more - less), 0.0, whole)
    fixed = whole - per_share
    sums = np.clip(few_s - fixed - less * per_share, 0.0, None).max(axis=1)
    return SplitSeconds(whole, fixed, per_share, sums)


def tensor_way(split: TensorSplit | None) -> Way:
    """What a group does with a layer; what cannot be split is replicated."""
    return "replicate" if split is None else _WAYS.get(split.unit, "split columns")


def tensor_program(problem: Problem, names: Sequence[str]) -> Program:
    """All layers over one group, as the runtime carries them out."""
    seconds, num = split_seconds(problem, names), problem.job.num_micro_batches
    return tuple(
        _on_group(problem, names, index, seconds, num) for index in range(problem.tables.num_layers)
    )


def group_chain(problem: Problem, names: Sequence[str]) -> Chain:
    """Every layer over one group: split, whole on each of its devices, or by batch.

    As the runtime carries them out; the devices' memory counts.
    """
    n, num, nothing = len(names), problem.job.num_micro_batches, (0.0,) * len(names)
    seconds, limits = split_seconds(problem, names), problem.tables.memory_bytes
    by_batch = _by_batch(problem, names)
    layers: list[tuple[Instruction, ...]] = []
    for index, whole_s in enumerate(seconds.whole):
        own = _on_group(problem, names, index, seconds, num)
        ways = [own]
        if own.name in TENSOR_WAYS:
            took = Term(tuple((num * whole_s).tolist()), nothing)
            held = Term((_held_bytes(problem, 1, 1.0, index),) * n, nothing)
            ways.append(Instruction("replicate", index, "whole", "whole", 0, (took,), held))
        layers.append((*ways, by_batch[index]) if index in by_batch else tuple(ways))
    parts = np.array([own.terms[0].per_share for own, *_ in layers]).sum(axis=0)
    return Chain(
        tuple((1 / np.maximum(parts, 1e-15)).tolist()),
        tuple(layers),
        tuple(_borders(problem, names, by_batch)),
        (STATES,) * (len(layers) + 1),
        tuple(limits[[problem.class_of[name] for name in names]].tolist()),
    )


def splits_by_batch(problem: Problem, degree: int) -> list[int]:
    """Layers that a group of so many devices may split by batch.

    The last one is not: the loss reads what it returns for all samples.
    """
    if problem.job.schedule == "zero-bubble" or problem.job.micro_batch_size < degree:
        return []
    *layers, _ = problem.profile.layers
    return [
        index
        for index, layer in enumerate(layers)
        # Running statistics are of all samples of a batch.
        if layer.splits_by_batch is not False and not layer.buffer_bytes
    ]


def _by_batch(problem: Problem, names: Sequence[str]) -> dict[int, Instruction]:
    """Layers split by batch over a group: the gradients of each micro-batch are summed."""
    indices, num = splits_by_batch(problem, len(names)), problem.job.num_micro_batches
    if not indices or len(names) == 1:
        return {}
    kept = problem.keeping((), indices)
    seconds = split_seconds(kept, names)
    return {
        index: _on_group(kept, names, index, seconds, num)._replace(
            name="split batch", before="batch", after="batch"
        )
        for index in indices
    }


def _borders(
    problem: Problem, names: Sequence[str], by_batch: Collection[int]
) -> Iterator[tuple[Instruction, ...]]:
    """Between what is whole and what is by batch: an all-reduce on the way there or back."""
    rates, num = rates_of(problem, names), problem.job.num_micro_batches
    free = Instruction("take a part", -1, "whole", "batch", 0)
    yield (free,) if 0 in by_batch else ()
    for index, num_bytes in enumerate(problem.tables.output_bytes.tolist()):
        found = []
        sums = (rates.term("all-reduce", num_bytes).times(num),)
        if index + 1 in by_batch:
            found.append(Instruction("take a part", index, "whole", "batch", 0, sums))
        if index in by_batch:
            found.append(Instruction("all-reduce", index, "batch", "whole", 0, sums))
        yield tuple(found)


def whole_chain(problem: Problem, names: Sequence[str]) -> Chain:
    """Every way of every layer over some devices, with the collectives between them."""
    tables, rates, n = problem.tables, rates_of(problem, names), len(names)
    num, nothing = problem.job.num_micro_batches, (0.0,) * n
    seconds = split_seconds(problem, names)
    layers, borders = [], [tuple[Instruction, ...]()]
    for index, whole_s in enumerate(seconds.whole):
        took = tuple((num * whole_s).tolist())
        gradients = rates.term("all-reduce", float(tables.gradient_bytes[index]))
        ways = [
            Instruction("replicate", index, "whole", "whole", 0, (Term(took, nothing),)),
            Instruction(
                "split batch", index, "batch", "batch", 0, (Term(nothing, took), gradients)
            ),
        ]
        own = _on_group(problem, names, index, seconds, num)
        layers.append((*ways, own) if own.name in TENSOR_WAYS else tuple(ways))
        between = conversions(index, float(tables.output_bytes[index]), rates, 0)
        borders.append(
            tuple(e._replace(terms=tuple(t.times(num) for t in e.terms)) for e in between)
        )
    speeds = tuple((1 / np.maximum(seconds.whole.sum(axis=0), 1e-15)).tolist())
    return Chain(speeds, tuple(layers), tuple(borders), (STATES,) * len(borders))


def _on_group(
    problem: Problem, names: Sequence[str], index: int, seconds: SplitSeconds, num: int
) -> Instruction:
    """A layer over a group: seconds of a step, and bytes on each device."""
    n, split = len(names), split_at(problem.profile.layers[index], len(names))
    fixed, part = num * seconds.fixed[index], num * seconds.per_share[index]
    compute = Term(tuple(fixed.tolist()), tuple(part.tolist()))
    sums = Term((num * float(seconds.sums[index]),) * n, (0.0,) * n)
    least, most = (_held_bytes(problem, n, share, index) for share in (0.5 / n, 1.5 / n))
    per_share = max(n * (most - least), 0.0)
    memory = Term((max(least - 0.5 * per_share / n, 0.0),) * n, (per_share,) * n)
    name = tensor_way(split)
    return Instruction(name, index, "whole", "whole", 0, (compute, sums), memory)


def _held_bytes(problem: Problem, degree: int, share: float, index: int) -> float:
    """State, and what one micro-batch keeps."""
    tables = (problem.at_degree(degree, share) if degree > 1 else problem).tables
    return float(tables.state_bytes[index] + tables.activation_bytes[index])
