"""Plans as chains of columns: what rules of recovery take apart and put together again.

Where pipelines share stages but cut the model differently, each is a chain of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from heterps_agents.finishing.chains import Chain, Column, routed
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem


def chains_of(plan: Plan) -> tuple[Chain, ...]:
    """The chains of a plan, in the order of its pipelines."""
    found: list[Chain] = []
    for pipelines in plan.groups():
        names = dict.fromkeys(name for pipeline in pipelines for name in pipeline.stages)
        whole = _columns(plan.stage(name) for name in names)
        if _covers(whole, plan.num_layers):
            found.append(whole)
        else:
            found += [_columns(map(plan.stage, pipeline.stages)) for pipeline in pipelines]
    return tuple(found)


def chain_sets(plan: Plan) -> list[tuple[Chain, ...]]:
    """The chains of a plan as they are, and with those of equal cuts as one, if that differs.

    In one chain, any replica can follow any other: where a pipeline has lost a stage, its other
    stages help the pipelines beside it. Apart, pipelines keep to their own devices and links.
    """
    apart = chains_of(plan)
    alike: dict[tuple[tuple[int, int], ...], list[Chain]] = defaultdict(list)
    for chain in apart:
        alike[tuple((column.first_layer, column.last_layer) for column in chain)].append(chain)
    if len(alike) == len(apart):
        return [apart]
    return [apart, tuple(_as_one(chains) for chains in alike.values())]


def _as_one(chains: Sequence[Chain]) -> Chain:
    return tuple(
        Column(
            columns[0].first_layer,
            columns[0].last_layer,
            tuple(dict.fromkeys(name for column in columns for name in column.devices)),
            tuple(sorted({n for column in columns for n in column.recompute_layers})),
        )
        for columns in zip(*chains, strict=True)
    )


def _columns(stages: Iterable[Stage]) -> Chain:
    devices: dict[tuple[int, int], list[str]] = defaultdict(list)
    again: dict[tuple[int, int], set[int]] = defaultdict(set)
    for stage in stages:
        devices[stage.first_layer, stage.last_layer] += stage.devices
        again[stage.first_layer, stage.last_layer].update(stage.recompute_layers)
    return tuple(
        Column(*span, tuple(devices[span]), tuple(sorted(again[span]))) for span in sorted(devices)
    )


def _covers(chain: Chain, num_layers: int) -> bool:
    return [n for c in chain for n in range(c.first_layer, c.last_layer + 1)] == list(
        range(num_layers)
    )


def without(chain: Chain, lost: Collection[str]) -> Chain:
    """A chain less some devices; columns may be left empty."""
    return tuple(
        column._replace(devices=tuple(d for d in column.devices if d not in lost))
        for column in chain
    )


def is_whole(chain: Chain) -> bool:
    """Every column has a device."""
    return all(column.devices for column in chain)


def column_s(problem: Problem, column: Column) -> list[float]:
    """Compute seconds of one micro-batch on each of a column's devices."""
    part = slice(column.first_layer, column.last_layer + 1)
    compute_s = problem.tables.compute_s
    return [float(compute_s[part, problem.class_of[name]].sum()) for name in column.devices]


def plan_of_chains(
    problem: Problem, like: Plan, chains: Sequence[Chain], *, planner: str
) -> Plan | None:
    """Routes the whole global batch over some chains.

    Micro-batches are shared among chains so that the slowest ends as early as possible, and among
    the replicas of a column in turns, each to the one that ends it first. A chain that is too slow
    to help with a single micro-batch stays out, and so does a replica.

    Args:
        problem: With the devices of the chains.
        like: Whose model, cluster and job the plan has.
        chains: Whole ones.
        planner: Name that the plan carries.

    Returns:
        The plan, or None where there is no chain.
    """
    if not chains:
        return None
    shares = _shares(problem, chains, like.job.num_micro_batches)
    turns = [
        [_turns(column_s(problem, column), len(share)) for column in chain]
        for chain, share in zip(chains, shares, strict=True)
    ]
    stages, pipelines = routed(chains, shares, turns)
    return like.changed(
        stages=stages,
        pipelines=pipelines,
        planner=planner,
        predicted_step_time_s=None,
        overlaps_reduce=None,
        bound=Bound(),
    )


def _shares(problem: Problem, chains: Sequence[Chain], num_micro_batches: int) -> list[list[int]]:
    """Micro-batches of each chain: one after the other to the chain that would end it first.

    The first micro-batch of a chain ends after all its stages, each further one a turn of its
    slowest column later. Giving one more to whoever ends it first minimises the latest end.
    """
    columns_s = [[column_s(problem, column) for column in chain] for chain in chains]
    fill_s = [sum(min(seconds) for seconds in chain) for chain in columns_s]
    turn_s = [
        max(1 / sum(1 / max(s, 1e-30) for s in seconds) for seconds in chain) for chain in columns_s
    ]
    shares: list[list[int]] = [[] for _ in chains]
    for micro_batch in range(num_micro_batches):
        first = min(range(len(chains)), key=lambda i: (fill_s[i] + len(shares[i]) * turn_s[i], i))
        shares[first].append(micro_batch)
    return shares


def _turns(seconds: Sequence[float], number: int) -> list[int]:
    """Which replica takes each of a number of micro-batches: the one that ends it first."""
    done = [0] * len(seconds)
    turns = []
    for _ in range(number):
        first = min(range(len(seconds)), key=lambda i: ((done[i] + 1) * seconds[i], i))
        done[first] += 1
        turns.append(first)
    return turns
