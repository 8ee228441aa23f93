"""What a strategy of recovery is asked and answers when a spot trace is replayed; the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.spot.costs import CAUSES


class SpotChange(NamedTuple):
    """What a strategy answers with a plan.

    Attributes:
        problem: With all devices of the cluster.
        left: With those that are there.
        plan: What ran; None where nothing runs, and all state is in storage.
        lost: Devices of `plan` that lost their state, those that came back since included.
        step: The next one.
        checkpoint_step: First step after the newest checkpoint in storage.
    """

    problem: Problem
    left: Problem
    plan: Plan | None
    lost: tuple[str, ...]
    step: int
    checkpoint_step: int


class SpotAnswer(NamedTuple):
    """A strategy's plan.

    Attributes:
        rule: How it was made.
        planning_s: While nothing is trained.
    """

    plan: Plan
    rule: str
    planning_s: float


class SpotStrategy(Protocol):
    """A way to go on when devices vanish and come back.

    Attributes:
        name: For tables.
        restarts: Every change restarts all processes from storage; otherwise survivors keep their
            state.
    """

    name: str
    restarts: bool

    def answer(self, change: SpotChange) -> SpotAnswer | None:
        """The plan to go on with; None where there is none for the devices that are left."""
        ...


class SpotPoint(NamedTuple):
    """How far training was at a time."""

    time_s: float
    step: int


class SpotRecovery(NamedTuple):
    """One change of plans.

    Attributes:
        time_s: When devices were lost, or taken in.
        lost_devices: Whose state is gone.
        is_join: Nothing was lost.
        rule: How the plan was made.
        step_time_s: Of the plan.
        repeated_steps: Whole ones.
    """

    time_s: float
    lost_devices: tuple[str, ...]
    is_join: bool
    rule: str
    step_time_s: float
    repeated_steps: int
    live_bytes: int
    storage_bytes: int


@dataclass
class SpotResult:
    """What came of a trace.

    Attributes:
        steps: Committed at the end.
        samples_per_step: The global batch.
        lost_s: Seconds by cause, of `CAUSES`.
        cost_usd: Of all devices while they are there.
        used_cost_usd: Of the devices of the plan, while there is one.
        history: Committed steps over time; they fall where training goes back.
    """

    strategy: str
    duration_s: float
    samples_per_step: int
    steps: int = 0
    trained_s: float = 0.0
    lost_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    cost_usd: float = 0.0
    used_cost_usd: float = 0.0
    recoveries: list[SpotRecovery] = field(default_factory=list)
    history: list[SpotPoint] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples that were committed, each once."""
        return self.steps * self.samples_per_step

    @property
    def goodput_samples_per_s(self) -> float:
        """Committed samples over the duration of the trace."""
        return self.samples / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def usd_per_million_samples(self) -> float | None:
        """Of all devices; None where nothing was committed."""
        return self.cost_usd / self.samples * 1e6 if self.samples else None
