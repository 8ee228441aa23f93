"""Plans as blocks of lanes: what pipelines side by side and chains with replicas are both cases of.

A block is a range of layers, and its lanes hold all of it side by side, each cut in its own way,
on its own devices, with its own micro-batches. A plan of several pipelines is one block; a chain is
a block for each column, with a lane for each replica. The blocks of a plan cover the layers one
after the other, and a micro-batch takes one lane of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from heterps_configs.documents.plan import Bound, LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.options import Memory

# Of a tensor-parallel group its devices; most have one.
Group = tuple[str, ...]


class Part(NamedTuple):
    """Some layers of a lane.

    Attributes:
        stop: The layer behind the last.
        groups: Those that hold them; of several, each takes its turn.
        memory: What is done with activations.
    """

    stop: int
    groups: tuple[Group, ...]
    memory: Memory = "keep"


class Lane(NamedTuple):
    """A way through a block.

    Attributes:
        share: Micro-batches that take it.
        parts: From front to back.
    """

    share: int
    parts: tuple[Part, ...]


Block = tuple[Lane, ...]


class Weave(NamedTuple):
    """A plan.

    Attributes:
        blocks: From front to back.
        sharded: Layers whose optimizer state is divided among all that hold them.
    """

    blocks: tuple[Block, ...]
    sharded: frozenset[int] = frozenset()

    @property
    def starts(self) -> list[int]:
        """The first layer of each block, and the number of layers."""
        return [0, *(block[0].parts[-1].stop for block in self.blocks)]

    @property
    def groups(self) -> list[Group]:
        """All groups of devices that it uses."""
        lanes = (lane for block in self.blocks for lane in block)
        return [group for lane in lanes for part in lane.parts for group in part.groups]


def with_micro_batches(weave: Weave, total: int) -> Weave | None:
    """The lanes with another number of micro-batches, shared as before as nearly as can be.

    None where they are fewer than lanes.
    """
    blocks = []
    for block in weave.blocks:
        if len(block) > total:
            return None
        before = sum(lane.share for lane in block)
        exact = [lane.share * total / before for lane in block]
        shares = [max(1, int(share)) for share in exact]
        while (left := total - sum(shares)) != 0:
            step = 1 if left > 0 else -1
            open_ = [at for at, share in enumerate(shares) if share + step > 0]
            shares[max(open_, key=lambda at: step * (exact[at] - shares[at]))] += step
        blocks.append(
            tuple(lane._replace(share=own) for lane, own in zip(block, shares, strict=True))
        )
    return weave._replace(blocks=tuple(blocks))


def plan_of_weave(weave: Weave, like: Plan) -> Plan:
    """The plan; unchecked, for the simulator.

    Args:
        weave: Its blocks.
        like: Another plan for the same problem.
    """
    stages, ways = list[Stage](), list[list[tuple[str, ...]]]()
    for number, (block, first) in enumerate(zip(weave.blocks, weave.starts, strict=False)):
        own = list[tuple[list[list[str]], int]]()
        for index, lane in enumerate(block):
            columns = list(_columns(lane, first, _prefix(weave, number, index)))
            stages += [stage for column in columns for stage in column]
            own.append(([[stage.name for stage in column] for column in columns], lane.share))
        ways.append(_in_turn(own))
    routes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for micro_batch, parts in enumerate(zip(*ways, strict=True)):
        routes[tuple(name for part in parts for name in part)].append(micro_batch)
    pipelines = tuple(
        Pipeline.unchecked(stages=route, micro_batches=tuple(own)) for route, own in routes.items()
    )
    # With fewer micro-batches than replicas some of these get none, and are left out.
    used = set(chain.from_iterable(routes))
    stages = [stage for stage in stages if stage.name in used]
    return like.changed_unchecked(
        stages=tuple(stages),
        pipelines=pipelines,
        sharded_state=LayerRange.all_of(weave.sharded & _held_twice(stages)),
        overlaps_reduce=None,
        bound=Bound(),
        executable_bound=Bound(),
        predicted_step_time_s=None,
    )


def _held_twice(stages: Iterable[Stage]) -> set[int]:
    """Layers that several groups hold."""
    held = Counter(layer for stage in stages for layer in stage.layers)
    return {layer for layer, count in held.items() if count > 1}


def _prefix(weave: Weave, number: int, lane: int) -> str:
    block = f"b{number}" if len(weave.blocks) > 1 else ""
    return block + (f"p{lane}" if len(weave.blocks[number]) > 1 else "")


def _columns(lane: Lane, first: int, prefix: str) -> Sequence[list[Stage]]:
    columns = []
    for index, part in enumerate(lane.parts):
        layers = tuple(range(first, part.stop))
        columns.append(
            [
                Stage.unchecked(
                    name=f"{prefix}s{index}" + (f"r{turn}" if len(part.groups) > 1 else ""),
                    first_layer=first,
                    last_layer=part.stop - 1,
                    devices=group,
                    recompute_layers=layers if part.memory == "recompute" else (),
                    offloaded_layers=layers if part.memory == "offload" else (),
                )
                for turn, group in enumerate(part.groups)
            ]
        )
        first = part.stop
    return columns


def _in_turn(lanes: Sequence[tuple[list[list[str]], int]]) -> list[tuple[str, ...]]:
    """For each micro-batch the stages that it takes: of lanes, as evenly as their shares are."""
    turns = sorted(
        ((turn + 0.5) / share, index, turn)
        for index, (_, share) in enumerate(lanes)
        for turn in range(share)
    )
    return [
        tuple(column[turn % len(column)] for column in lanes[index][0]) for _, index, turn in turns
    ]


def weave_of_plan(plan: Plan) -> Weave | None:
    """A plan as blocks of lanes; None where it cannot be one.

    That is where lanes share a stage, a stage computes only some of its layers again, or a group
    splits its layers unevenly.
    """
    stages = {stage.name: stage for stage in plan.stages}
    if not all(map(_is_even, plan.stages)):
        return None
    inside = {edge for stage in plan.stages for edge in stage.layers if edge > stage.first_layer}
    edges = [edge for edge in range(plan.num_layers + 1) if edge not in inside]
    ways = [_ways_through(plan, stages, first, stop) for first, stop in pairwise(edges)]
    blocks = list[dict[tuple[str, ...], tuple[int, ...]]]()
    for own in ways:
        if blocks and len(own) > 1 and sorted(blocks[-1].values()) == sorted(own.values()):
            # Each lane goes on in a lane of its own: they are one.
            following = {taken: names for names, taken in own.items()}
            blocks[-1] = {(*names, *following[taken]): taken for names, taken in blocks[-1].items()}
        else:
            blocks.append(own)
    for block in blocks:
        names = [name for way in block for name in way]
        if len(set(names)) < len(names):
            return None
    return Weave(
        tuple(
            tuple(
                Lane(len(taken), tuple(_part(stages[name]) for name in names))
                for names, taken in sorted(block.items(), key=lambda entry: entry[1])
            )
            for block in blocks
        ),
        plan.sharded_layers,
    )


def _ways_through(
    plan: Plan, stages: dict[str, Stage], first: int, stop: int
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The stages that routes take of some layers, and the micro-batches that take them."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for pipeline in plan.pipelines:
        own = tuple(name for name in pipeline.stages if first <= stages[name].first_layer < stop)
        found[own] += pipeline.micro_batches
    return {names: tuple(sorted(taken)) for names, taken in found.items()}


def _is_even(stage: Stage) -> bool:
    special = stage.recompute_layers, stage.offloaded_layers
    is_whole = all(len(layers) in (0, len(stage.layers)) for layers in special)
    return is_whole and not stage.uneven_shares and not stage.unsplit_layers


def _part(stage: Stage) -> Part:
    memory: Memory = "keep"
    if stage.recompute_layers:
        memory = "recompute"
    if stage.offloaded_layers:
        memory = "offload"
    return Part(stage.last_layer + 1, (stage.devices,), memory)
