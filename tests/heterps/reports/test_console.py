"""What numbers look like for people."""

from __future__ import annotations

from heterps.reports.console import interval_text


def test_an_interval_names_the_types_that_were_never_measured() -> None:
    assert interval_text(0.912, 1.61, ["V100-16G"]) == (
        " (910 ms - 1.6 s: V100-16G was never measured)"
    )
    assert interval_text(1.04, 1.61, ["V100-16G"]) == " (1-1.6 s: V100-16G was never measured)"
    assert interval_text(0.01, 0.034, ["T4", "L4"]) == " (10-34 ms: T4, L4 were never measured)"


def test_measured_layer_times_need_no_interval() -> None:
    assert interval_text(None, None, []) == ""
