"""The one family of errors that a user can cause; every other exception is a defect of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# A profile has hundreds of layers: more than this would hide the first problem.
MAX_SHOWN_PROBLEMS = 12
LONGEST_PROBLEM, LONGEST_NAME = 1000, 200


class HeterpsError(ValueError):
    """Bad input of a user. Its text is one clear message; commands print it and exit with 2."""


class DocumentError(HeterpsError):
    """A document breaks its schema. Carries every problem of the file at once.

    Attributes:
        source: Where the document came from (a path or a shipped name).
        problems: One line for each problem, each starting with the path of its field.
    """

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        shown = [shortened(text) for text in self.problems[:MAX_SHOWN_PROBLEMS]]
        if len(self.problems) > len(shown):
            shown.append(f"and {len(self.problems) - len(shown)} problems more")
        super().__init__(f"{source}: " + "; ".join(shown))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes make it of what it was made of, not of its text."""
        return type(self), (self.source, self.problems)


def shortened(text: str, longest: int = LONGEST_PROBLEM) -> str:
    """What names something of a user's, without the middle of what is too long for a line."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


class UnknownNameError(HeterpsError):
    """A name that nobody knows; the message suggests the near ones."""

    def __init__(self, kind: str, name: str, available: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self._hint = kind, name, hint
        self.available = tuple(sorted(set(available)))
        near = _near(name, self.available)
        known = (
            f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(self.available)}"
        )
        said = shortened(repr(name), LONGEST_NAME)
        super().__init__(f"unknown {kind} {said}; {known}" + (f" {hint}" if hint else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        """See `DocumentError`."""
        return type(self), (self.kind, self.name, self.available, self._hint)


def _near(name: str, available: tuple[str, ...]) -> list[str]:
    """Up to three names that a user may have meant, whatever their case."""
    known = {entry.casefold(): entry for entry in available}
    wanted = name.casefold()
    longer = [entry for entry in known if wanted and entry.startswith(wanted)]
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    return [known[match] for match in dict.fromkeys([*longer, *close])][:3]


class InfeasibleError(HeterpsError):
    """No plan can satisfy the problem; the message names the limit and by how much it is missed.

    Attributes:
        least_step_time_s: Where plans exist, and none comes near one that is known: no closed-form
            step time is below this; None where that is not known.
    """

    def __init__(self, message: str, least_step_time_s: float | None = None) -> None:
        super().__init__(message)
        self.least_step_time_s = least_step_time_s


class TooDearError(HeterpsError):
    """A planner gives up: its answer would take more than it may. There may be plans."""


class PlanMismatchError(HeterpsError):
    """A plan that was made for another model or another cluster."""


class NotEnoughDevicesError(HeterpsError):
    """A run cannot go on with the devices that are left; the message names the limit."""
