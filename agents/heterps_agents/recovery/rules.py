"""Rules that mend a plan after devices were lost: simple, borrow, merge, templates.

The rules are those of Oobleck (Jang et al., SOSP 2023, section 5.1), for plans on unlike devices: a
stage is not one of many equal nodes here, so every device that could take a place, and every cut
that could part the layers of a lost stage, is tried, and the simulator chooses. All plans route
the same global batch and keep the memory of every device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from heterps_agents.finishing.chains import Chain, Column
from heterps_agents.recovery.chains import (
    chain_sets,
    column_s,
    is_whole,
    plan_of_chains,
    without,
)
from heterps_agents.recovery.templates import template_plan
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Plans that one rule may simulate; cuts and devices beyond are those that look worst.
MAX_SIMULATIONS = 12

Rule = Callable[[Problem, Plan, Collection[str]], Plan | None]


def simple(problem: Problem, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Drops lost replicas, and pipelines that have a stage without any; shares the batch anew.

    Args:
        problem: Without the lost devices.
        plan: What ran.
        lost: Devices that are gone.

    Returns:
        The plan, or None where every pipeline has lost a stage, or the rest is too small.
    """
    options = []
    for chains in chain_sets(plan):
        whole = [left for chain in chains if is_whole(left := without(chain, lost))]
        options.append(plan_of_chains(problem, plan, whole, planner="simple"))
    return _quickest(problem, options)


def borrow(problem: Problem, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Fills the place of a stage that is lost everywhere with a device from elsewhere.

    Donors are devices that do nothing, replicas of stages that keep another one, and what is left
    of pipelines that are broken themselves. Places are filled one after the other, each with the
    donor that gives the fastest step.

    Args:
        problem: Without the lost devices.
        plan: What ran.
        lost: Devices that are gone.

    Returns:
        The plan, or None where no place is empty, or none can be filled.
    """
    options = [
        _borrowed(problem, plan, [without(chain, lost) for chain in chains])
        for chains in chain_sets(plan)
    ]
    return _quickest(problem, options)


def _borrowed(problem: Problem, plan: Plan, chains: Sequence[Chain]) -> Plan | None:
    broken = [chain for chain in chains if not is_whole(chain)]
    whole = [chain for chain in chains if is_whole(chain)]
    best: Plan | None = None
    # Those that miss fewest stages first; each further one may still find a donor.
    for chain in sorted(broken, key=lambda c: sum(not column.devices for column in c)):
        filled = _filled(problem, plan, chain, whole)
        if filled is not None:
            whole, best = filled
    return best


def merge(problem: Problem, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Gives the layers of lost stages to the stages before and behind them.

    Args:
        problem: Without the lost devices.
        plan: What ran.
        lost: Devices that are gone.

    Returns:
        The plan, or None where no stage is lost everywhere, or its neighbours have no room.
    """
    options = [
        _parted(problem, plan, [without(chain, lost) for chain in chains])
        for chains in chain_sets(plan)
    ]
    return _quickest(problem, options)


def _parted(problem: Problem, plan: Plan, chains: Sequence[Chain]) -> Plan | None:
    mended: list[Chain] = [chain for chain in chains if is_whole(chain)]
    best: Plan | None = None
    for chain in chains:
        if is_whole(chain) or not any(column.devices for column in chain):
            continue
        found = _fastest(
            problem,
            [
                ([*mended, cut], plan_of_chains(problem, plan, [*mended, cut], planner="merge"))
                for cut in _merged(problem, chain)
            ],
        )
        if found is not None:
            mended, best = found
    return best


def templates(problem: Problem, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Groups the survivors as Oobleck does and gives each group a new pipeline of its size."""
    return _quickest(problem, [template_plan(problem, plan, lost)])


RULES: Mapping[str, Rule] = MappingProxyType(
    {"simple": simple, "borrow": borrow, "merge": merge, "templates": templates}
)


def fits(problem: Problem, plan: Plan) -> bool:
    """Every device has the memory that its stages need. A throughput floor does not count."""
    shown = estimate(problem, plan)
    return all(need <= shown.memory_limit_bytes[name] for name, need in shown.memory_bytes.items())


def _quickest(problem: Problem, plans: Sequence[Plan | None]) -> Plan | None:
    """The plan that fits and has the shortest simulated step."""
    found = _fastest(problem, [([], plan) for plan in plans])
    return None if found is None else found[1]


def _fastest(
    problem: Problem, options: Sequence[tuple[list[Chain], Plan | None]]
) -> tuple[list[Chain], Plan] | None:
    """The option whose plan fits and has the shortest simulated step."""
    best, best_s = None, float("inf")
    for chains, plan in options:
        if plan is None:
            continue
        shown = estimate(problem, plan)
        fit = all(n <= shown.memory_limit_bytes[name] for name, n in shown.memory_bytes.items())
        if fit and shown.step_time_s < best_s:
            timed = plan.changed(predicted_step_time_s=shown.step_time_s)
            best, best_s = (chains, timed), shown.step_time_s
    return best


def _filled(
    problem: Problem, plan: Plan, chain: Chain, whole: Sequence[Chain]
) -> tuple[list[Chain], Plan] | None:
    """All chains once the empty columns of one are filled, and their plan."""
    others = list(whole)
    while True:
        empty = next(i for i, column in enumerate(chain) if not column.devices)
        last = sum(not column.devices for column in chain) == 1
        options = []
        for device in _donors(problem, chain, others):
            left = [without(other, {device}) for other in others]
            mended = without(chain, {device})
            mended = _with_device(mended, empty, device)
            ready = [*left, mended] if last else left
            options.append(
                (
                    [mended, *left],
                    plan_of_chains(problem, plan, ready, planner="borrow") if last else None,
                )
            )
        if not options:
            return None
        if last:
            return _fastest(problem, options)
        # Places before the last one cannot be simulated yet: the quickest device takes them.
        chosen = min(options, key=lambda option: _slowest_s(problem, option[0][0], empty))[0]
        chain, others = chosen[0], list(chosen[1:])


def _with_device(chain: Chain, index: int, device: str) -> Chain:
    column = chain[index]
    return (*chain[:index], column._replace(devices=(*column.devices, device)), *chain[index + 1 :])


def _slowest_s(problem: Problem, chain: Chain, index: int) -> float:
    return max(column_s(problem, chain[index]))


def _donors(problem: Problem, chain: Chain, others: Sequence[Chain]) -> Iterator[str]:
    """Devices that can be taken without emptying a column: one of each class, node and column."""
    seen: set[tuple[object, ...]] = set()
    used = {name for c in (chain, *others) for column in c for name in column.devices}
    duties: dict[str, int] = {}
    for each in (chain, *others):
        for column in each:
            for name in column.devices:
                duties[name] = duties.get(name, 0) + 1
    idle = [Column(-1, -1, (device.name,)) for device in problem.cluster.devices
            if device.name not in used]  # fmt: skip
    spare = [c for each in (chain, *others) for c in each if len(c.devices) > 1]
    for number, column in enumerate([*idle, *spare]):
        # Of two replicas that end a micro-batch together, the last keeps more turns in order.
        for name in reversed(column.devices):
            device = problem.device_named[name]
            place = -1 if column.first_layer < 0 else number
            key = (problem.class_of[name], device.node, place)
            if duties.get(name, 0) <= 1 and key not in seen and len(seen) < MAX_SIMULATIONS:
                seen.add(key)
                yield name


def _merged(problem: Problem, chain: Chain) -> Iterator[Chain]:
    """The chain with its empty columns parted among their neighbours, the most even cuts first."""
    first = next(i for i, column in enumerate(chain) if not column.devices)
    stop = next((i for i in range(first, len(chain)) if chain[i].devices), len(chain))
    front = chain[first - 1] if first else None
    behind = chain[stop] if stop < len(chain) else None
    start, end = chain[first].first_layer, chain[stop - 1].last_layer + 1
    # A cut at `start` gives everything to the stage behind, one at `end` to the one in front.
    cuts = range(start if behind else end, (end if front else start) + 1)
    options = []
    for cut in cuts:
        parts = []
        if front:
            parts.append(_grown(front, front.first_layer, cut - 1))
        if behind:
            parts.append(_grown(behind, cut, behind.last_layer))
        slowest_s = max(1 / sum(1 / max(s, 1e-30) for s in column_s(problem, p)) for p in parts)
        left, right = chain[: max(first - 1, 0)], chain[stop + 1 :]
        options.append((slowest_s, cut, (*left, *parts, *right)))
    for _, _, merged in sorted(options)[:MAX_SIMULATIONS]:
        if is_whole(merged):
            yield merged
        else:
            yield next(_merged(problem, merged))


def _grown(column: Column, first_layer: int, last_layer: int) -> Column:
    """The column with more layers, recomputed throughout where all of its layers were."""
    before = range(column.first_layer, column.last_layer + 1)
    layers = range(first_layer, last_layer + 1)
    whole = set(column.recompute_layers) == set(before)
    again = tuple(layers) if whole else column.recompute_layers
    return Column(first_layer, last_layer, column.devices, again)
