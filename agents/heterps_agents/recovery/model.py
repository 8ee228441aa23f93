"""How long a run still takes under a plan that goes on after devices were lost or came back.

The choice among plans of recovery is by predicted time to finish, as in Chameleon (arXiv
2508.21613): re-planning + moving state + steps that are repeated + steps that remain. A plan with a
slower step that keeps all state in place wins when few steps remain, and loses when many do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from heterps_configs.documents.plan import Plan
from heterps_envs.online.equal_devices import keep_in_place
from heterps_envs.online.state_moves import (
    MOVE_OVERHEAD_S,
    missing_layers,
    move_s,
    moved_bytes,
    state_moves,
)
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Of the storage that checkpoints are read from, where nobody says: about that of one local SSD.
STORAGE_BYTES_PER_S = 1e9


class Situation(NamedTuple):
    """What a plan of recovery starts from.

    Attributes:
        problem: With all devices that ever were, lost ones too: links of what moves.
        left: The problem without the lost devices.
        plan: What ran.
        lost: Devices that are gone.
        step: First step that is still to be done.
        num_steps: Of the whole run.
        checkpoint_step: First step after the newest complete checkpoint; 0 without one.
        overhead_s: Of any change of plans, beside its bytes.
        storage_bytes_per_s: Of the checkpoints.
    """

    problem: Problem
    left: Problem
    plan: Plan
    lost: tuple[str, ...]
    step: int
    num_steps: int
    checkpoint_step: int = 0
    overhead_s: float = MOVE_OVERHEAD_S
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S

    @property
    def missing_layers(self) -> tuple[int, ...]:
        """Layers of whose state every holder of some part is lost: it is only in checkpoints."""
        return missing_layers(self.plan, self.lost)

    @property
    def repeated_steps(self) -> int:
        """Steps that were done and are done again, because a layer's newest state is lost."""
        return max(0, self.step - self.checkpoint_step) if self.missing_layers else 0


@dataclass(frozen=True)
class Prediction:
    """What is expected of one plan of recovery, in seconds.

    Attributes:
        rule: How the plan was made.
        plan: The plan.
        step_s: A simulated step.
        replanning_s: Of planning all that is compared; 0 where it was planned before the loss.
        state_s: Moving state, and reading what no device holds any more.
        moved_bytes: That cross a link or are read.
        repeated_s: Steps that were done before.
        remaining_s: Steps that were not.
    """

    rule: str
    plan: Plan
    step_s: float
    replanning_s: float
    state_s: float
    moved_bytes: int
    repeated_s: float
    remaining_s: float

    @property
    def finish_s(self) -> float:
        """From the loss to the end of the run."""
        return self.replanning_s + self.state_s + self.repeated_s + self.remaining_s

    def to_mapping(self) -> dict[str, Any]:
        """Plain data without the plan."""
        content = {name: value for name, value in asdict(self).items() if name != "plan"}
        return {**content, "finish_s": self.finish_s}


def predict(situation: Situation, rule: str, plan: Plan) -> Prediction:
    """Predicts the rest of the run under a plan.

    Args:
        situation: What the plan starts from.
        rule: How it was made.
        plan: On devices that are left. Of equal devices those that hold most take its stages.
    """
    plan = keep_in_place(situation.left, situation.plan, plan)
    step_s = plan.predicted_step_time_s
    if step_s is None:
        step_s = estimate(situation.left, plan).step_time_s
    moves = state_moves(situation.problem, situation.plan, plan, situation.lost)
    remaining = max(0, situation.num_steps - situation.step)
    return Prediction(
        rule=rule,
        plan=plan,
        step_s=step_s,
        replanning_s=0.0,
        state_s=move_s(
            situation.problem,
            moves,
            overhead_s=0.0 if plan.runs_like(situation.plan) else situation.overhead_s,
            storage_bytes_per_s=situation.storage_bytes_per_s,
        ),
        moved_bytes=moved_bytes(moves),
        repeated_s=situation.repeated_steps * step_s,
        remaining_s=remaining * step_s,
    )


def at_step(prediction: Prediction, situation: Situation) -> Prediction:
    """The same prediction when the run has come to another step.

    Args:
        prediction: Made for the same plans and losses.
        situation: How far the run is, and its newest checkpoint.
    """
    remaining = max(0, situation.num_steps - situation.step)
    return replace(
        prediction,
        repeated_s=situation.repeated_steps * prediction.step_s,
        remaining_s=remaining * prediction.step_s,
    )


def best_of(predictions: Collection[Prediction]) -> Prediction:
    """The one that finishes first; of equals the one that moves least, then the first."""
    return min(predictions, key=lambda each: (round(each.finish_s, 6), each.moved_bytes))


def describe(predictions: Collection[Prediction]) -> str:
    """All predictions in one line, the best first."""
    ordered = sorted(predictions, key=lambda each: (round(each.finish_s, 6), each.moved_bytes))
    parts = [
        f"{each.rule} {each.finish_s:.3g} s (step {each.step_s:.4g} s, "
        f"state {each.state_s:.2g} s for {each.moved_bytes / 1e6:.3g} MB"
        + (f", repeated {each.repeated_s:.2g} s" if each.repeated_s else "")
        + ")"
        for each in ordered
    ]
    return "; ".join(parts)
