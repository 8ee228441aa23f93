"""Problems side by side, padded: each is still the problem that it was."""

import numpy as np

from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.environments.stage.packed import kernel_of, kernel_tables_of, pack_problems
from heterps_envs.problem_sets.chains import generate


def test_a_packed_problem_is_the_problem() -> None:
    tables = generate(5, seed=31, layers=(5, 12), classes=(1, 5))
    problems = pack_problems(tables)
    for row, entry in enumerate(tables):
        expected, found = kernel_tables(entry), kernel_of(problems, row)
        for name in KernelTables._fields:
            value = np.asarray(getattr(expected, name))
            part = np.asarray(getattr(found, name))[tuple(slice(size) for size in value.shape)]
            np.testing.assert_array_equal(part, value)
        assert (found.device_count[entry.num_classes :] == 0).all()


def test_a_packed_problem_comes_back_without_its_padding() -> None:
    tables = generate(5, seed=31, layers=(5, 12), classes=(1, 5))
    problems = pack_problems(tables)
    for row, entry in enumerate(tables):
        expected, found = kernel_tables(entry), kernel_tables_of(problems, row)
        for name in KernelTables._fields:
            mine, other = (np.asarray(getattr(one, name)) for one in (found, expected))
            np.testing.assert_array_equal(mine, other)
            assert mine.dtype == other.dtype
