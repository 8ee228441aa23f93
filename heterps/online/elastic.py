"""The controller of `heterps run --elastic`: which plan a run goes on with.

When devices are lost, every rule of recovery makes a plan (simple, borrow, merge, templates), and
so does planning anew; the one that is predicted to finish the run first is taken. When devices come
back, a plan that uses them is taken if that finishes sooner than going on without. Plans that ran
earlier are among the choices wherever their devices are there again.

Plans for likely losses are made beforehand (`heterps_agents.recovery.book`), in a process of their
own; a change that they cover costs no planning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from heterps_agents.recovery.book import RecoveryBook
from heterps_agents.recovery.losses import likely_losses
from heterps_agents.recovery.model import Prediction, Situation, best_of, describe
from heterps_agents.recovery.plans import earlier_predictions, recovery_predictions
from heterps_agents.recovery.problem import with_missing_devices
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import ElasticSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_runtime.elastic.records import MembershipChange
from heterps_runtime.run.hooks import PlanUpdate
from heterps_runtime.specification.build import why_not_run


@dataclass(frozen=True)
class RecoveryDecision:
    """Which plan a run went on with, and what was predicted of all of them.

    Attributes:
        step: First step of the new plan, as far as it was known.
        lost, joined: Names of devices.
        chosen: The rule whose plan was taken.
        predictions: Of every plan, the chosen one first.
        decided_s: Seconds that the decision took.
        was_prepared: The plans were in the book.
        text: One line for people.
    """

    step: int
    lost: tuple[str, ...]
    joined: tuple[str, ...]
    chosen: str
    predictions: tuple[Prediction, ...]
    decided_s: float
    was_prepared: bool
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
            "was_prepared": self.was_prepared,
            "text": self.text,
        }


# Plans that ran and are kept as choices, the newest ones.
MOST_EARLIER = 8


class _Answer(NamedTuple):
    """What was answered last; it may be thrown away.

    Attributes:
        update: The same object that the run may go on with.
        decision: Why.
    """

    update: PlanUpdate
    decision: RecoveryDecision


class ElasticController:
    """Answers every change of the devices with the plan that is predicted to finish first.

    Used as a context manager, it prepares plans for likely losses in the background; otherwise it
    plans when something is lost.

    Args:
        problem: With all devices of the cluster.
        plan: What runs at first.
        settings: Losses that are prepared for, and what planning may take.
        absent: Devices of the cluster that are not there yet.
        checkpoint_step: Says the first step after the newest complete checkpoint.
        seed: Of planners.
        on_message: Receives one line for people at each decision, and one when all plans for likely
            losses are made.

    Attributes:
        decisions: Those that the run went on with.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        settings: ElasticSettings | None = None,
        *,
        absent: Collection[str] = (),
        checkpoint_step: Callable[[], int] = lambda: 0,
        seed: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem, self.plan = problem, plan
        self.settings, self.seed = settings or ElasticSettings(), seed
        self.decisions: list[RecoveryDecision] = []
        self.book = RecoveryBook(
            tolerated=self.settings.tolerated_losses,
            rates=self.settings.losses_per_hour,
            seed=seed,
            on_message=on_message,
        )
        self._checkpoint_step, self._on_message = checkpoint_step, on_message
        self._alive = frozenset(problem.device_named) - frozenset(absent)
        self._has_book = False
        self._answer: _Answer | None = None
        self._ran = [plan]

    def __enter__(self) -> Self:
        self._has_book = True
        self.book.begin(self.problem, self.plan, self._alive)
        # Compiled planners are loaded at their first use; a loss may come before the book is full.
        threading.Thread(target=self._warm_up, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._has_book = False
        self.book.close()

    def replan(self, change: MembershipChange) -> PlanUpdate:
        """The plan to go on with, which `goes_on` takes note of where the run does.

        Where devices only came back and using them does not pay, it has the stages and pipelines
        of the plan that runs.

        Args:
            change: Devices that were lost or came back.

        Raises:
            NotEnoughDevicesError: No plan fits on what is left; the message says what is missing.
        """
        started = time.perf_counter()
        situation = self._situation(change)
        alive = frozenset(change.alive)
        found = self.book.find(situation, alive) if self._has_book else None
        predictions = found or recovery_predictions(situation, self.settings.planning_s, self.seed)
        predictions = [
            *predictions,
            *(
                replace(each, replanning_s=predictions[0].replanning_s)
                for each in earlier_predictions(situation, self._ran)
            ),
        ]
        # What cannot be run is no choice, unless there is no other: then the run says why it ends.
        able = [each for each in predictions if why_not_run(situation.left, each.plan) is None]
        best = best_of(able or predictions)
        decided_s = time.perf_counter() - started
        others = sorted(
            (each for each in predictions if each is not best), key=lambda each: each.finish_s
        )
        decision = RecoveryDecision(
            step=change.step,
            lost=change.lost,
            joined=change.joined,
            chosen=best.rule,
            predictions=(best, *others),
            decided_s=decided_s,
            was_prepared=found is not None,
            text=_text(change, best, predictions, decided_s, found is not None),
        )
        update = PlanUpdate(best.plan, situation.left, change.step, decision.text)
        self._answer = _Answer(update, decision)
        return update

    def goes_on(self, update: PlanUpdate, alive: Collection[str]) -> None:
        """Takes note of what the run goes on with, and says so where it was decided here.

        Args:
            update: An answer of `replan`, or a plan of somebody else.
            alive: Devices that there are.
        """
        if self._answer is not None and self._answer.update is update:
            self.decisions.append(self._answer.decision)
            self._on_message(update.reason)
            self.plan_changed(update.plan, alive=alive)
        elif update.plan != self.plan:
            self.plan_changed(update.plan, update.problem, alive)

    def plan_changed(
        self, plan: Plan, problem: Problem | None = None, alive: Collection[str] | None = None
    ) -> None:
        """Takes note of what runs now; plans for likely losses are made anew.

        Args:
            plan: What runs.
            problem: As measurements corrected it; devices that it lacks stay as they were. By
                default all do.
            alive: Devices that there are; by default as before.
        """
        is_same = problem is None and (alive is None or frozenset(alive) == self._alive)
        if is_same and plan.runs_like(self.plan):
            return
        self.plan = plan
        # The first one, which was given, stays.
        others = [each for each in self._ran[1:] if not each.runs_like(plan)]
        self._ran = [self._ran[0], *others[1 - MOST_EARLIER :], plan]
        if problem is not None:
            self.problem = with_missing_devices(problem, self.problem)
        self._alive = self._alive if alive is None else frozenset(alive)
        if self._has_book:
            self.book.begin(self.problem, self.plan, self._alive)

    def _situation(self, change: MembershipChange) -> Situation:
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

    def _warm_up(self) -> None:
        """Plans for the likeliest loss and forgets it; how groups split layers is kept."""
        for loss in likely_losses(self.problem)[:1]:
            with suppress(HeterpsError):
                left = without_devices(self.problem, loss.devices)
                situation = Situation(
                    self.problem, left, self.plan, tuple(loss.devices), step=0, num_steps=1
                )
                found = recovery_predictions(
                    situation, self.settings.planning_s, whatever_it_takes=True
                )
                for each in found:
                    why_not_run(left, each.plan)


def _text(
    change: MembershipChange,
    best: Prediction,
    predictions: Collection[Prediction],
    decided_s: float,
    was_prepared: bool,
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
        f"step {change.step + 1}: {happened}: {best.rule} after {1e3 * decided_s:.0f} ms"
        f"{', prepared before' if was_prepared else ''}; "
        f"predicted time to finish: {describe(predictions)}"
    )
