"""A process that searches beside another one: `python -m heterps.portfolio.worker`."""

from __future__ import annotations

from collections.abc import Iterator

from heterps.portfolio.task import SearchAnswer, SearchTask, answer_of
from heterps_agents.interface.background import serve


def _answers(task: SearchTask) -> Iterator[SearchAnswer]:
    yield answer_of(task)


if __name__ == "__main__":
    serve(_answers, is_single=True)
