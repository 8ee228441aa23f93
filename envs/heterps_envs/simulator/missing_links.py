"""Where a plan sends a message between devices that cannot talk to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.problem import Problem
from heterps_envs.schedule.reduce_buckets import reduce_buckets


def missing_links(problem: Problem, plan: Plan) -> list[str]:
    """One line for each pair of devices without a link that a plan needs, and what for."""
    return [
        f"link: there is none from {' to '.join(pair)} ({why})"
        for pair, why in unlinked_pairs(problem, plan).items()
    ]


def unlinked_pairs(problem: Problem, plan: Plan) -> dict[tuple[str, str], str]:
    """From which device to which a plan needs a link that there is none of, and what for."""
    if not problem.cluster.lacks_links:
        return {}
    reasons: dict[tuple[str, str], str] = {}
    for pipeline in plan.pipelines:
        for first, second in pairwise(map(plan.stage, pipeline.stages)):
            for a in first.devices:
                for b in second.devices:
                    reasons.setdefault((a, b), f"stages {first.name} and {second.name}")
                    reasons.setdefault((b, a), f"stages {first.name} and {second.name}")
    for stage in plan.stages:
        for pair in _ring(stage.devices) if _exchanges(problem, stage) else ():
            reasons.setdefault(pair, f"the group of stage {stage.name}")
    for bucket in reduce_buckets(problem, plan):
        for pair in _ring(bucket.devices):
            reasons.setdefault(pair, "sums of gradients")
    return {
        pair: why
        for pair, why in reasons.items()
        if pair[0] != pair[1] and not problem.link(*pair).is_there
    }


def _ring(devices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """From each device to the next one, as sums go."""
    return zip(devices, (*devices[1:], *devices[:1]), strict=True)


def _exchanges(problem: Problem, stage: Stage) -> bool:
    """Whether the devices of a stage exchange anything: it may have no layer that they divide."""
    divided = set(stage.layers) - set(stage.whole_layers)
    splits = [split_at(problem.profile.layers[index], stage.degree) for index in divided]
    return bool(stage.batch_layers) or any(
        split is not None and (split.forward_sums or split.backward_sums) for split in splits
    )
