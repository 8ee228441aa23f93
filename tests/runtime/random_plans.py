"""Random valid plans: routes, shared stages, replicas, depths, unequal sizes, recompute."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from tests.runtime.small_runs import DEVICES, plan_of

# Samples of each micro-batch. Fewest first, so that a failing plan shrinks to a small one.
SIZES: tuple[tuple[int, ...], ...] = ((4, 4), (4, 4, 2), (3, 1, 4, 2), (1, 4, 1, 1, 3, 2))


class Routes(NamedTuple):
    """Stages (first layer, last layer, device) by name, and the micro-batches of each pipeline."""

    stages: dict[str, tuple[int, int, str]]
    pipelines: dict[tuple[str, ...], Sequence[int]]


@st.composite
def routes(draw: st.DrawFn, num_layers: int, num_micro_batches: int) -> Routes:
    """Any cuts, any devices; some stages are shared between pipelines, others overlap."""
    stages: dict[str, tuple[int, int, str]] = {}
    pipelines: dict[tuple[str, ...], list[int]] = {}
    devices = draw(st.permutations(DEVICES))[: draw(st.integers(1, 4))]
    num_pipelines = draw(st.integers(1, min(3, num_micro_batches)))
    for _ in range(num_pipelines):
        cuts = draw(st.sets(st.integers(1, num_layers - 1), max_size=4))
        names: list[str] = []
        for first, stop in pairwise([0, *sorted(cuts), num_layers]):
            device = draw(st.sampled_from(devices))
            same = [n for n, (a, b, _) in stages.items() if (a, b) == (first, stop - 1)]
            name = draw(st.sampled_from([*same, f"s{len(stages)}"]))
            stages.setdefault(name, (first, stop - 1, device))
            names.append(name)
        pipelines.setdefault(tuple(names), [])
    shares = list(pipelines.values())
    for micro_batch in range(num_micro_batches):
        index = micro_batch if micro_batch < len(shares) else draw(st.integers(0, len(shares) - 1))
        shares[index].append(micro_batch)
    return Routes(stages, {route: tuple(share) for route, share in pipelines.items()})


@st.composite
def plans(draw: st.DrawFn, problem: Problem) -> Plan:
    """A plan of a problem; some layers may be computed again."""
    found = draw(routes(problem.profile.num_layers, problem.job.num_micro_batches))
    plan = plan_of(problem, found.stages, found.pipelines)
    stages = tuple(
        stage.changed(recompute_layers=tuple(sorted(draw(st.sets(st.sampled_from(stage.layers))))))
        if draw(st.booleans())
        else stage
        for stage in plan.stages
    )
    return plan.changed(stages=stages)
