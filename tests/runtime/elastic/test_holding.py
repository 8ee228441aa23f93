"""Whether a step counts: one answer for all survivors, whatever moment broke the generation."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.elastic.holding import Committed, Holding
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.layout import HeldState
from tests.runtime.small_runs import chain_of, problem_of


class _Rows:
    """Gathers with ranks that are played by numbers."""

    def __init__(self, *others: tuple[float, ...]) -> None:
        self._others = others

    def gather_numbers(self, *values: float) -> list[list[float]]:
        return [list(values), *(list(row) for row in self._others)]


def _prepared(model: str = "sequential") -> tuple[OwnedStages, Holding]:
    """A rank whose gradients of step 3 are complete."""
    problem = problem_of(model)
    run = LocalRun.of(problem, chain_of(problem, devices=("d0",)))
    owned, executor = run.owned["d0"], run.executors["d0"]
    holding = Holding()
    holding.take(owned, 3)
    holding.begin_step()
    batches = micro_batches(run.specification, 3, executor.micro_batches)
    executor.begin(batches, 0.0)
    for index, step in enumerate(executor.program):
        if step.action.kind != "step":
            executor.execute(index)
    holding.prepare()
    return owned, holding


def _values(owned: OwnedStages) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in owned.parameters.values()]


def test_a_prepared_step_is_updated_where_another_rank_has_updated() -> None:
    owned, holding = _prepared()
    before = _values(owned)
    known = holding.settle(_Rows((4, 0, 3, 0.5, 2)))  # type: ignore[arg-type]
    assert known == Committed(3, 0.5, 2)
    assert holding.step == 4
    assert not all(torch.equal(a, b) for a, b in zip(before, _values(owned), strict=True))
    assert all(parameter.grad is None for parameter in owned.parameters.values())


def test_a_prepared_step_is_dropped_where_nobody_has_updated() -> None:
    owned, holding = _prepared()
    before = _values(owned)
    assert holding.settle(_Rows((3, 1, -1, 0.0, -1))) is None  # type: ignore[arg-type]
    assert holding.step == 3
    assert all(torch.equal(a, b) for a, b in zip(before, _values(owned), strict=True))
    assert all(parameter.grad is None for parameter in owned.parameters.values())


@pytest.mark.slow
def test_running_statistics_of_a_dropped_step_are_those_of_before() -> None:
    owned, holding = _prepared("resnet")
    module = owned.modules["s0"]
    changed = {name: buffer.clone() for name, buffer in module.buffers_by_name().items()}
    holding.settle(_Rows())  # type: ignore[arg-type]
    restored = module.buffers_by_name()
    counts = [name for name in changed if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(changed[name]) > 0 and int(restored[name]) == 0 for name in counts)


@pytest.mark.slow
def test_a_committed_step_is_not_taken_back() -> None:
    owned, holding = _prepared("resnet")
    holding.commit(loss=0.25, generation=0)
    owned.apply_gradients()
    module = owned.modules["s0"]
    kept = {name: buffer.clone() for name, buffer in module.buffers_by_name().items()}
    assert holding.settle(_Rows((3, 1, -1, 0.0, -1))) == Committed(3, 0.25, 0)  # type: ignore[arg-type]
    assert holding.step == 4
    assert all(torch.equal(kept[name], b) for name, b in module.buffers_by_name().items())


def test_a_process_that_holds_nothing_settles_nothing() -> None:
    holding = Holding()
    assert holding.settle(_Rows((5, 0, 4, 1.5, 1))) == Committed(4, 1.5, 1)  # type: ignore[arg-type]
    assert (holding.step, holding.state) == (None, HeldState({}))


class _Steps:
    """A rank without tensors: what counts is how often it updates."""

    def __init__(self) -> None:
        self.num_updates = 0
        self.modules: dict[str, object] = {}
        self.parameters: dict[str, object] = {}

    def apply_gradients(self) -> None:
        self.num_updates += 1


class _ToldError(Exception):
    pass


class _Listening(_Rows):
    """Ends the gathering when the rank has told what it knows."""

    def gather_numbers(self, *values: float) -> list[list[float]]:
        self.told = values
        raise _ToldError


def _told_by(holding: Holding) -> tuple[float, ...]:
    listening = _Listening()
    with pytest.raises(_ToldError):
        holding.settle(listening)  # type: ignore[arg-type]
    return listening.told


@cache
def _rank_strategy() -> st.SearchStrategy[list[str]]:
    # How far each of the ranks came with the vote when one of them was lost.
    return st.lists(st.sampled_from(("computing", "prepared", "updated")), min_size=2, max_size=5)


@pytest.mark.slow
@given(states=_rank_strategy(), lost=st.sets(st.integers(0, 4)))
@settings(max_examples=200, deadline=None)
def test_all_survivors_end_with_the_same_number_of_updates(
    states: list[str], lost: set[int]
) -> None:
    if "updated" in states:  # the vote was complete: then all had prepared
        states = ["prepared" if state == "computing" else state for state in states]
    ranks: list[tuple[_Steps, Holding]] = []
    for state in states:
        owned, holding = _Steps(), Holding()
        holding.take(owned, 7)  # type: ignore[arg-type]
        if state != "computing":
            holding.prepare()
        if state == "updated":
            holding.commit(loss=1.0, generation=0)
            owned.apply_gradients()
        ranks.append((owned, holding))
    survivors = [rank for number, rank in enumerate(ranks) if number not in lost]
    rows = [_told_by(holding) for _, holding in survivors]
    for _, holding in survivors:
        holding.settle(_Rows(*rows))  # type: ignore[arg-type]
    assert len({holding.step for _, holding in survivors}) <= 1
    assert all(owned.num_updates == (holding.step or 0) - 7 for owned, holding in survivors)
