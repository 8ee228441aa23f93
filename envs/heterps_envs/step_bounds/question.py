"""Whether a number of seconds is too few for a step of one problem."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from heterps_envs.arrays import Floats, Integers, contiguous
from heterps_envs.step_bounds.covering import least_earned
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.ranges import anywhere, ranges_of, room_for_ranges
from heterps_envs.step_bounds.units import Units
from heterps_envs.step_bounds.whole_plans.search import NONE, SOME
from heterps_envs.step_bounds.whole_plans.stage_search import StageSearch
from heterps_envs.step_bounds.zones import least_earned_in_zones

# Of the search for worths, for each number of seconds that is tried.
ITERATIONS = 100
ZONE_ITERATIONS = 60
# Of a search through sets of stages, steps times layers times devices: for one number of seconds,
# and for all.
MOST_WORK, MOST_WORK_IN_ALL = 160_000_000, 960_000_000
# Of layers in so many parts, and no fewer than so many, a rough question is asked.
PARTS = 16
# All layers, less rounding errors of sums of shares and worths.
ALL_DONE = 1 - 1e-9


class Question:
    """Asked for one number of seconds after the other; worths that proved one are tried again."""

    def __init__(
        self, needs: Needs, units: Units | None, search: StageSearch | None = None
    ) -> None:
        num_layers, num_groups = needs.in_s.shape[1], len(needs.class_of)
        self._needs, self._units, self._search = needs, units, search
        self._work_left, self._open_s = MOST_WORK_IN_ALL, math.inf
        self._shares = np.zeros((num_groups, num_layers, num_layers))
        self._most = np.ones((num_layers, num_layers))
        self._worth, self._cover = np.full(num_layers, 1 / num_layers), np.zeros(num_layers)
        self._zone_worth = self._worth.copy()
        self._known: dict[float, Floats] = {}
        self._asked_s, self._is_known = math.nan, False
        self._too_few_s = 0.0

    def in_parts(self) -> Question:
        """A question about much the same with few layers, each of several: quick, and no bound."""
        num_layers = len(self._worth)
        if num_layers < 2 * PARTS:
            return Question(self._needs, None)
        places = np.arange(PARTS + 1) * num_layers // PARTS
        return Question(_at(self._needs, places), None)

    @property
    def shared_s(self) -> float:
        """Seconds of work, if the fastest devices shared it: where to begin."""
        needs = self._needs
        work_s = needs.total * float((needs.forward_s[-1] + needs.backward_s[-1]).min())
        return max(work_s / float(needs.num_devices.sum()), 1e-12)

    @property
    def has_zones(self) -> bool:
        """Whether it matters on which node the owners of layers are."""
        return self._units is not None

    def is_too_few(self, step_s: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Whether so many seconds are, wherever the owners of layers are.

        Args:
            step_s: The seconds.
            is_over: Then no search through sets of stages begins.
        """
        if step_s <= self._too_few_s:
            return True
        if step_s != self._asked_s:
            self._asked_s, self._is_known = step_s, self._ask(step_s, is_over)
        if self._is_known:
            self._too_few_s = step_s
        return self._is_known

    def _ask(self, step_s: float, is_over: Callable[[], bool] | None) -> bool:
        # Largest shares of more seconds hold of fewer, too.
        most = min((known for known in self._known if known >= step_s), default=math.inf)
        self._most[:] = self._known.get(most, 1.0)
        if not anywhere(self._needs, step_s, self._shares, self._most):
            return True
        self._known[step_s] = self._most.copy()
        worth = self._worth
        earned = least_earned(self._needs, self._shares, worth, ITERATIONS, self._cover)
        if earned < ALL_DONE:
            return True
        return not (is_over is not None and is_over()) and self._has_no_stages(step_s)

    def _has_no_stages(self, step_s: float) -> bool:
        """Whether no set of stages does all; False, too, where that takes too long."""
        each = len(self._worth) * int(self._needs.num_devices.sum())
        steps = min(MOST_WORK, self._work_left) // each
        # Of more seconds no fewer sets of stages survive, and the search takes longer.
        if self._search is None or steps <= 0 or step_s >= self._open_s:
            return False
        found, _, taken = self._search.find(step_s, self._shares, self._worth, steps)
        self._work_left -= taken * each
        if found != NONE:
            self._open_s = step_s
        return bool(found == NONE)

    def find_stages(self, step_s: float, search: StageSearch, most_steps: int) -> tuple[int, int]:
        """Looks for stages that may do all in so many seconds, which are not known to be too few.

        Args:
            step_s: The seconds.
            search: In whose `staged` they then are.
            most_steps: Of the search.

        Returns:
            How many stages; 0 where none were found. The steps that it took.
        """
        assert not self.is_too_few(step_s), "then there are none"
        found, count, taken = search.find(step_s, self._shares, self._worth, most_steps)
        return (count if found == SOME else 0), taken

    def is_too_few_in_zones(self, step_s: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Whether so many seconds are, where links between nodes count if they matter.

        Args:
            step_s: The seconds.
            is_over: Then links between nodes do not count.
        """
        if self.is_too_few(step_s, is_over) or self._units is None:
            return step_s <= self._too_few_s
        if is_over is not None and is_over():
            return False
        room = room_for_ranges(self._needs)
        if not ranges_of(self._needs, self._units, step_s, self._shares, self._most, room):
            return False
        worth = self._zone_worth
        num_classes = len(self._needs.num_devices)
        earned = least_earned_in_zones(num_classes, self._units, room, worth, ZONE_ITERATIONS)
        if earned < ALL_DONE:
            self._too_few_s = step_s
        return bool(earned < ALL_DONE)


def _at(needs: Needs, places: Integers) -> Needs:
    """The needs of layers between places."""
    begin, end = places[:-1], places[1:]
    sums = needs.sums
    sum_s, rest_s = sums.sum_s.take(places, 2), sums.rest_s.take(places, 2)
    delay_s = (sum_s - rest_s)[0, :, 1:] - needs.backward_s[begin]
    parts = needs._replace(
        forward_s=needs.forward_s[places],
        backward_s=needs.backward_s[places],
        optimizer_s=needs.optimizer_s.take(places, 1),
        sums=sums._replace(sum_s=sum_s, rest_s=rest_s),
        delay_s=delay_s.swapaxes(1, 2),
        state_bytes=needs.state_bytes.take(places, 1),
        gradient_bytes=needs.gradient_bytes[places],
        kept_bytes=needs.kept_bytes[places],
        front_bytes=needs.front_bytes[begin],
        back_bytes=needs.back_bytes[end - 1],
        in_s=needs.in_s.take(begin, 1),
        out_s=needs.out_s.take(begin, 1),
        around_s=needs.around_s.take(places, 1),
    )
    return contiguous(parts)
