"""The controller of `heterps run --online`: watch, correct, fine-tune, re-place.

While the workers go on with their steps, the controller compares measured with predicted seconds.
When a device has drifted it corrects the problem, fine-tunes the policy inside the corrected
simulator, and asks three candidates for a plan: the stale plan, the fine-tuned policy, and the
exact solver on the corrected problem (where it is affordable). The plan with the shortest simulated
step is adopted when what it gains over the remaining steps pays for the move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heterps.placing import place
from heterps_agents.planner import Planner
from heterps_agents.policy import Policy
from heterps_agents.ppo import PolicyPlanner
from heterps_agents.registry import planner_named
from heterps_configs.errors import HeterpsError
from heterps_configs.plan import Plan
from heterps_envs.correction import StageMeasurement, correct, drift
from heterps_envs.problem import Problem
from heterps_envs.simulator import estimate

# Below this drift a new plan could not gain more than the noise of a measurement.
DRIFT_THRESHOLD = 0.10
# Seconds that a move costs beside its bytes: building stages, groups and buffers on every rank.
MOVE_OVERHEAD_S = 1.0


@dataclass(frozen=True)
class Decision:
    """What the controller decided at one measurement, and why.

    Attributes:
        drift: Measured over predicted compute seconds of each device.
        candidates: Simulated step time of each candidate in the corrected problem, in seconds.
        chosen: Name of the candidate with the shortest step.
        gain_s: What the chosen plan saves in each step.
        move_s: Predicted seconds of the move.
        adopted: The gain over the remaining steps pays for the move.
    """

    step: int
    drift: dict[str, float]
    candidates: dict[str, float]
    chosen: str
    gain_s: float
    move_s: float
    adopted: bool
    fine_tune_s: float
    reason: str

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return asdict(self)


class OnlineController:
    """Decides at every measurement whether to re-place.

    Args:
        problem: As it was when the plan was made.
        plan: What runs now.
        policy: Fine-tuned in place of a copy: the caller's stays as it is.
        fine_tune_s: Seconds of PPO in the corrected simulator for each drift.
        on_message: Receives one line for people at each decision.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        policy: Policy,
        *,
        fine_tune_s: float = 15.0,
        seed: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem, self.plan, self.policy = problem, plan, policy
        self.fine_tune_s, self.seed = fine_tune_s, seed
        self.decisions: list[Decision] = []
        self._on_message = on_message

    def observe(
        self, step: int, remaining_steps: int, measurements: Sequence[StageMeasurement]
    ) -> Plan | None:
        """Takes the newest measurements of the running plan.

        Args:
            step: The last measured step.
            remaining_steps: Steps that a new plan would still run.
            measurements: One for each (device, stage).

        Returns:
            The plan to switch to, or None to stay.
        """
        factors = drift(self.problem, measurements)
        if all(abs(factor - 1) < DRIFT_THRESHOLD for factor in factors.values()):
            return None
        worst = max(factors, key=lambda name: abs(factors[name] - 1))
        self._on_message(f"step {step}: {worst} takes {factors[worst]:.2f} x its predicted time")
        self.problem = correct(self.problem, measurements)
        spent_s = self._fine_tune()
        candidates = self._candidates()
        decision = self._decide(step, remaining_steps, factors, candidates, spent_s)
        self.decisions.append(decision)
        self._on_message(f"step {step}: {decision.reason}")
        if not decision.adopted:
            return None
        self.plan = candidates[decision.chosen]
        return self.plan

    def _fine_tune(self) -> float:
        if self.fine_tune_s <= 0:
            return 0.0
        # SB3 and torch are loaded only when something has drifted.
        from heterps_agents.training import fine_tune

        self._on_message(f"fine-tuning the policy for {self.fine_tune_s:.0f} s")
        started = time.perf_counter()
        tables = [self.problem.tables]
        self.policy = fine_tune(self.policy, tables, seconds=self.fine_tune_s, seed=self.seed)
        return time.perf_counter() - started

    def _candidates(self) -> dict[str, Plan]:
        found = {"stale": self.plan}
        planners: dict[str, Planner] = {
            "policy": PolicyPlanner(seed=self.seed, policy=self.policy),
            "exact": planner_named("exact", seed=self.seed),
        }
        for name, planner in planners.items():
            try:
                found[name] = place(self.problem, planner).plan
            except HeterpsError as error:
                self._on_message(f"{name}: {error}")
        return found

    def _decide(
        self,
        step: int,
        remaining_steps: int,
        factors: dict[str, float],
        candidates: dict[str, Plan],
        spent_s: float,
    ) -> Decision:
        times = {
            name: estimate(self.problem, plan).step_time_s for name, plan in candidates.items()
        }
        # The policy wins ties, so that the exact solver is credited only where it was better.
        preference = {"stale": 0, "policy": 1, "exact": 2}
        chosen = min(times, key=lambda name: (round(times[name], 9), preference[name]))
        gain_s = times["stale"] - times[chosen]
        move_s = move_seconds(self.problem, self.plan, candidates[chosen])
        adopted = chosen != "stale" and gain_s * remaining_steps > move_s
        reason = (
            f"{chosen}: {times[chosen]:.3f} s a step instead of {times['stale']:.3f} s; "
            f"moving takes about {move_s:.1f} s and {remaining_steps} steps remain: "
            + ("adopted" if adopted else "not adopted")
        )
        return Decision(
            step, factors, times, chosen, gain_s, move_s, adopted, round(spent_s, 3), reason
        )


def move_seconds(problem: Problem, old: Plan, new: Plan) -> float:
    """Predicted seconds to move parameters and optimizer state from one plan to another.

    Layers that a device already holds do not move. The bytes that leave the busiest device over its
    slowest link are what takes longest.
    """
    state = problem.tables.state_bytes
    devices = {device.name: device for device in problem.cluster.devices}
    owners = {
        layer: [name for stage in old.stages for name in stage.devices if layer in stage.layers]
        for layer in range(old.num_layers)
    }
    leaving: dict[str, float] = {}
    for stage in new.stages:
        for name in stage.devices:
            for layer in stage.layers:
                if name in owners[layer]:
                    continue
                source = owners[layer][0]
                link = problem.cluster.link(devices[source], devices[name])
                leaving[source] = leaving.get(source, 0.0) + link.transfer_s(float(state[layer]))
    return MOVE_OVERHEAD_S + max(leaving.values(), default=0.0)
