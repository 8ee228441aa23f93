"""Plans of the benchmark of moves."""

from __future__ import annotations

from benchmarks.online.moves import _with_other_cuts
from tests.envs.small_problems import chain_problem, plan_of


def test_every_cut_moves_by_a_layer_where_a_layer_stays() -> None:
    problem = chain_problem([1] * 6, [1] * 6, num_micro_batches=2, counts=(4,))
    stages = {
        "a": (0, 1, "d0-0"),
        "b": (0, 1, "d0-1"),
        "c": (2, 4, "d0-2"),
        "d": (5, 5, "d0-3"),
    }
    plan = plan_of(problem, stages, {("a", "c", "d"): [0], ("b", "c", "d"): [1]})
    moved = _with_other_cuts(plan)
    assert [(s.first_layer, s.last_layer) for s in moved.stages] == [(0, 2), (0, 2), (3, 4), (5, 5)]
