"""Plans for Sailor's cost: GPU type and degree of every stage, layers, replicas, micro-batch size.

All stages have the same number of replicas, and the replicas of a stage are of one GPU type; GPUs
may stay idle. Among these plans the answer is the best up to `tolerance`. For every micro-batch
size and number of replicas that can still win, boxes of (bottleneck, optimizer step, all-reduce)
are searched best first. The sweep of `kernels` at the upper corner of a box gives its best
sum of stages, so

    rounds * bottleneck + optimizer step + all-reduce, all at the lower corner, + that sum

is a lower bound of every plan in the box.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from heterps_agents.systems.sailor.cost import SailorCost, cost_of, memory_problems
from heterps_agents.systems.sailor.kernels import least_sum
from heterps_agents.systems.sailor.tables import (
    Case,
    Extremes,
    Options,
    case_bound,
    make_case,
    option_names,
)
from heterps_agents.systems.sailor.twins import find_twins, with_names
from heterps_configs.errors import InfeasibleError
from heterps_configs.importers.sailor import SailorCluster, SailorLinks, SailorModel
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage
from heterps_envs.arrays import Integers

# States of one sweep (GPUs used, layers, options, stages) that are taken on: about 2 GB.
MAX_STATES = 1_000_000_000


class SailorAnswer(NamedTuple):
    """A plan, its cost, and a lower bound of every plan of the same kind.

    Attributes:
        lower_bound_s: Below it there is none. Cases of more than `MAX_STATES` states are left out,
            and the bound says so: it falls to what they cannot stay below.
        sweeps: How often the compiled sweep ran.
    """

    plan: SailorPlan
    cost: SailorCost
    lower_bound_s: float
    sweeps: int


class SailorLimits(NamedTuple):
    """What a plan may be, and how good it has to be.

    Attributes:
        micro_batch_sizes: Allowed sizes; all that were profiled by default.
        tensor_parallel: Allowed degrees; all that were profiled and divide a node by default.
        max_replicas: Largest number of replicas of a stage.
        tolerance: Relative difference to the optimum that is of no interest.
    """

    micro_batch_sizes: Sequence[int] | None = None
    tensor_parallel: Sequence[int] | None = None
    max_replicas: int | None = None
    tolerance: float = 1e-6


class _Box(NamedTuple):
    """Plans whose bottleneck, optimizer step and all-reduce lie between two corners.

    Attributes:
        sum_s: The best sum of stages at the upper corner.
        found: Bottleneck, optimizer step and all-reduce of that plan.
    """

    bound_s: float
    order: int
    lower: Extremes
    upper: Extremes
    sum_s: float
    found: Extremes


@dataclass
class _Search:
    """The best plan so far, and what was spent."""

    model: SailorModel
    links: SailorLinks
    zone: str
    global_batch_size: int
    tolerance: float
    plan: SailorPlan | None = None
    seconds: float = math.inf
    sweeps: int = 0
    skipped_s: float = math.inf
    order: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    @property
    def useful_s(self) -> float:
        """Only plans below this are worth looking for."""
        return self.seconds * (1 - self.tolerance)

    def offer(self, case: Case, stages: Integers) -> None:
        """Takes a plan if it is better."""
        names = [case.options.names[option] for option, _, _ in stages]
        groups = [SailorGroup(gpu, degree, self.zone) for gpu, degree in names]
        plan = SailorPlan(
            tuple(
                SailorStage(int(first), int(end), (group,) * case.replicas)
                for group, (_, first, end) in zip(groups, stages, strict=True)
            ),
            case.micro_batch_size,
            self.global_batch_size,
        )
        seconds = cost_of(self.model, self.links, plan).iteration_s
        if seconds < self.seconds:
            self.plan, self.seconds = plan, seconds

    def explore(self, case: Case) -> None:
        """Searches one micro-batch size and number of replicas."""
        lower, upper = case.least, case.most
        if case.rounds and math.isfinite(self.seconds):
            rest_s = self.seconds - lower[1] - lower[2] - float(case.tables.least_s[-1])
            upper = (min(upper[0], rest_s / case.rounds), *upper[1:])
        boxes: list[_Box] = []
        self._push(boxes, case, lower, upper)
        while boxes and boxes[0].bound_s < self.useful_s:
            box = heapq.heappop(boxes)
            high = tuple(map(min, box.upper, box.found))
            gaps = [
                weight * (top - bottom)
                for weight, top, bottom in zip(case.weights, high, box.lower, strict=True)
            ]
            axis = gaps.index(max(gaps))
            middle = (box.lower[axis] + high[axis]) / 2
            self._push(boxes, case, box.lower, _replaced(box.upper, axis, middle))
            # The plan at the upper corner is the best one of the other half, too.
            lower = _replaced(box.lower, axis, middle)
            bound_s = case.bound_s(lower) + box.sum_s
            heapq.heappush(boxes, box._replace(bound_s=bound_s, order=self.order(), lower=lower))

    def _push(self, boxes: list[_Box], case: Case, lower: Extremes, upper: Extremes) -> None:
        """Sweeps at the upper corner of a box, and keeps the box if it can hold a better plan."""
        enough_s = self.useful_s - case.bound_s(lower)
        if enough_s <= 0 or any(map(operator.gt, lower, upper)):
            return
        self.sweeps += 1
        sum_s, stages = least_sum(case.tables, case.coverable(upper[0]), case.load, upper, enough_s)
        if not len(stages):
            return
        self.offer(case, stages)
        bound_s = case.bound_s(lower) + sum_s
        found = case.extremes(stages)
        heapq.heappush(boxes, _Box(bound_s, self.order(), lower, upper, sum_s, found))


def plan_for(
    model: SailorModel,
    cluster: SailorCluster,
    links: SailorLinks,
    num_gpus: Mapping[str, int],
    global_batch_size: int,
    limits: SailorLimits = SailorLimits(),
) -> SailorAnswer:
    """The plan with the least seconds per iteration that passes the memory check.

    Args:
        model: Layer times and sizes.
        cluster: Memory and GPUs per node of each type.
        links: Between nodes of the cluster's zone.
        num_gpus: How many GPUs of each type there are.
        global_batch_size: Samples of one iteration.
        limits: By default there are none but those of the profiles.

    Raises:
        InfeasibleError: No plan of this kind fits.
        UnknownNameError: The cluster has no such GPU type.
    """
    for gpu in num_gpus:
        cluster.node_type(gpu)
    twins = find_twins(model, cluster, links, num_gpus)
    num_gpus = {first: sum(members.values()) for first, members in twins.items()}
    search = _Search(model, links, cluster.zone, global_batch_size, limits.tolerance)
    sizes = sorted({shape.micro_batch_size for shape in model.times})
    cases: list[tuple[float, int, Options, int]] = []
    for size in sizes if limits.micro_batch_sizes is None else limits.micro_batch_sizes:
        names = option_names(model, cluster, num_gpus, size, limits.tensor_parallel)
        if not names:
            continue
        options = Options.of(model, cluster, links, num_gpus, size, names)
        for replicas in _useful_replicas(options, size, global_batch_size, limits.max_replicas):
            rounds = math.ceil(global_batch_size / (size * replicas)) - 1
            _offer_single_stages(search, cluster, options, replicas)
            if model.num_layers > 1:
                bound_s = case_bound(options, replicas, rounds)
                cases.append((bound_s, replicas, options, rounds))
    for bound_s, replicas, options, rounds in sorted(cases, key=lambda entry: entry[0]):
        if bound_s >= search.useful_s:
            break
        if options.num_states(replicas) > MAX_STATES:
            search.skipped_s = min(search.skipped_s, bound_s)
            continue
        search.explore(make_case(model, links, options, replicas, rounds))
    if search.plan is None:
        raise InfeasibleError(
            f"{model.name}: no pipeline over {dict(num_gpus)} passes the memory check"
        )
    plan = with_names(search.plan, twins)
    bound_s = min(search.useful_s, search.skipped_s)
    return SailorAnswer(plan, cost_of(model, links, plan), bound_s, search.sweeps)


def _replaced(corner: Extremes, axis: int, value: float) -> Extremes:
    changed = list(corner)
    changed[axis] = value
    return changed[0], changed[1], changed[2]


def _useful_replicas(
    options: Options, size: int, global_batch_size: int, most: int | None
) -> list[int]:
    """Of the numbers of replicas with as many rounds, the smallest: it leaves most GPUs."""
    limit = max(options.num_gpus // options.degrees)
    limit = min(limit, math.ceil(global_batch_size / size), most or limit)
    by_rounds: dict[int, int] = {}
    for replicas in range(1, int(limit) + 1):
        by_rounds.setdefault(math.ceil(global_batch_size / (size * replicas)), replicas)
    return list(by_rounds.values())


def _offer_single_stages(
    search: _Search, cluster: SailorCluster, options: Options, replicas: int
) -> None:
    """Plans of one stage, which send no messages."""
    num_layers = search.model.num_layers
    for option, (gpu, degree) in enumerate(options.names):
        if replicas * degree > options.num_gpus[option]:
            continue
        stage = SailorStage(0, num_layers, (SailorGroup(gpu, degree, search.zone),) * replicas)
        plan = SailorPlan((stage,), options.micro_batch_size, search.global_batch_size)
        if not memory_problems(search.model, cluster, plan):
            seconds = cost_of(search.model, search.links, plan).iteration_s
            if seconds < search.seconds:
                search.plan, search.seconds = plan, seconds
