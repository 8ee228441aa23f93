"""`heterps train` for graphs: a policy that places them node by node."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.train_command import training_bar
from heterps_configs.graph_training_config import GraphTrainingConfig

if TYPE_CHECKING:
    from heterps_agents.graph_training import GraphTrainingResult


def graph_scores(result: GraphTrainingResult) -> str:
    """One sentence on what a training run reached."""
    scores = result.scores
    return (
        f"{result.steps:,} nodes placed in {result.seconds:.0f} s; step time on the held-out "
        f"set, of that of earliest finish: greedy mean {scores['greedy_mean']:.1%}, best of 16 "
        f"samples mean {scores['samples16_mean']:.1%}"
    )


def train_graphs_with_progress(
    config: GraphTrainingConfig, folder: Path, *, resume: bool = False, command: str = ""
) -> GraphTrainingResult:
    """`heterps_agents.graph_training.train_graphs` with a progress bar on stderr."""
    with training_bar("preparing") as bar:
        # torch takes seconds to load; the bar is there already.
        from heterps_agents.graph_training import GraphTrainingProgress, train_graphs

        def show(state: GraphTrainingProgress) -> None:
            share = state.step_time_share
            held_out = "" if math.isnan(share) else f"  held-out {share:.1%} of earliest finish"
            now = f"{state.steps:,} nodes  reward {state.reward:.3f}{held_out}"
            bar(state.share, now)

        return train_graphs(config, folder, resume, show, command)
