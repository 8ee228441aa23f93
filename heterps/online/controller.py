"""The controller of `heterps run --online`: watch, correct, search, re-place.

While the workers go on with their steps, the controller compares measured with predicted seconds,
and learns from all of them (`heterps_envs.online.correction.ProblemBelief`). When a device has
drifted, a process in the background looks for plans in the corrected problem: the exact optimum
where that is affordable, what the learned search finds, and what it finds with a policy that was
fine-tuned there (`heterps.online.search`). The plan with the shortest simulated step is adopted
when what it gains over the remaining steps, less the spread of that, pays for the move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

from heterps.online.drift_watch import ToldDrift
from heterps.online.process import BackgroundSearches, Search
from heterps.online.search import PREFERENCE, STALE, Answer, Candidate, SearchTask
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.online.correction import ProblemBelief, StageMeasurement, drift
from heterps_envs.online.drift_monitor import DriftEvent
from heterps_envs.online.equal_devices import keep_in_place
from heterps_envs.online.state_moves import move_s, pays_back, state_moves
from heterps_envs.problem import PLAIN, Problem
from heterps_runtime.specification.build import why_not_run

# What planners may choose in a run that has had groups: others, or none.
IN_GROUPS = Strategy(tensor_parallel=())


@dataclass(frozen=True)
class Decision:
    """What the controller decided when candidates were there, and why.

    Attributes:
        step: The last measured step.
        drift: Measured over predicted compute seconds of each device, when the search began.
        candidates: Simulated step time of each candidate in the corrected problem, in seconds.
        chosen: Name of the candidate with the shortest step.
        gain_s: What the chosen plan saves in each step.
        gain_spread_s: Standard deviation of that, by what is uncertain about layer times.
        move_s: Predicted seconds of the move.
        adopted: The gain over the remaining steps pays for the move.
        fine_tune_s: Seconds of PPO in the background; 0 where the answer came before it.
        reason: In one line.
    """

    step: int
    drift: dict[str, float]
    candidates: dict[str, float]
    chosen: str
    gain_s: float
    gain_spread_s: float
    move_s: float
    adopted: bool
    fine_tune_s: float
    reason: str

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return asdict(self)


class OnlineController(AbstractContextManager["OnlineController", None]):
    """Decides at every measurement whether to re-place. Never waits for a search.

    Used as a context manager, or ended by `close`: a search ends with it.

    Args:
        problem: As it was when the plan was made.
        plan: What runs now.
        policy: Fine-tuned in place of a copy: the caller's stays as it is.
        settings: When a search begins, what it may take, and when a move pays; its policy is not
            looked at.
        seed: Of planners, fine-tuning and draws.
        on_message: Receives one line for people at each decision.
        start_search: Begins a search; by default in a process in the background, the first of
            which is started at once, so that it has imported everything when it is needed.

    Attributes:
        told: Drift that its messages have told.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        policy: Policy,
        settings: OnlineSettings | None = None,
        *,
        seed: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
        start_search: Callable[[SearchTask], Search] | None = None,
    ) -> None:
        self.problem, self.plan, self.policy = problem, plan, policy
        self.settings, self.seed = settings or OnlineSettings(), seed
        self.decisions: list[Decision] = []
        self.belief, self._first_problem = ProblemBelief(problem), problem
        self.told = ToldDrift()
        self._on_message = on_message
        self._processes = BackgroundSearches() if start_search is None else None
        self._start_search = start_search or self._processes
        self._search: Search | None = None
        # Searches in a row that a further drift ended before they had an answer.
        self._num_superseded = 0
        # What the running plan is called in the answers of the search, and what began it.
        self._running, self._drift = STALE, dict[str, float]()
        self._is_sure, self._gone = False, frozenset[str]()
        # A run that has had groups may have other ones, or none for a while.
        self._strategy = IN_GROUPS if _has_groups(plan) else PLAIN

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends a search that still works."""
        search, self._search = self._search, None
        if search is not None and search.close():
            self._on_message("the search for plans was ended with the run")
        if self._processes is not None:
            self._processes.close()

    @property
    def is_searching(self) -> bool:
        """Whether answers may come that `observe` has not seen."""
        return self._search is not None and self._search.is_working()

    def on_drift(self, events: Sequence[DriftEvent]) -> None:
        """Takes what the monitor of single steps is sure of; the next measurements are acted on."""
        self._is_sure |= any(event.subject.kind != "link" for event in events)

    def plan_changed(self, plan: Plan, problem: Problem, alive: Collection[str]) -> None:
        """Takes note that another plan runs, for example because devices were lost.

        Args:
            plan: What runs from now on.
            problem: What it was made for.
            alive: Devices that plans may use from now on.
        """
        gone = frozenset(self.belief.devices) - frozenset(alive)
        if (
            plan.runs_like(self.plan) and gone == self._gone
        ):  # an own plan, taken over: the search may go on
            return
        if self._search is not None and self._search.close():
            self._on_message("the search for plans was ended: the devices or the plan have changed")
        self._search, self._running, self._gone = None, STALE, gone
        if _has_groups(plan):
            self._strategy = IN_GROUPS
        self.plan, self.problem = plan, problem

    def observe(
        self, step: int, remaining_steps: int, measurements: Sequence[StageMeasurement]
    ) -> Plan | None:
        """Takes the newest measurements of the running plan. Returns at once.

        Args:
            step: The last measured step.
            remaining_steps: Steps that a new plan would still run.
            measurements: One for each (device, stage).

        Returns:
            The plan to switch to, or None to stay.
        """
        self.belief.observe(measurements)
        self._look_for_drift(step, measurements)
        for answer in self._search.poll() if self._search is not None else ():
            self._num_superseded = 0
            if isinstance(answer, str):
                self._on_message(f"step {step + 1}: the search for plans failed: {answer}")
                continue
            plan = self._take(step, remaining_steps, answer)
            if plan is not None:
                return plan
        return None

    def _look_for_drift(self, step: int, measurements: Sequence[StageMeasurement]) -> None:
        """Begins a search where a device is not as the newest search believed.

        Each search that is ended for another one doubles what it takes to end the next: times that
        wander, as on a crowded host, would else begin one after the other, and none would answer.
        """
        settings, factors = self.settings, drift(self.problem, measurements)
        threshold = settings.sure_drift_threshold if self._is_sure else settings.drift_threshold
        self._is_sure = False
        if not self.is_searching:
            self._num_superseded = 0
        threshold *= 2**self._num_superseded
        if all(abs(factor - 1) < threshold for factor in factors.values()):
            return
        worst = max(factors, key=lambda name: abs(factors[name] - 1))
        is_superseded = self._search is not None and self._search.close()
        self._num_superseded += is_superseded
        # To people a prediction is that of the beginning, whatever has been learned since.
        factor = drift(self._first_problem, measurements)[worst]
        is_news = self.told.is_news(worst, factor)
        self._on_message(
            f"step {step + 1}: "
            + (f"{worst} takes {factor:.2f} x its predicted time; " if is_news else "")
            + ("the search begins anew" if is_superseded else "looking for a better plan")
        )
        self.problem = without_devices(self.belief.problem(), self._gone)
        self._drift, self._running = factors, STALE
        task = SearchTask(
            self.belief.copied(),
            replace(self.problem),
            self.plan,
            self.policy,
            settings,
            self.seed,
            self._strategy,
        )
        assert self._start_search is not None
        self._search = self._start_search(task)

    def _take(self, step: int, remaining_steps: int, answer: Answer) -> Plan | None:
        """Decides between the candidates of an answer."""
        for remark in answer.remarks:
            self._on_message(remark)
        if answer.policy is not None:
            self.policy = answer.policy
        decision, plan = self._decided(step, remaining_steps, answer)
        self.decisions.append(decision)
        self._on_message(f"step {step + 1}: {decision.reason}")
        if not decision.adopted:
            return None
        self.plan, self._running = plan, decision.chosen
        return plan

    def _decided(self, step: int, remaining_steps: int, answer: Answer) -> tuple[Decision, Plan]:
        found = {
            name: candidate
            for name, candidate in answer.candidates.items()
            if name == self._running or why_not_run(self.problem, candidate.plan) is None
        }
        running = found[self._running]
        order = [self._running, *(name for name in PREFERENCE if name in found)]
        chosen = min(order, key=lambda name: (round(found[name].step_time_s, 9), order.index(name)))
        plan = keep_in_place(self.problem, self.plan, found[chosen].plan)
        gain_s = running.step_time_s - found[chosen].step_time_s
        spread_s = found[chosen].gain_spread_s(running)
        moved_s = move_s(self.problem, state_moves(self.problem, self.plan, plan))
        adopted = chosen != self._running and pays_back(
            gain_s, remaining_steps, moved_s, self.settings.horizon_steps, gain_spread_s=spread_s
        )
        times = {name: candidate.step_time_s for name, candidate in found.items()}
        decision = Decision(
            step, self._drift, times, chosen, gain_s, spread_s, moved_s, adopted,
            round(answer.fine_tune_s, 3), "",
        )  # fmt: skip
        reason = _reason(decision, self._running, found, remaining_steps)
        return replace(decision, reason=reason), plan


def _has_groups(plan: Plan) -> bool:
    return any(stage.degree > 1 for stage in plan.stages)


def _reason(
    decision: Decision, running: str, found: Mapping[str, Candidate], remaining_steps: int
) -> str:
    """One line: the candidates, what the best one gains, and whether that pays."""
    times = ", ".join(
        f"{name} {found[name].step_time_s:.4g} s" for name in PREFERENCE if name in found
    )
    after = f" after {decision.fine_tune_s:.0f} s of fine-tuning" if decision.fine_tune_s else ""
    text = f"a step would take: {times}{after}; "
    if decision.chosen == running:
        return text + f"none is faster than the running plan ({running})"
    return text + (
        f"{decision.chosen} saves {decision.gain_s:.3g} s a step (spread "
        f"{decision.gain_spread_s:.2g} s), moving takes about {decision.move_s:.2g} s and "
        f"{remaining_steps} steps remain: " + ("adopted" if decision.adopted else "not adopted")
    )
