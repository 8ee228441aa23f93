"""The TensorBoard runs of a training: one of what learns, one of each set that it is judged on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter

from heterps_agents.boards.board import Board, Setting
from heterps_agents.boards.curves import Point, held
from heterps_agents.boards.layout import Chart, Layout

LEARNING, IMITATION = "learning", "imitation"
# stable-baselines3 has names of its own for these.
_NAMES = {
    "rollout/ep_rew_mean": "train/reward",
    "placement/reward": "train/reward",
    "imitation/loss": "train/imitation_loss",
}
# stable-baselines3 counts them since its last update alone; ours are for the training.
_LEFT_OUT = {"time/iterations", "time/time_elapsed", "time/fps", "time/total_timesteps"}
# Of how a policy is judged, what is looked at first.
_SHOWN_FIRST = ("_gap_median", "_gap_p95", "greedy_mean", "samples16_mean")
_REWARD = Chart("reward", ("train/reward",))
_LOSSES = Chart("losses", ("train_ppo/.*loss",))
CHAIN_LAYOUT = Layout(
    "train",
    (
        Chart("gap to the optimum, median, by set and decoding", ("train/.*_gap_median",)),
        Chart("gap to the optimum, 95th percentile", ("train/.*_gap_p95",)),
        Chart("share of problems within 0.1 % of the optimum", ("train_judged/.*_solved",)),
        _REWARD,
        Chart("imitation: loss over passes", ("train/imitation_loss",)),
        Chart("how far an update goes", ("train_ppo/(approx_kl|clip_fraction)",)),
        _LOSSES,
    ),
)
GRAPH_LAYOUT = Layout(
    "train",
    (
        Chart("step time, of that of earliest finish", (r"train/(greedy|samples)\w*_mean",)),
        _REWARD,
        _LOSSES,
    ),
)


class TrainingBoards(KVWriter):
    """Takes what the logger of stable-baselines3 dumps.

    The step is the number of decisions; that of the run `imitation` is the number of passes. What
    is known of a set of problems holds until it is judged again, when its curve goes on.

    Args:
        folder: Of the training.
        layout: Of the page Custom Scalars.
        first_step: What earlier files say of this step and later ones is done once more; None: the
            training begins.
        first_pass: The same for imitation.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        first_step: int | None = None,
        first_pass: int | None = None,
    ) -> None:
        self._folder, self._first_step, self._first_pass = folder, first_step, first_pass
        self._boards: dict[str, Board] = {}
        # Since which step a curve has been where it is, by run and tag.
        self._judged: dict[tuple[str, str], Point] = {}
        self.board(LEARNING).add_layout(layout)

    def board(self, name: str) -> Board:
        """The run of that name; the first time makes it."""
        if name not in self._boards:
            step = self._first_pass if name == IMITATION else self._first_step
            self._boards[name] = Board(self._folder / name, step, replaces=step is None)
        return self._boards[name]

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0
    ) -> None:
        """Writes numbers; anything else is not written."""
        for name, value in key_values.items():
            if name not in _LEFT_OUT and isinstance(value, int | float | np.number):
                run, tag = _place_of(name)
                self.board(run).add_scalar(tag, float(value), step)
        for board in self._boards.values():
            board.flush()

    def judge(self, judged: Mapping[str, Mapping[str, float]], step: int) -> None:
        """Takes what is known of each set from now on.

        Args:
            judged: By set, then by name.
            step: Now.
        """
        for run, values in judged.items():
            for name, value in values.items():
                group = "train" if name.endswith(_SHOWN_FIRST) else "train_judged"
                self._hold(run, f"{group}/{name}", step)
                self.board(run).add_scalar(f"{group}/{name}", value, step)
                self._judged[run, f"{group}/{name}"] = step, value

    def _hold(self, run: str, tag: str, step: int) -> None:
        """Draws a curve on to a step, without it and without where it begins."""
        if (run, tag) in self._judged:
            since = self._judged[run, tag]
            for between, value in held([since], step - 1):
                if since[0] < between < step:
                    self.board(run).add_scalar(tag, value, between)

    def finish(
        self,
        settings: Mapping[str, Setting],
        scores: Mapping[str, Mapping[str, float]],
        step: int,
    ) -> None:
        """Settings beside the final scores of each set: TensorBoard's table of runs."""
        for run, tag in self._judged:
            self._hold(run, tag, step + 1)
        for run, values in scores.items():
            results = {f"train_score/{name}": value for name, value in values.items()}
            # By this name it is in front, where it tells the rows of a training apart.
            self.board(run).add_results({"against": run, **settings}, results, step)

    def close(self) -> None:
        """Ends the files."""
        for board in self._boards.values():
            board.close()


def _place_of(name: str) -> tuple[str, str]:
    """Run and tag of what a logger calls `group/name`."""
    group, _, rest = name.partition("/")
    run = IMITATION if group == IMITATION else LEARNING
    if name in _NAMES:
        return run, _NAMES[name]
    return run, f"train_{'ppo' if group == 'train' else group}/{rest}"
