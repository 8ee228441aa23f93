"""Plans for Sailor's cost: GPU type and degree of every stage, layers, replicas, micro-batch size.

All stages have the same number of replicas, and the replicas of a stage are of one GPU type; GPUs
may stay idle. Among these plans the answer is the best up to `tolerance`: the quickest or the
cheapest, under a limit on seconds and a budget. Micro-batch sizes and numbers of replicas are
searched one after the other, those first whose bound is lowest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from heterps_agents.systems.sailor.candidates import Candidate
from heterps_agents.systems.sailor.cost import SailorCost, cost_of, memory_problems
from heterps_agents.systems.sailor.goal import SailorGoal
from heterps_agents.systems.sailor.options import Options, option_names
from heterps_agents.systems.sailor.search import Search
from heterps_agents.systems.sailor.twins import find_twins, with_names
from heterps_configs.errors import InfeasibleError
from heterps_configs.importers.sailor import SailorCluster, SailorLinks, SailorModel
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage

# What a plan may be above the lowest bound, first and then.
CEILINGS = (1.1, 1.3, 1.6, 2.0, 3.0, 4.5, 7.0, 12.0, 30.0, 100.0, math.inf)


class SailorAnswer(NamedTuple):
    """A plan, its cost, and a lower bound of every plan of the same kind.

    Attributes:
        usd: What an iteration costs.
        lower_bound: Of what is minimised, seconds or dollars: below it there is no plan. Where
            there is too much to look at all, it falls to what the rest cannot stay below.
        sweeps: How often the compiled sweep ran.
    """

    plan: SailorPlan
    cost: SailorCost
    usd: float
    lower_bound: float
    sweeps: int


class SailorLimits(NamedTuple):
    """What a plan may be, and how good it has to be.

    Attributes:
        micro_batch_sizes: Allowed sizes; all that were profiled by default.
        tensor_parallel: Allowed degrees; all that were profiled and divide a node by default.
        max_replicas: Largest number of replicas of a stage.
        tolerance: Relative difference to the optimum that is of no interest.
        goal: What the optimum is.
    """

    micro_batch_sizes: Sequence[int] | None = None
    tensor_parallel: Sequence[int] | None = None
    max_replicas: int | None = None
    tolerance: float = 1e-6
    goal: SailorGoal = SailorGoal()


def plan_for(
    model: SailorModel,
    cluster: SailorCluster,
    links: SailorLinks,
    num_gpus: Mapping[str, int],
    global_batch_size: int,
    limits: SailorLimits = SailorLimits(),
) -> SailorAnswer:
    """The best plan, by the goal of the limits, that passes the memory check.

    Args:
        model: Layer times and sizes.
        cluster: Memory and GPUs per node of each type.
        links: Between nodes of the cluster's zone.
        num_gpus: How many GPUs of each type there are.
        global_batch_size: Samples of one iteration.
        limits: By default there are none but those of the profiles.

    Raises:
        InfeasibleError: No plan of this kind fits and keeps the limits.
        UnknownNameError: The cluster has no such GPU type.
    """
    for gpu in num_gpus:
        cluster.node_type(gpu)
    goal = limits.goal
    twins = find_twins(model, cluster, links, num_gpus, goal)
    num_gpus = {first: sum(members.values()) for first, members in twins.items()}
    search = Search(model, links, cluster.zone, global_batch_size, goal, limits.tolerance)
    candidates = []
    for options in _all_options(model, cluster, links, num_gpus, limits):
        for replicas in _useful_replicas(options, global_batch_size, limits.max_replicas):
            rounds = math.ceil(global_batch_size / (options.micro_batch_size * replicas)) - 1
            _offer_single_stages(search, cluster, options, replicas)
            if model.num_layers > 1:
                candidates.append(Candidate(options, replicas, rounds))
    _explore_all(search, candidates)
    if search.plan is None:
        raise InfeasibleError(
            f"{model.name}: no pipeline over {dict(num_gpus)} passes the memory check"
            + _limits_text(goal)
            + ("; not all of them were looked at" if math.isfinite(search.skipped) else "")
        )
    plan = with_names(search.plan, twins)
    cost = cost_of(model, links, plan)
    bound = min(search.useful, search.skipped)
    return SailorAnswer(plan, cost, goal.usd(plan, cost.iteration_s), bound, search.sweeps)


def _all_options(
    model: SailorModel,
    cluster: SailorCluster,
    links: SailorLinks,
    num_gpus: Mapping[str, int],
    limits: SailorLimits,
) -> Iterator[Options]:
    """For each micro-batch size with profiles."""
    sizes = sorted({shape.micro_batch_size for shape in model.times})
    for size in sizes if limits.micro_batch_sizes is None else limits.micro_batch_sizes:
        names = option_names(model, cluster, num_gpus, size, limits.tensor_parallel)
        if names:
            yield Options.of(model, cluster, links, num_gpus, size, names, limits.goal)


def _explore_all(search: Search, candidates: Sequence[Candidate]) -> None:
    """Best bound first, under a ceiling that rises until a plan is below it, or none is better.

    Under a low ceiling few states, and few numbers of GPUs, are worth a look. What layers take
    behind the passes, and numbers of GPUs, make bounds better that are low enough to matter.
    """
    goal = search.goal
    queue = [(each.bound(goal), search.order(), each) for each in candidates]
    heapq.heapify(queue)
    lowest = queue[0][0] if queue else math.inf
    for ceiling in [lowest * factor for factor in CEILINGS] if lowest > 0 else [math.inf]:
        looked_at = []
        while queue and queue[0][0] < min(ceiling, search.useful):
            bound, _, candidate = heapq.heappop(queue)
            if search.is_over:
                search.skipped = min(search.skipped, bound)
                return
            if candidate.known_ranges is None:
                better = _with_better_bound(search, candidate, bound)
                heapq.heappush(queue, (better[0], search.order(), better[1]))
                continue
            search.explore(candidate, bound, ceiling)
            looked_at.append((bound, search.order(), candidate))
        if search.useful <= ceiling:
            return
        queue = [*looked_at, *queue]
        heapq.heapify(queue)


def _with_better_bound(
    search: Search, candidate: Candidate, bound: float
) -> tuple[float, Candidate]:
    candidate = candidate.with_ranges(search.model, search.links)
    bound, room = max(bound, candidate.bound(search.goal)), search.room()
    if search.goal.is_plain or candidate.leaves_out(search.goal, room):
        return bound, candidate
    counts = candidate.counts(search.goal, room)
    return (math.inf if counts is None else max(bound, counts.bound)), candidate


def _useful_replicas(options: Options, global_batch_size: int, most: int | None) -> list[int]:
    """Of the numbers of replicas with as many rounds, the smallest: it leaves most GPUs."""
    size = options.micro_batch_size
    limit = max(options.num_gpus // options.degrees)
    limit = min(limit, math.ceil(global_batch_size / size), most or limit)
    by_rounds: dict[int, int] = {}
    for replicas in range(1, int(limit) + 1):
        by_rounds.setdefault(math.ceil(global_batch_size / (size * replicas)), replicas)
    return list(by_rounds.values())


def _offer_single_stages(
    search: Search, cluster: SailorCluster, options: Options, replicas: int
) -> None:
    """Plans of one stage, which send no messages."""
    num_layers = search.model.num_layers
    for option, (gpu, degree) in enumerate(options.names):
        if replicas * degree > options.num_gpus[option]:
            continue
        stage = SailorStage(0, num_layers, (SailorGroup(gpu, degree, search.zone),) * replicas)
        plan = SailorPlan((stage,), options.micro_batch_size, search.global_batch_size)
        if not memory_problems(search.model, cluster, plan):
            search.offer(plan)


def _limits_text(goal: SailorGoal) -> str:
    limits = []
    if math.isfinite(goal.most_s):
        limits.append(f"{goal.most_s:.4g} s")
    if math.isfinite(goal.most_usd):
        limits.append(f"{goal.most_usd:.4g} USD")
    return f" within {' and '.join(limits)} an iteration" if limits else ""
