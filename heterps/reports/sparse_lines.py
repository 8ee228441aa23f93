"""Lines of progress where there is no terminal: at every tenth of the work, or after a minute."""

from __future__ import annotations

LINE_EVERY_S = 60.0


class SparseLines:
    """Says when the next line is due.

    Args:
        start_s: When the work began, by any clock.
    """

    def __init__(self, start_s: float) -> None:
        self._last_line_s, self._last_tenth = start_s, 0

    def is_due(self, tenth: int, now_s: float) -> bool:
        """Whether to print a line now; then it counts as printed.

        Args:
            tenth: How many tenths of the work are done.
            now_s: By the same clock.
        """
        if tenth <= self._last_tenth and now_s - self._last_line_s < LINE_EVERY_S:
            return False
        self._last_line_s, self._last_tenth = now_s, tenth
        return True
