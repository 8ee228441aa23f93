"""Problems of hundreds of devices: the sizes that were asked for, equal nodes in one class."""

import pytest

from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.scale import SCALE_SETS, ScaleDraw


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALE_SETS)
def test_a_set_has_its_sizes(name: str) -> None:
    draw = SCALE_SETS[name]
    for problem in draw.problems(6):
        tables = problem.plain.tables
        # A node of each type at least, so a few more than were drawn.
        assert draw.devices[0] - 64 <= int(tables.device_count.sum()) <= draw.devices[1] + 64
        assert draw.types[0] <= tables.num_classes <= draw.types[1]


@pytest.mark.slow
def test_the_sets_are_of_other_seeds_and_a_seed_draws_the_same_again() -> None:
    first, second = (draw.problems(2) for draw in SCALE_SETS.values())
    again = SCALE_SETS["development-scale"].problems(2)
    tables = [[problem.plain.tables for problem in each] for each in (first, second, again)]
    assert fingerprint(tables[0]) == fingerprint(tables[2]) != fingerprint(tables[1])


def test_a_small_draw_needs_no_set() -> None:
    (problem,) = ScaleDraw(5, 1, devices=(64, 64), types=(2, 2)).problems()
    assert len(problem.classes) == 2
