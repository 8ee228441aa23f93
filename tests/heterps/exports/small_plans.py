"""Plans of a small model, as chains of device groups."""

from __future__ import annotations

from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem

# Of llama-tiny's 16 layers, the first is the embedding and the last the head.
CUTS = ((0, 4), (5, 10), (11, 15))


def chain_of(
    problem: Problem, *chains: tuple[tuple[str, ...], ...], cuts: tuple[tuple[int, int], ...] = CUTS
) -> Plan:
    """A plan of chains of device groups, with the same cuts."""
    stages, pipelines = list[Stage](), list[Pipeline]()
    count = problem.job.num_micro_batches
    for number, chain in enumerate(chains):
        names = []
        for (first, last), devices in zip(cuts, chain, strict=True):
            names.append(f"s{len(stages)}")
            stages.append(
                Stage(name=names[-1], first_layer=first, last_layer=last, devices=devices)
            )
        own = tuple(range(number, count, len(chains)))
        pipelines.append(Pipeline(stages=tuple(names), micro_batches=own))
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages),
        pipelines=tuple(pipelines),
        planner="test",
    )


ONE = (("a100-0",), ("a100-1",), ("v100-0",))
