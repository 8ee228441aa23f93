"""Where output goes: the answer to stdout, progress and remarks to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from heterps_configs.errors import HeterpsError
from heterps_configs.units import escaped

# Columns of what goes into a pipe or a file.
_WIDTH_OF_FILES = 120
# Of progress where there is no terminal.
LINE_EVERY_S = 60.0


class _StandardOutput:
    """stdout, whatever it is now; where it cannot be written (a full disk), that is a user's."""

    def write(self, text: str) -> int:
        try:
            return sys.stdout.write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HeterpsError(f"stdout: cannot be written: {error.strerror}") from None

    def flush(self) -> None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            _forget_output()
            raise HeterpsError(f"stdout: cannot be written: {error.strerror}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def _forget_output() -> None:
    """Or Python would try to write the rest once more, at its end."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


class PlainConsole(Console):
    """Shows what stands in files as it stands there.

    No text is taken for markup, and control characters, which could rewrite a terminal, are
    escaped.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    @property
    def size(self) -> ConsoleDimensions:
        """Where no terminal sets the width, tables are not cut to that of a narrow one."""
        found = super().size
        if self._width is not None or self.is_terminal or "COLUMNS" in os.environ:
            return found
        return found._replace(width=max(found.width, _WIDTH_OF_FILES))

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render_str(self, text: str, **settings: Any) -> Text:
        """Escaped before it gets its place: it then has the width that it needs."""
        return super().render_str(escaped(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Whatever is printed passes here, that is no string, too: texts, bars."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


answer = PlainConsole(file=cast("IO[str]", _StandardOutput()), soft_wrap=True)
remarks = PlainConsole(stderr=True)


def say_when_compiling() -> None:
    """Lets a command say why its first use takes long. Imports numba."""
    from heterps_envs.kernel_cache import tell_when_compiling

    tell_when_compiling(
        lambda: remarks.print(
            "compiling kernels: once after installation, some minutes; no part of any budget "
            "(`heterps compile` does it beforehand)",
            soft_wrap=True,
        )
    )


def print_json(data: Any) -> None:
    """Prints one JSON document and nothing else."""
    answer.file.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
    answer.file.flush()


def seconds_text(seconds: float) -> str:
    """Seconds for people: 3.2 ms."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def percent_text(share: float, digits: int = 0, *, is_change: bool = False) -> str:
    """A share for people: 12 %, a change +1.5 %; never -0 %, which rounding makes of -0.001."""
    # Adding zero turns -0.0 into 0.0.
    percent = round(100 * share, digits) + 0.0
    return f"{percent:{'+' if is_change else ''}.{digits}f} %"


def interval_text(
    low_s: float | None, high_s: float | None, unmeasured_types: Sequence[str]
) -> str:
    """After a step time, how sure it is: ` (0.9-1.6 s: V100-16G was not measured here)`.

    Empty where every layer time was measured.
    """
    if low_s is None or high_s is None:
        return ""
    low, high = seconds_text(float(f"{low_s:.2g}")), seconds_text(float(f"{high_s:.2g}"))
    number, unit = low.split(" ")
    range_text = f"{number}-{high}" if high.endswith(f" {unit}") else f"{low} - {high}"
    names = ", ".join(unmeasured_types)
    were = "was" if len(unmeasured_types) == 1 else "were"
    return f" ({range_text}: {names} {were} not measured here)"


class SparseLines:
    """When to print the next line of progress where there is no terminal.

    That is at every tenth of the work, or after a minute.

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
