"""The process that searches plans while a run goes on: `python -m heterps.online.worker`.

It answers one task. It has a low priority, and the lowest one after its first answer, so that no
step waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from heterps.online.search import Answer, SearchTask, answers
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.background import serve
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.planner import PolicyPlanner

# Added to the priority: on cores that the run keeps busy, a tenth of one is left for the first
# answer, which takes seconds; what is left of them for the fine-tuning, which takes longer.
FIRST_NICE, NICE = 10, 9


def _prepare() -> None:
    """Loads what every task needs."""
    for planner in (planner_named("exact"), PolicyPlanner(effort="high")):
        warm_up(planner, "throughput")


def _answers(task: SearchTask) -> Iterator[Answer | str]:
    try:
        for number, answer in enumerate(answers(task)):
            yield answer
            if number == 0:
                os.nice(NICE)
    except Exception as error:  # the run goes on, and its controller says what was wrong
        yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    os.nice(FIRST_NICE)
    serve(_answers, prepare=_prepare, is_single=True)
