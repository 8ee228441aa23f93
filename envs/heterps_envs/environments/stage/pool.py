"""Problems to learn from, each with the best placement known, which sets targets and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.episodes import Pool
from heterps_envs.environments.base.state import COMPLETE, RUNNING
from heterps_envs.environments.stage.kernels import advance, observe
from heterps_envs.environments.stage.packed import StageProblems, pack_problems, put_problem
from heterps_envs.environments.stage.state import (
    Limits,
    StageRows,
    empty_rows,
    empty_view,
    start_rows,
)

# Targets of an episode, as multiples of the bottleneck of the best known placement, and step times
# that its fill limit stands for, as excess over the best known, log-uniform. Less is left to the
# refinement of cuts after the search: not every placement can be built stage by stage.
TARGET_RANGE = (1.0, 1.12)
LEAST_EXCESS, LEAST_LATE, MOST_LATE = 1e-3, 3e-3, 0.12
# How often the target is further off, and how far; how often there is no fill limit.
FAR_SHARE, FAR, UNLIMITED_SHARE = 0.1, 3.0, 0.25
SUCCESS_REWARD, STEP_TIME_WEIGHT, LEAST_SUCCESS_REWARD = 1.0, 2.0, 0.1
# A reward so far below that of the best known placement counts as a full shortfall; how fast the
# average forgets; what it is before the first episode, and what every problem has at least.
FULL_SHORTFALL, SHORTFALL_RATE = 0.1, 0.1
UNKNOWN_SHORTFALL, LEAST_WEIGHT = 0.5, 0.02
# A target that a placement defines must not be missed by the rounding of its sums.
ROUNDING = 1e-9


class ProblemPool(Pool):
    """Packed problems with references, from which episodes draw.

    Problems where recent episodes fell short of the reference can be drawn more often
    (Schaul et al., Prioritized Experience Replay, 2016, for whole problems).

    Attributes:
        problems: N problems.
        step_time_s: (N,) of the best placement known.
        bottleneck_s: (N,) the same placement's bottleneck, see
        `heterps_envs.environments.stage.state`.
        target_range: Targets of episodes, as multiples of `bottleneck_s`.
        keeps_best: Better placements that episodes find become the references. Without it rewards
            never change their meaning; exact references need no improvement.
        prioritised_share: Share of the draws that go by `shortfall`; the others are uniform.
        shortfall: (N,) how far recent episodes fell short, 0 to 1; a moving average.
    """

    def __init__(
        self,
        problems: StageProblems,
        step_time_s: Floats,
        bottleneck_s: Floats,
        target_range: tuple[float, float] = TARGET_RANGE,
        keeps_best: bool = False,
        prioritised_share: float = 0.0,
    ) -> None:
        self.problems, self.keeps_best = problems, keeps_best
        self.step_time_s, self.bottleneck_s = step_time_s, bottleneck_s
        self.target_range, self.prioritised_share = target_range, prioritised_share
        self.shortfall = np.full(len(step_time_s), UNKNOWN_SHORTFALL)

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[CostTables],
        max_classes: int = 0,
        target_range: tuple[float, float] = TARGET_RANGE,
    ) -> ProblemPool:
        """A pool whose references come from the price-guided greedy rule.

        Problems for which that rule finds no placement are left out.

        Raises:
            HeterpsError: None is left.
        """
        problems, (step_time_s, bottleneck_s, _) = greedy_references(tables, max_classes)
        return cls(problems, step_time_s, bottleneck_s, target_range)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], Limits]:
        """Rows of problems, and the limits of an episode for each."""
        rows = rng.integers(0, len(self.step_time_s), count)
        if self.prioritised_share > 0.0:
            by_shortfall = rng.random(count) < self.prioritised_share
            # Neither what is solved already nor what is hopeless teaches much.
            summed = np.cumsum(self.shortfall * (1.0 - self.shortfall) + LEAST_WEIGHT)
            wanted = summed[-1] * rng.random(count)
            rows = np.where(by_shortfall, np.searchsorted(summed, wanted), rows)
        return rows, self.draw_limits(rng, rows)

    def draw_limits(self, rng: np.random.Generator, rows: NDArray[np.int64]) -> Limits:
        """Limits around the best known placements of problems; none of the price.

        Most are within a percent, as in the last rounds of a search; some are far off, as in its
        first.
        """
        around = self.step_time_s[rows], self.bottleneck_s[rows]
        return Limits(*self._times_around(rng, rows, *around), np.full(len(rows), np.inf))

    def _times_around(
        self,
        rng: np.random.Generator,
        rows: NDArray[np.int64],
        step_time_s: Floats,
        bottleneck_s: Floats,
    ) -> tuple[Floats, Floats]:
        """Targets and fill limits around placements of given step times and bottlenecks."""
        low, high = self.target_range
        excess = log_uniform(rng, LEAST_EXCESS, max(high - 1.0, LEAST_EXCESS), len(rows))
        factor = np.where(rng.random(len(rows)) < FAR_SHARE, rng.uniform(1, FAR, len(rows)), 1.0)
        wanted = bottleneck_s * (low + excess) * factor
        target_s = np.maximum(wanted, self.problems.least_target_s[rows]) * (1 + ROUNDING)
        late = log_uniform(rng, LEAST_LATE, MOST_LATE, len(rows))
        limit_s = step_time_s * (1 + late) - bottleneck_s
        limit_s *= 1 + ROUNDING
        limit_s[rng.random(len(rows)) < UNLIMITED_SHARE] = np.inf
        return target_s, limit_s

    def rewards(self, rows: StageRows, which: NDArray[np.int64]) -> Floats:
        """Rewards of finished episodes: (K,).

        A complete placement: 1 + 2 log(best known step time / its step time), at least 0.1. A
        stuck one: the covered share of the work, minus 1.
        """
        problem = rows.problem[which]
        last = self.problems.num_layers[problem]
        value = self.problems.value_prefix_s
        covered = 1.0 - value[problem, rows.position[which]] / value[problem, last]
        step_time_s = np.maximum(rows.behind_s[which], 1e-12)
        success = SUCCESS_REWARD + STEP_TIME_WEIGHT * np.log(
            self.step_time_s[problem] / step_time_s
        )
        success = np.maximum(success, LEAST_SUCCESS_REWARD)
        return np.where(rows.status[which] == COMPLETE, success, covered - 1.0)

    def improve(
        self, rows: StageRows, which: NDArray[np.int64], rewards: Floats | None = None
    ) -> None:
        """Learns from finished episodes: how far they fell short and, if it `keeps_best`, the best.

        Args:
            rows: The episodes.
            which: (K,) the finished ones.
            rewards: (K,) theirs, where they are known already.
        """
        problem = rows.problem[which]
        if rewards is None:
            rewards = self.rewards(rows, which)
        short = np.clip((SUCCESS_REWARD - rewards) / FULL_SHORTFALL, 0.0, 1.0)
        self.shortfall[problem] += SHORTFALL_RATE * (short - self.shortfall[problem])
        if not self.keeps_best:
            return
        for row in which[rows.status[which] == COMPLETE]:
            place = rows.problem[row]
            if rows.behind_s[row] < self.step_time_s[place]:
                self.step_time_s[place] = rows.behind_s[row]
                self.bottleneck_s[place] = rows.behind_s[row] - rows.fill_s[row]

    def replace(
        self,
        row: int,
        tables: CostTables,
        step_time_s: float,
        bottleneck_s: float,
        anchors: Sequence[Any] = (),
    ) -> None:
        """Puts another problem into a row that no running episode uses.

        Args:
            row: Which.
            tables: The problem.
            step_time_s: Of its best known placement.
            bottleneck_s: The same.
            anchors: For pools with price limits.
        """
        put_problem(self.problems, row, tables)
        self.step_time_s[row], self.bottleneck_s[row] = step_time_s, bottleneck_s
        self.shortfall[row] = UNKNOWN_SHORTFALL

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all arrays by name."""
        return {name: value.copy() for name, value in self._arrays().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over the arrays of a pool of the same size."""
        for name, value in self._arrays().items():
            value[:] = state[name]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            **{f"problems.{name}": value for name, value in self.problems._asdict().items()},
            "best.step_time_s": self.step_time_s,
            "best.bottleneck_s": self.bottleneck_s,
            "shortfall": self.shortfall,
        }


def bottleneck_s(code: NDArray[np.int32], kernel: KernelTables, step_time_s: float) -> float:
    """The target that a placement keeps: its step time without the fill of all its stages.

    Args:
        code: (L,) int32.
        kernel: Of the same problem.
        step_time_s: The placement's closed-form step time.
    """
    fill_s, following = 0.0, None
    for stage in reversed(decode(code)):
        kind, stop = stage.device_class, stage.last_layer + 1
        prefix = kernel.compute_prefix_s[:, kind]
        fill_s += prefix[stop] - prefix[stage.first_layer]
        if following is not None:
            transfer = (
                kernel.output_bytes[stop - 1] * kernel.inverse_bandwidth_s_per_byte[kind, following]
            )
            fill_s += 2 * (kernel.latency_s[kind, following] + transfer)
        following = kind
    return step_time_s - float(fill_s)


def price_greedy(
    problems: StageProblems, num_targets: int = 24, largest_target: float = 16.0
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """The greedy rule: always the stage that covers most value for its price; a ladder of targets.

    Args:
        problems: N problems.
        num_targets: How many targets.
        largest_target: The largest, as a multiple of the lower bound.

    Returns:
        Best step time (N,), its bottleneck (N,), inf where nothing was found, and its code (N, L).
    """
    count, layers = problems.num_problems, problems.output_bytes.shape[1]
    best_s, bottleneck_s = np.full(count, np.inf), np.full(count, np.inf)
    code = np.zeros((count, layers), np.int32)
    view = empty_view(count, problems.class_price.shape[1], with_shorter=False)
    everyone = np.arange(count)
    for share in np.geomspace(0.05, largest_target, num_targets):
        rows = empty_rows(count, layers, problems.class_price.shape[1])
        start_rows(problems, rows, everyone, everyone, share * problems.lower_bound_s, np.inf)
        observe(problems, rows, view, everyone)
        while (rows.status == RUNNING).any():
            score = view.candidates[:, :, 2] + 3 * view.candidates[:, :, 10]
            advance(problems, rows, view, np.where(view.allowed, score, -1.0).argmax(axis=1))
            observe(problems, rows, view, everyone)
        better = (rows.status == COMPLETE) & (rows.behind_s < best_s)
        best_s[better] = rows.behind_s[better]
        bottleneck_s[better] = (rows.behind_s - rows.fill_s)[better]
        code[better] = rows.code[better]
    return best_s, bottleneck_s, code


def greedy_references(
    tables: Sequence[CostTables], max_classes: int = 0
) -> tuple[StageProblems, tuple[Floats, Floats, NDArray[np.int32]]]:
    """The problems for which the greedy rule finds a placement, and what `price_greedy` says.

    Raises:
        HeterpsError: There is none.
    """
    problems = pack_problems(tables, max_classes=max_classes)
    step_time_s, bottleneck_s, codes = price_greedy(problems)
    found = np.isfinite(step_time_s)
    if not found.any():
        raise HeterpsError("no problem has a placement that the greedy rule finds")
    kept = StageProblems._make(array[found] for array in problems)
    return kept, (step_time_s[found], bottleneck_s[found], codes[found])


def log_uniform(rng: np.random.Generator, low: float, high: float, count: int) -> Floats:
    """(count,) numbers whose logarithms are uniform."""
    return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), count)))
