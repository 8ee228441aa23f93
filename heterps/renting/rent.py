"""The best plan on what is on offer and within a budget: `place_within`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heterps.micro_batches.one_size import proof_budget, search_budget, with_executable
from heterps.micro_batches.outlooks import cost_of
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.placing import place_without_bound
from heterps.planning.place import asked_of
from heterps.renting.offer import Offer, offers
from heterps.renting.sets import ROUNDED, RentableSet, sets_of
from heterps.renting.sizes import on_all, with_open_sizes
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.errors import HeterpsError, InfeasibleError, TooDearError
from heterps_envs.closed_form.bounds import plans_bound_s
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import least_executable_s

# Of what is left of a limited search, each set gets so much when its turn comes.
LOOK_PART = 1 / 4


def place_within(
    problem: Problem,
    planner: str | Planner | System,
    offer: Offer,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
    on_placed: Callable[[Problem, PlaceResult | None], None] | None = None,
) -> PlaceResult:
    """The best plan on devices that are on offer; with a budget, on those that it buys.

    Of all sets of devices (`bundles.chains`) that the budget affords, or nearly (a plan may leave
    some idle), the planner answers those that a lower bound does not rule out, those first that
    promise most. Neither the sets nor their plans depend on the budget: a larger one is never
    slower, but for limits of the search. Such a limit is divided: each set gets a part of what is
    left, and the best one in the end the rest.

    Args:
        problem: With all devices.
        planner: A registered name, or a planner of your own.
        offer: What may be used.
        budget: What the planner may spend on all of them.
        seed: See `place`.
        effort: See `place`.
        on_placed: Called with each problem that has been placed, and what was found, which may cost
            more than the budget.

    Returns:
        The problem is that on what is on offer, and bounds are about it, whatever plans cost; the
        plan is one of the whole cluster, and its own bounds are those of all plans there.

    Raises:
        UnknownNameError: The cluster has nothing of that name.
        InfeasibleError: Nothing that is on offer, or that the budget buys, has a plan that fits.
        TooDearError: None was found, and the planner gave up some of that.
    """
    budget = budget or Budget()
    problem, chosen = asked_of(problem, planner, seed=seed, effort=effort)
    own = search_budget(budget)
    search = _Search(chosen, offer, own, on_placed)
    sets = [each for offered in offers(problem, offer) for each in sets_of(offered, offer)]
    search.look_at_all(sets)
    if search.best is None or search.best_set is None:
        raise _no_plan(search.reason, problem, offer)
    best, offered = search.best, with_open_sizes(search.best_set.offered)
    if search.best_set.problem is not search.best_set.offered:
        best = on_all(offered, best)
    best = replace(
        best,
        evaluations=own.evaluations_used,
        planning_s=own.seconds_used,
        planning_cpu_s=own.cpu_seconds_used,
    )
    budget.charge(own)
    proof = proof_budget(budget)
    best = with_executable(best, offered, proof)
    return _of_whole_cluster(best, problem, proof)


@dataclass
class _Search:
    """What a planner found on the sets so far.

    Attributes:
        best: On its set alone; bounds are those of plans there.
        best_set: Where it was found.
        reason: Why the first set without a plan has none.
    """

    planner: Planner | System
    offer: Offer
    budget: Budget
    on_placed: Callable[[Problem, PlaceResult | None], None] | None
    best: PlaceResult | None = None
    best_set: RentableSet | None = None
    reason: HeterpsError | None = None

    def look_at_all(self, sets: Sequence[RentableSet]) -> None:
        """Places on each set that may be the best, and once more on the best with what is left."""
        part = LOOK_PART if len(sets) > 1 else 1.0
        for each in sets:
            if self.best is not None and self.budget.is_exhausted:
                return
            if not self._is_ruled_out(each):
                self._place(each, part)
        is_left = self.budget.is_limited and not self.budget.is_exhausted
        if self.best_set is not None and part < 1.0 and is_left:
            self._place(self.best_set, 1.0)

    def _is_ruled_out(self, each: RentableSet) -> bool:
        if self.best is None or self.best.problem.job.objective == "price":
            return False
        most_s = self.best.estimate.step_time_s
        # Where time is limited it goes into plans: the other bound may take seconds.
        if self.budget.has_time_limit:
            asked = with_open_sizes(each.problem)
            return all(plans_bound_s(sized) >= most_s for sized in reversed(asked))
        try:
            return _least_s(each.problem, most_s) >= most_s
        except HeterpsError:  # it lacks links or groups that the strategy needs
            return True

    def _place(self, each: RentableSet, part: float) -> None:
        """Asks for a plan on a set, for a part of the budget that is left."""
        own, found = self.budget.apart(part), None
        try:
            found, _ = place_without_bound(each.problem, self.planner, own)
        except HeterpsError as error:  # a set may lack what a strategy needs: links, groups
            self.reason = self.reason or error
        else:
            is_better = self.best is None or cost_of(found) < cost_of(self.best)
            if is_better and is_affordable(found, self.offer):
                self.best, self.best_set = found, each
        self.budget.charge(own)
        if self.on_placed is not None:
            self.on_placed(each.problem, found)


def _of_whole_cluster(result: PlaceResult, problem: Problem, budget: Budget) -> PlaceResult:
    """The result with a plan whose bounds are those of all plans on all devices."""
    if result.problem.device_named.keys() == problem.device_named.keys():
        return replace(result, plan=result.plan.changed(bound=result.bound))
    asked = with_open_sizes(problem)
    of_all = with_executable(result, asked, budget).executable
    bound = on_all(asked, result).bound
    return replace(result, plan=result.plan.changed(bound=bound, executable_bound=of_all))


def is_affordable(result: PlaceResult, offer: Offer) -> bool:
    """Whether the devices of a plan cost no more than the budget."""
    return offer.usd_per_hour is None or usd_per_hour(result) <= offer.usd_per_hour * ROUNDED


def usd_per_hour(result: PlaceResult) -> float:
    """What the devices of a plan cost."""
    named = result.problem.device_named
    return sum(named[name].price_usd_per_hour for name in result.plan.devices)


def _least_s(problem: Problem, most_s: float) -> float:
    """No plan is simulated in less; `most_s` where that is no less."""
    for each in with_open_sizes(problem):
        most_s = min(most_s, least_executable_s(each, most_s))
    return most_s


def _no_plan(reason: HeterpsError | None, problem: Problem, offer: Offer) -> HeterpsError:
    """Why nothing was found; of a budget not only why nothing fits on what it buys first."""
    if reason is None:
        return InfeasibleError(_too_little(problem, offer))
    if offer.usd_per_hour is None:
        return reason
    kind = TooDearError if isinstance(reason, TooDearError) else InfeasibleError
    return kind(
        f"--budget-usd-per-hour {offer.usd_per_hour:g}: no plan on anything that it buys; of the "
        f"devices that promise most: {reason}"
    )


def _too_little(problem: Problem, offer: Offer) -> str:
    left = [device for each in offers(problem, offer) for device in each.cluster.devices]
    cheapest = min(device.price_usd_per_hour for device in left)
    option = f"--budget-usd-per-hour {offer.usd_per_hour:g}"
    if cheapest > (offer.usd_per_hour or 0.0):
        return f"{option} buys no device: the cheapest on offer costs {cheapest:g} USD an hour"
    return f"{option}: no plan was found on devices that cost so much together"
