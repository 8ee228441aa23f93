"""Events of a run: what is done to its devices on purpose, to see how it copes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import Count, Factor, Seconds

Kind = Literal["lose", "stop", "join", "slow"]
_KINDS: tuple[Kind, ...] = ("lose", "stop", "join", "slow")


class RunEvent(Document):
    """One event; it names its device under what happens to it.

    Attributes:
        step: Happens when so many steps are done, counted from the beginning of training.
        time_s: Instead: seconds after the first step of the run.
        lose: A device whose process is killed.
        stop: A device whose process is stopped, as if it hung.
        join: A device that comes, or comes back.
        slow: An emulated device (or link, `fast->medium`) that is slower from then on: drift that
            no planner knows of.
        factor: How many times as long the passes and optimizer steps of a slow device take, or the
            messages and gradient sums over a slow link; below 1 it is faster.
    """

    step: Count | None = None
    time_s: Seconds | None = None
    lose: str | None = None
    stop: str | None = None
    join: str | None = None
    slow: str | None = None
    factor: Factor | None = None

    @model_validator(mode="after")
    def _is_one_event(self) -> Self:
        named = [kind for kind in _KINDS if getattr(self, kind)]
        if len(named) != 1:
            given = f", got {' and '.join(named)}" if named else ""
            raise ValueError(f"needs exactly one of {', '.join(_KINDS)}{given}")
        if self.slow is None and self.link is not None:
            raise ValueError(
                f"`{named[0]}` takes a device, and {self.subject} is a link: only `slow` takes one"
            )
        if named == ["slow"]:
            if self.factor is None or self.time_s is not None:
                raise ValueError(
                    "`slow` needs a factor and takes a step, such as {step: 10, slow: fast, "
                    "factor: 3}"
                )
        elif self.factor is not None:
            raise ValueError(f"only `slow` has a factor, and this is `{named[0]}`")
        elif (self.step is None) == (self.time_s is None):
            raise ValueError(
                f"needs a step or a time_s, such as {{step: 10, {named[0]}: {self.subject}}}"
            )
        return self

    @property
    def kind(self) -> Kind:
        """What happens."""
        return next(kind for kind in _KINDS if getattr(self, kind))

    @property
    def subject(self) -> str:
        """What it happens to: a device, or a link."""
        return str(getattr(self, self.kind))

    @property
    def link(self) -> tuple[str, str] | None:
        """Source and destination of a slow link; None for what happens to a device."""
        source, arrow, destination = self.subject.partition("->")
        return (source, destination) if arrow else None

    def slows(self, subject: str | tuple[str, str], step: int) -> float:
        """The factor of a device, or of a link, at a step; 1 where this is no matter of it."""
        is_meant = self.slow is not None and subject in (self.slow, self.link)
        return (self.factor or 1.0) if is_meant and step >= (self.step or 0) else 1.0


class RunEvents(Document):
    """An events file.

    Attributes:
        description: One line for lists.
        events: In any order.
    """

    description: str = ""
    events: tuple[RunEvent, ...] = ()
