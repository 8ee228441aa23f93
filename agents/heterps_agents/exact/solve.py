"""The exact solver: a dynamic programme over (layer, class of the front stage, devices used).

Stages are appended back to front, as in `heterps_envs.closed_form.formula`. Of what is built, its
step time and its fill matter, and the closed form only grows with either; the devices used say how
many micro-batches the next stage holds in flight. So one sweep over the layers, which keeps for
every state the Pareto set of (step time, fill), finds the optimum, memory included.

Bounds keep the sweep small. A first sweep front to back (`heterps_agents.exact.front`) finds for
every state the least delay by the layers in front, and the largest fill behind that they still
allow, if the step is to be no slower than a placement that is known: greedy's, annealed, then the
best of a beam, with one label for each state and few for each cut. With the cost of the optimum as
the limit little more than the optimum's own labels are left, so the better the placement that is
known the shorter the proof. For the objective `price` every layer costs.

Devices used are counted for every class, which makes the work polynomial in layers and devices and
exponential in classes: `predicted_seconds` guesses it before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.kernels import SweepLimits, sweep
from heterps_agents.exact.space import limited, search_space
from heterps_agents.exact.state import Labels, Reached, Space, ports_of, state_shape
from heterps_agents.exact.trace import trace_back
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.annealing import polish
from heterps_agents.search.greedy import greedy_code
from heterps_envs.closed_form.formula import evaluate_one, never_helps
from heterps_envs.closed_form.kernel_tables import KernelTables, cost_tables
from heterps_envs.closed_form.objective import ROUNDING, Goal

Status = Literal["optimal", "infeasible", "over budget"]

# Seconds of one transition on one core of a current server CPU, rounded up; seconds of a solve for
# its first placement and over its `predicted_work`, in the median of drawn problems, which is
# within a factor of four in all sizes of benchmarks/planners/exact.py.
SECONDS_PER_TRANSITION = 4e-8
START_SECONDS, SECONDS_PER_PREDICTED = 5e-3, 1.5e-9
MAX_TABLE_BYTES, MAX_SECONDS = 1_000_000_000, 60.0
MAX_LABELS = 10_000_000
# Room at first where less than these seconds are predicted: arrays below 4 MiB, for which numpy
# asks no huge pages. The system clears those whole, 2 MiB for each array, which takes longer than
# most short sweeps.
FIRST_LABELS, SHORT_SECONDS = 1 << 17, 0.1
START_EVALUATIONS = 3000
# Labels of a cut that the beam keeps at first; more where the proof takes too many labels.
BEAM_WIDTH, MAX_BEAM_WIDTH, BEAM_GROWTH = 100, 10_000, 10
# A better placement from the beam prunes harder, but its bounds take time too.
# Below the first gain they are not worth it; below the second the proof is tried without them
# first, for as long as they would take: `TRY_SHARE` of their own stages.
WORTH_A_SPACE, TRY_GAIN, TRY_SHARE = 1e-3, 0.03, 0.3


class ExactResult(NamedTuple):
    """What the dynamic programme found.

    Attributes:
        code: (L,) int32 of the best placement, see `heterps_envs.closed_form.formula`; None where
        none is.
        step_time_s: Its closed-form step time; inf without one.
        price_usd_per_hour: Of the devices that it uses; inf without one.
        transitions: Stages that were put before a label: the work that was done.
        status: `infeasible` is a proof too; `over budget`: not started, or given up.
        incumbent: (L,) int32 of the best placement of the narrow sweep, where it was given up
            after that: good, but not proven to be the best.
    """

    code: NDArray[np.int32] | None
    step_time_s: float
    price_usd_per_hour: float
    transitions: int
    status: Status
    incumbent: NDArray[np.int32] | None = None


class WorkLimits(NamedTuple):
    """What a solve may take beside seconds.

    Attributes:
        table_bytes: It refuses to start where `table_bytes` is more.
        transitions: It gives up after so many, if these are fewer than its seconds allow.
    """

    table_bytes: float = MAX_TABLE_BYTES
    transitions: float = math.inf


def solve(
    kernel: KernelTables,
    goal: Goal | None = None,
    *,
    known: NDArray[np.int32] | None = None,
    below: float = math.inf,
    max_seconds: float = MAX_SECONDS,
    limits: WorkLimits = WorkLimits(),
    polish_evaluations: int = START_EVALUATIONS,
    on_better: Callable[[NDArray[np.int32], float], None] | None = None,
) -> ExactResult:
    """The best placement of all, by the closed form.

    Args:
        kernel: From `heterps_envs.closed_form.kernel_tables.kernel_tables`.
        goal: Objective and throughput floor; by default the least step time.
        known: (L,) int32, a good placement, to prune with; by default greedy's.
        below: Only what costs at most this is looked for: without any the answer is `infeasible`.
        max_seconds: Give up before starting when `predicted_seconds` is more, and after as many
            transitions as should take this long.
        limits: Beside them.
        polish_evaluations: Of annealing, for what the narrow sweep finds. It pays where what is
            known is poor; with a placement that is hardly to be improved the proof is all.
        on_better: Called with each better code that a sweep ends with, and its cost.
    """
    goal = goal or Goal()
    expected_s = predicted_seconds(kernel)
    if expected_s > max_seconds or table_bytes(kernel) > limits.table_bytes:
        return _nothing("over budget", 0)
    if known is None and below == math.inf:
        known = _good_code(kernel, goal)
    most = below if known is None else min(below, goal.cost(known, kernel))
    max_transitions = min(limits.transitions, max_seconds / SECONDS_PER_TRANSITION)
    room = FIRST_LABELS if expected_s < SHORT_SECONDS else MAX_LABELS
    search = _Search(kernel, goal, most, max_transitions, polish_evaluations, room)
    search.on_better = on_better
    status = search.run()
    if status != "optimal":
        incumbent = search.incumbent if status == "over budget" else None
        return _nothing(status, search.transitions)._replace(incumbent=incumbent)
    code = search.incumbent
    assert code is not None, "an optimum has a placement"
    step_time_s, price, _ = evaluate_one(code, kernel, np.zeros(kernel.num_classes, np.int64))
    return ExactResult(code, float(step_time_s), float(price), search.transitions, "optimal")


class _Search:
    """Better and better placements from the beam, until a sweep that drops nothing ends."""

    def __init__(
        self,
        kernel: KernelTables,
        goal: Goal,
        most: float,
        max_transitions: float,
        polish_evaluations: int,
        room: int,
    ) -> None:
        self.kernel, self.goal, self.max_transitions = kernel, goal, max_transitions
        self.polish_evaluations = polish_evaluations
        self.incumbent: NDArray[np.int32] | None = None
        self.on_better: Callable[[NDArray[np.int32], float], None] | None = None
        self._cost = most
        self._states = int(np.prod(state_shape(kernel)))
        self._scratch = scratch(kernel, self._states, room)
        self._work = np.zeros(1)

    @property
    def transitions(self) -> int:
        """Stages that were put before a label so far."""
        return int(self._work[0])

    def run(self) -> Status:
        """Whether there is an optimum, `incumbent`, or none, or it took too long."""
        width = BEAM_WIDTH
        while width <= MAX_BEAM_WIDTH:
            space, built_for = search_space(self.kernel, self.goal, self._cost), self._cost
            if not self._sweep(space, width, self.max_transitions):
                return "over budget"
            gain = 0.0 if self._cost == built_for else 1 - self._cost / built_for
            if gain > TRY_GAIN:
                continue
            most, is_trial = self.max_transitions, gain > WORTH_A_SPACE
            if is_trial:
                most = min(most, self.transitions + TRY_SHARE * space.work)
            if self._sweep(limited(space, self.kernel, self.goal, self._cost), 0, most):
                return "infeasible" if self.incumbent is None else "optimal"
            if self.transitions > self.max_transitions:
                return "over budget"
            width *= 1 if is_trial else BEAM_GROWTH
        return "over budget"

    def _sweep(self, space: Space, width: int, max_transitions: float) -> bool:
        """One sweep; keeps its best placement where that is as good as the best one known."""
        before = self.transitions
        labels, seen, reached = self._scratch
        labels.first[:] = 0
        limits = SweepLimits(width, float(max_transitions), self._work)
        if not sweep(self.kernel, space, labels, seen, reached, limits):
            if self._work[0] > max_transitions or len(labels.fill_s) == MAX_LABELS:
                return False
            self._scratch, self._work[0] = scratch(self.kernel, self._states), before
            return self._sweep(space, width, max_transitions)
        code = _best_code(self.kernel, self.goal, space, labels)
        if code is not None:
            if width > 0 and self.polish_evaluations > 0:
                code = polish(code, self.kernel, self.polish_evaluations, 0, self.goal)
            cost = self.goal.cost(code, self.kernel)
            if cost <= self._cost * (1 + ROUNDING):
                self.incumbent, self._cost = code, min(cost, self._cost)
                if self.on_better is not None:
                    self.on_better(code, cost)
        return True


def num_states(kernel: KernelTables) -> float:
    """(cut, port, devices used) in all; a float, because it overflows no integer."""
    ports = len(ports_of(kernel).option_of_port)
    return kernel.num_layers * ports * float(np.prod(state_shape(kernel).astype(float)))


def table_bytes(kernel: KernelTables) -> float:
    """Bytes that the solver asks for: numbers for each state, and the labels.

    The system hands out only what is written to: few solves use a tenth of the labels.
    """
    counts = float(np.prod(state_shape(kernel).astype(float)))
    return 56 * num_states(kernel) + 8 * (kernel.num_classes + 6) * counts + 84 * MAX_LABELS


def predicted_work(kernel: KernelTables) -> float:
    """Transitions at most if states had one label: stages whose weights fit x replicas x states."""
    states, work = float(np.prod(state_shape(kernel).astype(float))), 0.0
    layers, ports = np.arange(1, kernel.num_layers + 1), len(ports_of(kernel).option_of_port)
    for kind in range(kernel.num_options):
        prefix = kernel.state_prefix_bytes[:, kind]
        first = np.searchsorted(prefix, prefix[1:] - kernel.memory_bytes[kind], side="left")
        ranges = float(np.maximum(layers - first, 0).sum())
        count = kernel.device_count[kernel.class_of_option[kind]] + 1.0
        size = int(kernel.devices_of_option[kind])
        for replicas in range(1, int(count - 1) // size + 1):
            if never_helps(kernel, kind, replicas):
                continue
            share = states * (count - replicas * size) / count
            work += share * (ranges + kernel.num_layers * ports)
    return work


def predicted_seconds(kernel: KernelTables) -> float:
    """Seconds that `solve` takes in most cases, from `predicted_work`."""
    return float(START_SECONDS + predicted_work(kernel) * SECONDS_PER_PREDICTED)


def scratch(
    kernel: KernelTables, states: int, size: int = MAX_LABELS
) -> tuple[Labels, Reached, Reached]:
    """Room for the sweep and so many labels: memory that is not touched is not taken."""
    ports = len(ports_of(kernel).option_of_port)
    first = np.zeros((kernel.num_layers, ports, states), np.int32)
    labels = Labels(first, np.empty(size), np.empty(size), np.empty(size, np.int32))
    seen, reached = (
        Reached(*np.empty((2, size), np.int64), *np.empty((2, size))) for _ in range(2)
    )
    return labels, seen, reached


def _nothing(status: Status, transitions: int) -> ExactResult:
    return ExactResult(None, math.inf, math.inf, transitions, status)


def _good_code(kernel: KernelTables, goal: Goal) -> NDArray[np.int32]:
    """Greedy's placement, annealed for some milliseconds; it need not fit."""
    code = greedy_code(Question(cost_tables(kernel), kernel, goal, Budget()))
    start = np.zeros(kernel.num_layers, np.int32) if code is None else code
    return polish(start, kernel, START_EVALUATIONS, 0, goal)


def _best_code(
    kernel: KernelTables, goal: Goal, space: Space, labels: Labels
) -> NDArray[np.int32] | None:
    """Code of the best placement in the labels.

    Of equally good ones the cheaper or, for the objective price, the faster one.
    """
    value = np.where(labels.first[0] > 0, labels.behind_s[labels.first[0]], np.inf)
    fastest, price = value.min(axis=0), space.price_usd_per_hour
    states = np.flatnonzero(np.isfinite(fastest))
    if len(states) == 0:
        return None
    fastest, price = fastest[states], price[states]
    cost, second = (price * fastest, fastest) if goal.is_price else (fastest, price)
    tied = np.flatnonzero(cost <= cost.min() * (1 + 1e-12))
    state = int(states[tied[np.argmin(second[tied])]])
    code = np.zeros(kernel.num_layers, np.int32)
    found = trace_back(kernel, space, labels, int(np.argmin(value[:, state])), state, code)
    assert found, "every label was reached by a transition"
    return code
