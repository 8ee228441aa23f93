"""The best plan on what is on offer and within a budget: `place_within`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heterps.micro_batches.one_size import proof_budget, with_executable
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.planning.place import place
from heterps.renting.bundles import Bundle, chains
from heterps.renting.offer import Offer, offers
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.online.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import least_executable_s

# Sets that cost so many times the budget are looked at, for plans that leave devices idle.
NEARLY = 1.5
# Prices are sums of numbers with rounding errors.
ROUNDED = 1 + 1e-9


def place_within(
    problem: Problem,
    planner: str | Planner | System,
    offer: Offer,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
    on_placed: Callable[[Problem, float | None], None] | None = None,
) -> PlaceResult:
    """The best plan on devices that are on offer; with a budget, on those that it buys.

    Of all sets of devices (`bundles.chains`) that the budget affords, or nearly (a plan may leave
    some idle), the planner answers those that a lower bound does not rule out. Neither the sets nor
    their plans depend on the budget: a larger one is never slower, but for limits of time.

    Args:
        problem: With all devices.
        planner: A registered name, or a planner of your own.
        offer: What may be used.
        budget: What the planner may spend on all of them.
        seed: See `place`.
        effort: See `place`.
        on_placed: Called with each problem that has been placed, and its simulated step time.

    Returns:
        The problem is that on what is on offer, and bounds are about it, whatever plans cost; the
        plan is one of the whole cluster, and its own bounds are those of all plans there.

    Raises:
        UnknownNameError: The cluster has nothing of that name.
        InfeasibleError: Nothing that is on offer, or that the budget buys, has a plan that fits.
    """
    budget = budget or Budget()
    best: PlaceResult | None = None
    reason: InfeasibleError | None = None
    for offered in offers(problem, offer):
        for bundle in _affordable(offered, offer.usd_per_hour):
            if best is not None and budget.is_exhausted:
                break
            own = without_devices(offered, offered.device_named.keys() - bundle.names)
            if best is not None and _least(own, _cost(best)) >= _cost(best):
                continue
            try:
                found = place(own, planner, budget=budget, seed=seed, effort=effort)
            except InfeasibleError as error:
                reason, step_time_s = reason or error, None
            else:
                step_time_s = found.estimate.step_time_s
                found = replace(found, problem=offered, bound=bound_for(offered, found.plan))
                if is_affordable(found, offer) and (best is None or _cost(found) < _cost(best)):
                    best = found
            if on_placed is not None:
                on_placed(own, step_time_s)
    if best is None:
        raise reason or InfeasibleError(_too_little(problem, offer))
    proof = proof_budget(budget)
    best = with_executable(best, _asked(best.problem), proof)
    of_all = with_executable(best, _asked(problem), proof).executable
    bound = bound_for(problem, best.plan)
    return replace(
        best,
        plan=best.plan.changed(bound=bound, executable_bound=of_all),
        evaluations=budget.evaluations_used,
        planning_s=budget.seconds_used,
        planning_cpu_s=budget.cpu_seconds_used,
    )


def is_affordable(result: PlaceResult, offer: Offer) -> bool:
    """Whether the devices of a plan cost no more than the budget."""
    return offer.usd_per_hour is None or usd_per_hour(result) <= offer.usd_per_hour * ROUNDED


def usd_per_hour(result: PlaceResult) -> float:
    """What the devices of a plan cost."""
    named = result.problem.device_named
    return sum(named[name].price_usd_per_hour for name in result.plan.devices)


def _affordable(problem: Problem, limit: float | None) -> list[Bundle]:
    """Sets within a budget, the dearest first, then those just above; without one, all devices."""
    devices = problem.cluster.devices
    everything = Bundle(
        frozenset(device.name for device in devices),
        sum(device.price_usd_per_hour for device in devices),
    )
    if limit is None:
        return [everything]
    found = {bundle.names: bundle for chain in [[everything], *chains(problem)] for bundle in chain}
    near = [bundle for bundle in found.values() if bundle.usd_per_hour <= limit * NEARLY]
    return sorted(
        near, key=lambda b: (b.usd_per_hour > limit * ROUNDED, -b.usd_per_hour, sorted(b.names))
    )


def _least(problem: Problem, most_s: float) -> float:
    """No plan costs less, in what `_cost` says; 0 where the price counts."""
    if problem.job.objective == "price":
        return 0.0
    least_s = most_s
    for each in _asked(problem):
        least_s = min(least_s, least_executable_s(each, least_s))
    return least_s


def _asked(problem: Problem) -> list[Problem]:
    """The problem with each size of micro-batches that is open."""
    is_open = problem.strategy.chooses_micro_batch
    return [with_size(problem, size) for size in open_sizes(problem)] if is_open else [problem]


def _cost(result: PlaceResult) -> float:
    shown = result.estimate
    if result.problem.job.objective == "price":
        return shown.price_usd_per_million_samples
    return shown.step_time_s


def _too_little(problem: Problem, offer: Offer) -> str:
    left = [device for each in offers(problem, offer) for device in each.cluster.devices]
    cheapest = min(device.price_usd_per_hour for device in left)
    option = f"--budget-usd-per-hour {offer.usd_per_hour:g}"
    if cheapest > (offer.usd_per_hour or 0.0):
        return f"{option} buys no device: the cheapest on offer costs {cheapest:g} USD an hour"
    return f"{option}: no plan was found on devices that cost so much together"
