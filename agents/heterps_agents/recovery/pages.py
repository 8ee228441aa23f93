"""What the book of recovery plans and the process that fills it tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps_agents.recovery.model import Prediction
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem


class Request(NamedTuple):
    """A plan that runs, and the changes of devices to be ready for.

    Attributes:
        number: Counts requests.
        problem: With all devices that ever were.
        plan: What runs.
        changes: Devices that are there after each change, the likeliest first.
        seed: Of planners.
    """

    number: int
    problem: Problem
    plan: Plan
    changes: Sequence[frozenset[str]]
    seed: int = 0


class Page(NamedTuple):
    """What is ready for one change.

    Attributes:
        number: Of the request.
        alive: Devices that are there after the change.
        predictions: Of every plan; none where no plan fits. Their steps are not counted: a page
            does not know how far the run will be.
        reason: Why no plan fits.
    """

    number: int
    alive: frozenset[str]
    predictions: tuple[Prediction, ...] = ()
    reason: str = ""
