"""Replays a spot trace: what a strategy of recovery commits, loses and pays, second by second.

Training is a sequence of whole steps of the simulator's step time. A loss ends the step that runs;
pauses follow one another (detection, re-planning, restart, state). A loss within a pause begins it
anew; devices that come back are taken in at the end of a step, where that pays. Steps after the
checkpoint that training goes back to are repeated: their seconds count as lost. All seconds of
the trace are either trained or lost for one cause, so that these sum up to its duration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.spot.availability import SpotMoment
from heterps_envs.spot.costs import (
    DETECTION,
    PLANNING,
    REPEATED,
    TOO_FEW,
    Pause,
    SpotSettings,
    StatePauses,
    moved_in_place,
    restarted,
    upload_s,
)
from heterps_envs.spot.records import (
    SpotAnswer,
    SpotChange,
    SpotPoint,
    SpotRecovery,
    SpotResult,
    SpotStrategy,
)

# Of a step: below this a step that ends when the trace says so counts as done.
ROUNDING = 1e-9


class _Span(NamedTuple):
    """Committed steps under one plan, from a step on."""

    first_step: int
    num_steps: int
    step_s: float


def replay(
    problem: Problem,
    moments: Sequence[SpotMoment],
    duration_s: float,
    strategy: SpotStrategy,
    settings: SpotSettings,
) -> SpotResult:
    """Lets a strategy live through a trace. It knows nothing of what is still to come.

    Args:
        problem: With all devices of the cluster.
        moments: The trace, see `availability.spot_moments`.
        duration_s: When it ends.
        strategy: What answers each change.
        settings: What changes cost.
    """
    run = _Replay(problem, strategy, settings, duration_s)
    ends = [*(moment.time_s for moment in moments[1:]), duration_s]
    for moment, end_s in zip(moments, ends, strict=True):
        if moment.time_s < duration_s:
            run.arrive(moment)
            run.go_to(min(end_s, duration_s))
    return run.finish()


class _Replay:
    """The state of a run at one time: it trains, pauses, or waits for devices."""

    def __init__(
        self, problem: Problem, strategy: SpotStrategy, settings: SpotSettings, duration_s: float
    ) -> None:
        self._problem, self._strategy, self._settings = problem, strategy, settings
        self._result = SpotResult(strategy.name, duration_s, problem.job.global_batch_size)
        self._time_s = 0.0
        self._moment = SpotMoment(0.0, (), {})
        self._spans: list[_Span] = []
        self._step = self._checkpoint_step = 0
        # What runs or comes next, and who holds the state: None, when it is only in storage.
        self._plan: Plan | None = None
        self._holder: Plan | None = None
        self._lost: set[str] = set()
        self._step_s = self._started_s = 0.0
        self._pauses: list[Pause] = []
        self._switch: tuple[float, SpotAnswer] | None = None
        self._has_joined = False
        self._step_times: dict[tuple[object, ...], float] = {}

    def arrive(self, moment: SpotMoment) -> None:
        """What there is changes."""
        before, now = set(self._moment.available), set(moment.available)
        is_first = not self._result.history
        self._moment = moment
        gone = before - now
        if self._holder is not None:
            self._lost |= gone & set(self._holder.devices)
        if is_first:
            self._begin()
        elif self._plan is None:
            self._recover(is_loss=False)
        elif gone & self._involved():
            self._interrupt()
            self._recover(is_loss=True)
        elif self._pauses:
            self._has_joined |= bool(now - before)
        elif now - before or (self._switch and gone & set(self._switch[1].plan.devices)):
            self._consider()

    def _involved(self) -> set[str]:
        """Devices whose loss ends what goes on: those that train, or bring and take state."""
        assert self._plan is not None
        names = set(self._plan.devices)
        if self._holder is not None and self._pauses and not self._strategy.restarts:
            names |= set(self._holder.devices)
        return names

    def go_to(self, end_s: float) -> None:
        """Trains, pauses or waits until a time."""
        while self._time_s < end_s:
            if self._plan is None:
                self._lose(TOO_FEW, end_s)
            elif self._pauses:
                pause = self._pauses[0]
                stop_s = min(end_s, self._time_s + pause.seconds)
                left = pause._replace(seconds=pause.seconds - (stop_s - self._time_s))
                self._lose(pause.cause, stop_s)
                self._pauses[:1] = [left] if stop_s == end_s and left.seconds > 0 else []
                if not self._pauses:
                    self._train()
            elif self._switch and self._switch[0] <= end_s:
                stop_s, answer = self._switch
                self._pass(max(stop_s, self._time_s))
                self._interrupt()
                self._adopt(answer, is_loss=False)
            else:
                self._pass(end_s)

    def finish(self) -> SpotResult:
        """The result at the end of the trace; a step that is not complete does not count."""
        result = self._result
        if self._plan is not None and not self._pauses:
            self._close(is_end=True)
        result.steps = self._step
        result.history.append(SpotPoint(self._time_s, self._step))
        return result

    def _begin(self) -> None:
        """The first start is the same for all, and costs nothing."""
        answer = self._answer(self._step)
        self._mark()
        if answer is not None:
            self._plan = answer.plan
            self._train()

    def _train(self) -> None:
        assert self._plan is not None
        self._holder, self._lost = self._plan, set()
        self._step_s, self._started_s = self._step_time_s(self._plan), self._time_s
        self._mark()
        if self._has_joined:
            self._has_joined = False
            self._consider()

    def _mark(self) -> None:
        self._result.history.append(SpotPoint(self._time_s, self._step))

    def _lose(self, cause: str, stop_s: float) -> None:
        self._result.lost_s[cause] += stop_s - self._time_s
        self._pass(stop_s)

    def _interrupt(self) -> None:
        """Ends what goes on."""
        if self._pauses:
            self._pauses = []
        else:
            self._close(is_end=False)
        self._switch = None

    def _close(self, is_end: bool) -> None:
        """Commits the whole steps since training began; a begun one is lost unless time is up."""
        spent_s = self._time_s - self._started_s
        number = math.floor(spent_s / self._step_s + ROUNDING)
        rest_s = max(0.0, spent_s - number * self._step_s)
        self._checkpoint_step = self._newest_checkpoint(spent_s)
        if number:
            self._spans.append(_Span(self._step, number, self._step_s))
        self._step += number
        self._result.trained_s += spent_s - rest_s
        if is_end:
            self._result.trained_s += rest_s
        else:
            self._result.lost_s[REPEATED] += rest_s
        self._started_s = self._time_s
        self._mark()

    def _newest_checkpoint(self, spent_s: float) -> int:
        """First step after the last checkpoint that was stored while this plan trained."""
        assert self._plan is not None
        stored_s = upload_s(self._problem, self._plan, self._settings)
        every_s = max(self._settings.checkpoint_every_s, stored_s)
        number = math.floor((spent_s - stored_s) / every_s)
        if number < 1:
            return self._checkpoint_step
        return self._step + math.floor(number * every_s / self._step_s + ROUNDING)

    def _recover(self, is_loss: bool) -> None:
        """Asks for a plan; without one all devices are given up until there are more."""
        answer = self._answer(self._step)
        if answer is None:
            if self._plan is not None:
                self._roll_back()
            self._plan = self._holder = None
            self._lost = set()
        else:
            self._adopt(answer, is_loss)

    def _adopt(self, answer: SpotAnswer, is_loss: bool) -> None:
        state = self._state_for(answer.plan)
        before = self._step
        if state.is_rolled_back:
            self._roll_back()
        if is_loss:
            self._pauses = [Pause(DETECTION, self._settings.detection_s)]
        if is_loss or self._holder is None:
            self._pauses.append(Pause(PLANNING, answer.planning_s))
        self._pauses += state.pauses
        self._plan = answer.plan
        self._result.recoveries.append(
            SpotRecovery(
                time_s=self._time_s,
                lost_devices=tuple(sorted(self._lost)),
                is_join=not is_loss,
                rule=answer.rule,
                step_time_s=self._step_time_s(answer.plan),
                repeated_steps=before - self._step,
                live_bytes=state.live_bytes,
                storage_bytes=state.storage_bytes,
            )
        )

    def _state_for(self, plan: Plan) -> StatePauses:
        if self._strategy.restarts or self._holder is None:
            return restarted(self._problem, plan, self._settings)
        return moved_in_place(self._problem, self._holder, plan, self._lost, self._settings)

    def _roll_back(self) -> None:
        """Steps after the newest checkpoint were in vain."""
        while self._spans and self._step > self._checkpoint_step:
            span = self._spans.pop()
            kept = max(0, self._checkpoint_step - span.first_step)
            if kept:
                self._spans.append(span._replace(num_steps=kept))
            seconds = (span.num_steps - kept) * span.step_s
            self._result.trained_s -= seconds
            self._result.lost_s[REPEATED] += seconds
            self._step = span.first_step + kept
        self._mark()

    def _consider(self) -> None:
        """Devices came back: changes plans at the end of this step, where that pays back."""
        assert self._plan is not None
        self._switch = None
        spent_s = self._time_s - self._started_s
        done = math.ceil(spent_s / self._step_s - ROUNDING)
        answer = self._answer(self._step + done)
        if answer is None or answer.plan.stages == self._plan.stages:
            return
        state = self._state_for(answer.plan)
        horizon_s = self._settings.horizon_s
        pause_s = sum(pause.seconds for pause in state.pauses)
        repeated = 0
        if state.is_rolled_back:
            repeated = self._step + done - self._newest_checkpoint(spent_s)
        gained = (horizon_s - pause_s) / self._step_time_s(answer.plan) - repeated
        if gained > horizon_s / self._step_s:
            self._switch = (self._started_s + done * self._step_s, answer)

    def _answer(self, step: int) -> SpotAnswer | None:
        if not self._moment.available:
            return None
        names = self._problem.device_named.keys() - set(self._moment.available)
        return self._strategy.answer(
            SpotChange(
                problem=self._problem,
                left=without_devices(self._problem, names),
                plan=self._holder,
                lost=tuple(sorted(self._lost)),
                step=step,
                checkpoint_step=self._checkpoint_step,
            )
        )

    def _step_time_s(self, plan: Plan) -> float:
        key = (plan.stages, plan.pipelines)
        if key not in self._step_times:
            self._step_times[key] = estimate(self._problem, plan).step_time_s
        return self._step_times[key]

    def _pass(self, stop_s: float) -> None:
        """Time goes by, and devices are paid for."""
        hours = (stop_s - self._time_s) / 3600
        prices, there = self._moment.price_usd_per_hour, self._moment.available
        used = set(self._plan.devices) if self._plan is not None else set()
        self._result.cost_usd += hours * sum(prices[name] for name in there)
        self._result.used_cost_usd += hours * sum(prices[name] for name in there if name in used)
        self._time_s = stop_s
