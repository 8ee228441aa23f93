"""Chains of columns on named devices, and the stages and routes of a plan that they stand for.

A chain is a set of pipelines that share stages. Its columns are its layer ranges from front to
back; a column holds the replicas of its range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from heterps_configs.documents.plan import Pipeline
from heterps_configs.documents.stage import Stage


class Column(NamedTuple):
    """A range of layers, both ends included, and the devices that hold it.

    Attributes:
        recompute_layers: As those of the stages.
        degree: Devices that follow each other and hold a replica together.
    """

    first_layer: int
    last_layer: int
    devices: tuple[str, ...]
    recompute_layers: tuple[int, ...] = ()
    degree: int = 1

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The devices of each replica."""
        starts = range(0, len(self.devices), self.degree)
        return [self.devices[start : start + self.degree] for start in starts]


Chain = tuple[Column, ...]


def routed(
    chains: Sequence[Chain],
    shares: Sequence[Sequence[int]],
    turns: Sequence[Sequence[Sequence[int]]] | None = None,
) -> tuple[tuple[Stage, ...], tuple[Pipeline, ...]]:
    """Stages and pipelines of chains.

    Args:
        chains: Whole ones.
        shares: Micro-batches of each chain.
        turns: For each chain and column, which replica takes each micro-batch of the chain; by
            default micro-batch m of the step goes to replica `m mod replicas`.
    """
    # By device and layers, because chains that are cut differently may share a stage.
    stages: dict[tuple[str, int, int], Stage] = {}
    routes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, (chain, share) in enumerate(zip(chains, shares, strict=True)):
        prefix = f"p{number}" if len(chains) > 1 else ""
        own = [_stages(chain, index, prefix) for index in range(len(chain))]
        for position, micro_batch in enumerate(share):
            used = [
                column[turns[number][index][position] if turns else micro_batch % len(column)]
                for index, column in enumerate(own)
            ]
            keys = [(stage.devices[0], stage.first_layer, stage.last_layer) for stage in used]
            for key, stage in zip(keys, used, strict=True):
                stages.setdefault(key, stage)
            routes[tuple(stages[key].name for key in keys)].append(micro_batch)
    pipelines = (
        Pipeline(stages=names, micro_batches=tuple(share)) for names, share in routes.items()
    )
    return tuple(stages.values()), tuple(pipelines)


def _stages(chain: Chain, index: int, prefix: str) -> list[Stage]:
    column = chain[index]
    return [
        Stage(
            name=f"{prefix}s{index}" + (f"r{replica}" if len(column.groups) > 1 else ""),
            first_layer=column.first_layer,
            last_layer=column.last_layer,
            devices=group,
            recompute_layers=column.recompute_layers,
        )
        for replica, group in enumerate(column.groups)
    ]
