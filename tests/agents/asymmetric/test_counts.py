"""Multisets of devices: each once, with the index of the one with a device less."""

from itertools import product

import pytest

from heterps_agents.asymmetric.counts import counts_up_to, num_counts


@pytest.mark.parametrize(
    ("most", "most_devices"), [((2, 3), 5), ((2, 3, 1), 3), ((4,), 2), ((1, 1), 1)]
)
def test_all_multisets_within_limits_are_there_once(
    most: tuple[int, ...], most_devices: int
) -> None:
    counts = counts_up_to(most, most_devices)
    expected = {
        vector
        for vector in product(*(range(count + 1) for count in most))
        if sum(vector) <= most_devices
    }
    found = [tuple(vector) for vector in counts.vectors.tolist()]
    assert set(found) == expected
    assert len(found) == len(expected) == num_counts(most, most_devices)
    assert counts.totals.tolist() == sorted(counts.totals.tolist())
    assert found[0] == (0,) * len(most)


def test_one_less_is_found_for_each_class() -> None:
    counts = counts_up_to((2, 2), 3)
    for index, vector in enumerate(counts.vectors.tolist()):
        for kind, count in enumerate(vector):
            less = int(counts.less[index, kind])
            if count == 0:
                assert less == -1
            else:
                vector_less = counts.vectors[less].tolist()
                assert vector_less == [c - (k == kind) for k, c in enumerate(vector)]
