"""Numbers as people read them."""

from __future__ import annotations

import pytest

from heterps_configs.units import bytes_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (90, "90 B"),
        (1023, "1,023 B"),
        (1.5 * 2**30, "1.5 GiB"),
        (40e9, "37.3 GiB"),
        (1_000_000 * 2**30, "1,000,000 GiB"),
        (0, "0 B"),
        (-3 * 2**20, "-3 MiB"),
    ],
)
def test_bytes_are_said_in_units_of_their_size(num_bytes: float, text: str) -> None:
    assert bytes_text(num_bytes) == text
