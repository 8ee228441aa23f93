"""Methods get the budgets that the table says, and gaps are counted from the right reference."""

from __future__ import annotations

import math

import pytest

from benchmarks.agent.comparison import Entry, Measured, References, measure, summarise
from heterps_agents.interface.planner import Budget


def _answer(value: float | None) -> Entry[None, float]:
    return Entry(f"says {value}", lambda case, budget, seed: value)


def _exact() -> Entry[None, float]:
    return Entry("exact", lambda case, budget, seed: 1.0, proves=True)


def _found(cost: float | None, cpu_s: float = 1e-3) -> Measured:
    return Measured(cost=cost, cpu_s=cpu_s, evaluations=1)


def test_an_entry_gets_the_cpu_seconds_of_the_one_it_names() -> None:
    seen: list[float | None] = []

    def looks(case: None, budget: Budget, seed: int) -> float:
        seen.append(budget.cpu_seconds)
        return 1.0

    name = "says 2.0"
    half = Entry("looks", looks, cpu_of=name, cpu_divisor=2)
    entries = [_answer(2.0), Entry("looks", looks, cpu_of=name), half]
    measured = measure(entries, None, lambda case, answer: answer, seed=0)
    whole_s = measured[name]["cpu_s"]
    assert seen == [whole_s, whole_s / 2]
    assert half.budget == f"1/2 of the {entries[1].budget}"


def test_an_entry_gets_the_evaluations_that_its_name_says() -> None:
    seen: list[int | None] = []

    def looks(case: None, budget: Budget, seed: int) -> float:
        seen.append(budget.evaluations)
        budget.spend(7)
        return 1.0

    entry = Entry("looks", looks, evaluations=2000)
    measured = measure([entry], None, lambda case, answer: answer, seed=0)
    assert set(seen) == {2000}
    assert measured["looks, 2,000 evaluations"]["evaluations"] == 7


@pytest.mark.parametrize("answer", [None, math.inf])
def test_nothing_usable_has_no_cost(answer: float | None) -> None:
    measured = measure([_answer(answer)], None, lambda case, value: value, seed=0)
    assert measured[f"says {answer}"]["cost"] is None


def test_a_proof_is_the_reference_even_if_another_method_claims_less() -> None:
    exact = _exact()
    rows = [{"exact": _found(2.0), "says 1.0": _found(1.0)}]
    references = References.of(rows, [exact, _answer(1.0)])
    assert references.cost == [2.0]
    assert references.is_proven == [True]


def test_without_a_proof_the_best_is_the_reference() -> None:
    rows = [{"says 3.0": _found(3.0), "says 2.0": _found(2.0)}]
    references = References.of(rows, [_answer(3.0), _answer(2.0)])
    assert references.cost == [2.0]
    assert "best that any method" in references.described


def test_infeasible_counts_only_what_somebody_solved() -> None:
    a, b = _answer(1.0), _answer(None)
    rows = [
        {a.name: _found(1.0), b.name: _found(None)},
        {a.name: _found(None), b.name: _found(None)},
    ]
    by_name = {row["method"]: row for row in summarise(rows, [a, b])}
    assert by_name[a.name]["infeasible"] == 0
    assert by_name[b.name]["infeasible"] == 1
    assert by_name[b.name]["problems"] == 1
    assert math.isinf(by_name[b.name]["gap_median"])
    assert "No method found a placement of 1 more" in References.of(rows, [a, b]).described


def test_gaps_are_over_the_reference() -> None:
    a, b = _answer(1.0), _answer(1.1)
    rows = [{a.name: _found(1.0), b.name: _found(cost)} for cost in (1.0, 1.0005, 1.1, 2.0)]
    row = summarise(rows, [a, b])[1]
    assert row["gap_median"] == pytest.approx(0.0005)
    assert row["gap_mean"] == pytest.approx((0.0005 + 0.1 + 1.0) / 4)
    assert row["optimal"] == 0.5


def test_costs_over_another_entry_are_means_of_ratios() -> None:
    a, b = _answer(1.0), _answer(2.0)
    rows = [{a.name: _found(1.0), b.name: _found(cost)} for cost in (0.8, 1.0)]
    row = summarise(rows, [a, b], against=a.name)[1]
    assert row[f"over {a.name}"] == pytest.approx(-0.1)


def test_a_method_that_gave_up_proves_nothing_and_is_not_infeasible() -> None:
    exact = _exact()
    a = _answer(1.0)
    rows = [
        {"exact": _found(1.0), a.name: _found(1.0)},
        {"exact": _found(None), a.name: _found(1.0)},
    ]
    row = summarise(rows, [exact, a])[0]
    assert (row["problems"], row["infeasible"]) == (1, 0)
