"""The controller of `heterps run --elastic`: which plan a run goes on with.

When devices are lost, every rule of recovery makes a plan (simple, borrow, merge, templates), and
so does planning anew; the one that is predicted to finish the run first is taken. When devices come
back, the plan that uses them is taken if that finishes sooner than going on as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from heterps_agents.recovery_model import Prediction, Situation, best_of, describe
from heterps_agents.recovery_plans import recovery_predictions
from heterps_configs.plan import Plan
from heterps_envs.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_runtime.run_state import PlanUpdate

# Seconds that planning anew may take while the devices wait.
PLANNING_S = 0.5


class Change(Protocol):
    """What the runtime says of a change: `heterps_runtime.elastic_run.MembershipChange`."""

    @property
    def step(self) -> int:
        """See there."""
        ...

    @property
    def num_steps(self) -> int:
        """See there."""
        ...

    @property
    def lost(self) -> tuple[str, ...]:
        """See there."""
        ...

    @property
    def joined(self) -> tuple[str, ...]:
        """See there."""
        ...

    @property
    def alive(self) -> tuple[str, ...]:
        """See there."""
        ...

    @property
    def plan(self) -> Plan:
        """See there."""
        ...


@dataclass(frozen=True)
class RecoveryDecision:
    """Which plan a run went on with, and what was predicted of all of them.

    Attributes:
        step: First step of the new plan, as far as it was known.
        lost, joined: Names of devices.
        chosen: The rule whose plan was taken.
        predictions: Of every plan, the chosen one first.
        decided_s: Seconds that the decision took.
        text: One line for people.
    """

    step: int
    lost: tuple[str, ...]
    joined: tuple[str, ...]
    chosen: str
    predictions: tuple[Prediction, ...]
    decided_s: float
    text: str

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return {
            "step": self.step,
            "lost": list(self.lost),
            "joined": list(self.joined),
            "chosen": self.chosen,
            "predictions": [each.to_mapping() for each in self.predictions],
            "decided_s": self.decided_s,
            "text": self.text,
        }


class ElasticController:
    """Answers every change of the devices with the plan that is predicted to finish first.

    Args:
        problem: With all devices of the cluster.
        planning_s: Seconds that planning anew may take while the devices wait.
        checkpoint_step: Says the first step behind the newest complete checkpoint.
        seed: Of planners.
        on_message: Receives one line for people at each decision.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        planning_s: float = PLANNING_S,
        checkpoint_step: Callable[[], int] = lambda: 0,
        seed: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem = problem
        self.planning_s, self.seed = planning_s, seed
        self.decisions: list[RecoveryDecision] = []
        self._checkpoint_step, self._on_message = checkpoint_step, on_message

    def replan(self, change: Change) -> PlanUpdate:
        """The plan to go on with.

        Args:
            change: Devices that were lost or came back.

        Raises:
            NotEnoughDevicesError: No plan fits on what is left; the message says what is missing.
        """
        started = time.perf_counter()
        situation = self._situation(change)
        predictions = recovery_predictions(situation, self.planning_s, self.seed)
        best = best_of(predictions)
        decided_s = time.perf_counter() - started
        others = tuple(each for each in predictions if each is not best)
        text = _text(change, best, predictions, decided_s)
        self.decisions.append(
            RecoveryDecision(
                change.step, change.lost, change.joined, best.rule, (best, *others), decided_s, text
            )
        )
        self._on_message(text)
        return PlanUpdate(best.plan, situation.left, change.step)

    def _situation(self, change: Change) -> Situation:
        gone = set(self.problem.device_named) - set(change.alive)
        return Situation(
            problem=self.problem,
            left=without_devices(self.problem, gone),
            plan=change.plan,
            lost=tuple(sorted(gone)),
            step=change.step,
            num_steps=change.num_steps,
            checkpoint_step=self._checkpoint_step(),
        )


def _text(
    change: Change, best: Prediction, predictions: Collection[Prediction], decided_s: float
) -> str:
    happened = " and ".join(
        part
        for part in (
            f"lost {', '.join(change.lost)}" if change.lost else "",
            f"gained {', '.join(change.joined)}" if change.joined else "",
        )
        if part
    )
    return (
        f"step {change.step}: {happened}: {best.rule} after {1e3 * decided_s:.0f} ms; "
        f"predicted time to finish: {describe(predictions)}"
    )
