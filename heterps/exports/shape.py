"""What most targets ask of a plan: one chain of stages, equal replicas, whole blocks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError

# A block of a stack, as modules are named: `model.layers.7`.
_BLOCK = re.compile(r"(?P<stack>.+)\.(?P<number>\d+)")


class Chain(NamedTuple):
    """Stages from front to back, and how often the whole chain is there.

    Attributes:
        stages: Of the first replica.
        num_replicas: Chains with the same cuts and degrees.
    """

    stages: tuple[Stage, ...]
    num_replicas: int


@dataclass(frozen=True)
class Blocks:
    """The stack of equal blocks that a model mostly is.

    Attributes:
        stack: Module path of its list, such as `model.layers`.
        number: For each layer of the profile the number of its block; None: it stands before or
            behind them.
    """

    stack: str
    number: tuple[int | None, ...]

    def __len__(self) -> int:
        """How many there are."""
        return sum(number is not None for number in self.number)


def first_chain(plan: Plan) -> tuple[Stage, ...]:
    """The stages of the plan's first pipeline."""
    return tuple(plan.stage(name) for name in plan.pipelines[0].stages)


def equal_chains(plan: Plan, target: str) -> Chain:
    """The plan as equal chains, where it is that.

    Args:
        plan: Any.
        target: For the message.

    Raises:
        HeterpsError: Its pipelines share stages, or differ in cuts, degrees or micro-batches.
    """
    chains = [tuple(plan.stage(name) for name in p.stages) for p in plan.pipelines]
    used = Counter(name for pipeline in plan.pipelines for name in pipeline.stages)
    shared = [name for name, count in used.items() if count > 1]
    if shared:
        raise HeterpsError(
            f"{target}: stage {shared[0]} is part of {used[shared[0]]} pipelines of the plan; "
            "each of its pipelines has stages of its own"
        )
    shapes = {
        (tuple((s.first_layer, s.last_layer, s.split) for s in chain), len(p.micro_batches))
        for chain, p in zip(chains, plan.pipelines, strict=True)
    }
    if len(shapes) > 1:
        raise HeterpsError(
            f"{target}: the plan's {len(chains)} pipelines differ in cuts, degrees or micro-"
            "batches; all of its pipelines are the same"
        )
    return Chain(chains[0], len(chains))


def equal_degree(chain: Chain, target: str) -> int:
    """Devices of each stage.

    Raises:
        HeterpsError: They differ, share a stage unevenly, or do not split all layers.
    """
    degrees = sorted({stage.degree for stage in chain.stages})
    if len(degrees) > 1:
        raise HeterpsError(
            f"{target}: stages have {' and '.join(map(str, degrees))} devices; it splits all of "
            "them by one degree (`heterps place --tensor-parallel N` finds such a plan)"
        )
    uneven = [stage.name for stage in chain.stages if stage.uneven_shares]
    if uneven:
        raise HeterpsError(f"{target}: stage {uneven[0]} is split unevenly; it splits evenly")
    whole = [stage.name for stage in chain.stages if stage.unsplit_layers]
    if whole:
        raise HeterpsError(
            f"{target}: the group of stage {whole[0]} does not split all of its layers; it splits "
            "all that can be split"
        )
    return degrees[0]


def pipeline_ranks(chain: Chain, target: str) -> int:
    """Ranks of a pipeline: several stages on one, in turns, are its virtual stages.

    Raises:
        HeterpsError: Devices do not take their stages in turns.
    """
    groups = [stage.devices for stage in chain.stages]
    size = len(set(groups))
    if len(groups) % size or any(group != groups[i % size] for i, group in enumerate(groups)):
        raise HeterpsError(
            f"{target}: devices do not take their stages in turns, equally many each"
        )
    return size


def check_micro_batches(plan: Plan, target: str) -> None:
    """Refuses micro-batches of several sizes.

    Raises:
        HeterpsError: There are such.
    """
    if len(set(plan.job.micro_batch_sizes)) > 1:
        raise HeterpsError(f"{target}: micro-batches have unequal sizes; it knows one")


def blocks_of(profile: ModelProfile, target: str) -> Blocks:
    """The model's stack of blocks.

    Raises:
        HeterpsError: It has none, several, or a layer that is several blocks.
    """
    found: list[tuple[str, int] | None] = []
    for layer in profile.layers:
        matches = [m for part in layer.name.split("+") if (m := _BLOCK.fullmatch(part))]
        found.append((matches[0]["stack"], int(matches[0]["number"])) if matches else None)
    stacks = Counter(entry[0] for entry in found if entry)
    stack = next(iter(dict(stacks.most_common(1))), "")
    numbers = tuple(entry[1] if entry and entry[0] == stack else None for entry in found)
    own = [number for number in numbers if number is not None]
    if len(stacks) != 1 or own != list(range(len(own))) or len(own) < 2:
        raise HeterpsError(
            f"{target}: {profile.name} is not one stack of blocks with something before and behind "
            "it, which is all that it takes"
        )
    return Blocks(stack, numbers)


def blocks_of_stages(stages: tuple[Stage, ...], blocks: Blocks) -> list[list[int]]:
    """The numbers of the blocks on each stage."""
    return [[n for i in stage.layers if (n := blocks.number[i]) is not None] for stage in stages]


def devices_by_rank(plan: Plan) -> list[str]:
    """Devices as most tools count them: tensor groups first, then replicas, then stages.

    Of stages that a device takes in turns, the first one counts.
    """
    chains = [[plan.stage(name) for name in pipeline.stages] for pipeline in plan.pipelines]
    in_order = [name for across in zip(*chains, strict=True) for s in across for name in s.devices]
    return list(dict.fromkeys(in_order))
