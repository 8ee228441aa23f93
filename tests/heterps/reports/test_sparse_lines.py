"""Lines of progress where there is no terminal."""

from __future__ import annotations

from heterps.reports.sparse_lines import SparseLines


def test_a_line_is_due_at_every_tenth_and_after_a_minute() -> None:
    lines = SparseLines(start_s=0.0)
    calls = [(0, 1.0), (1, 2.0), (1, 3.0), (1, 63.0), (2, 64.0)]
    assert [lines.is_due(*call) for call in calls] == [False, True, False, True, True]
