"""Budgets: what is used, what is left, and what a search makes of a limit in seconds."""

import math
import time

import pytest
from numba import njit

from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.planner import Budget
from heterps_configs.errors import HeterpsError


def burn(cpu_seconds: float) -> None:
    """Keeps a processor busy."""
    end = time.process_time() + cpu_seconds
    while time.process_time() < end:
        pass


def test_a_budget_without_limits_never_ends() -> None:
    budget = Budget()
    budget.spend(10**9)
    assert not budget.is_exhausted
    assert not budget.has_time_limit
    assert budget.evaluations_left is None
    assert budget.seconds_left == budget.cpu_seconds_left == math.inf
    assert budget.time_share == 0


def test_processor_seconds_are_those_of_work_not_of_waiting() -> None:
    budget = Budget(cpu_seconds=0.02)
    time.sleep(0.05)
    assert not budget.is_exhausted
    assert 0 < budget.cpu_seconds_left <= 0.02
    assert 0 < budget.seconds_left <= 0.02
    burn(0.02)
    assert budget.is_exhausted
    assert budget.cpu_seconds_left == 0
    assert budget.time_share == 1


def test_the_limit_that_ends_first_ends_the_budget() -> None:
    budget = Budget(evaluations=3, seconds=1e-9, cpu_seconds=60)
    assert budget.is_exhausted
    assert budget.evaluations_left == 3
    assert budget.cpu_seconds_left > 0
    assert budget.seconds_left == 0


def test_chunks_end_with_the_processor_seconds() -> None:
    budget = Budget(cpu_seconds=0.01)
    shares = []
    for chunk in chunks(budget, 10, seed=0):
        shares.append(chunk.start)
        burn(0.004)
    assert 2 <= len(shares) <= 4
    assert shares == sorted(shares)
    assert budget.is_exhausted


@pytest.mark.parametrize("limit", ["evaluations", "seconds", "cpu_seconds"])
def test_a_budget_of_nothing_is_refused(limit: str) -> None:
    with pytest.raises(HeterpsError, match=f"{limit} 0: expected"):
        Budget(**{limit: 0})


def test_seconds_that_no_clock_counts_are_refused() -> None:
    with pytest.raises(HeterpsError, match="expected a finite number above 0"):
        Budget(seconds=10**400)


def test_what_a_part_finds_its_whole_finds_on_its_own_clock() -> None:
    whole = Budget(evaluations=100, cpu_seconds=60)
    burn(0.01)
    whole.found(3.0)
    whole.spend(10)
    part = whole.share(0.5).part(20)
    part.spend(5)
    part.found(2.0)
    part.found(2.5)
    whole.found(1.0)
    assert whole.finds == part.finds
    assert [(find.cost, find.evaluations) for find in whole.finds] == [
        (3.0, 0),
        (2.0, 15),
        (1.0, 10),
    ]
    assert [find.cpu_seconds for find in whole.finds] == sorted(f.cpu_seconds for f in part.finds)
    assert part.finds[1].cpu_seconds >= 0.01


def test_costs_of_unlike_views_are_not_compared() -> None:
    budget = Budget()
    budget.found(1.0, view="links inside nodes")
    budget.found(2.0, view="links between them")
    assert [find.cost for find in budget.finds] == [1.0, 2.0]


def test_a_budget_is_charged_what_its_share_spent_and_what_stands_beside() -> None:
    budget = Budget(evaluations=100)
    own = budget.share(0.5)
    own.spend(20)
    own.spend_beside(1000)
    budget.charge(own)
    assert budget.evaluations_used == 1020
    assert budget.evaluations_left == 80


def test_what_kernels_take_to_be_compiled_is_no_part_of_it() -> None:
    @njit(cache=False)
    def kernel(value: float) -> float:
        return value + 1.0

    budget, start_s = Budget(seconds=60, cpu_seconds=60), time.perf_counter()
    kernel(1.0)
    passed_s = time.perf_counter() - start_s
    assert budget.seconds_used < 0.5 * passed_s
    assert budget.cpu_seconds_used < 0.5 * passed_s
