"""The process that searches plans while a run goes on: `python -m heterps.online.worker`.

It reads one task from its standard input and writes answers to its standard output, pickled. It has
a low priority, and the lowest one behind its first answer, so that no step waits for it. It ends as
soon as its input ends, which is when whoever started it does, however that happens.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from heterps.online.search import EFFORT, SearchTask, answers
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.planner import PolicyPlanner

# Added to the priority: on cores that the run keeps busy, a tenth of one is left for the first
# answer, which takes seconds; what is left of them for the fine-tuning, which takes longer.
FIRST_NICE, NICE = 10, 9


def _end_with(source: BinaryIO) -> None:
    """Ends this process at the end of its input."""
    with suppress(OSError, ValueError):
        source.read()
    os._exit(0)


def main() -> None:
    """Answers the process that started it."""
    os.nice(FIRST_NICE)
    # What libraries print must not come between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for planner in (planner_named("exact"), PolicyPlanner(effort=EFFORT)):
        warm_up(planner, "throughput")
    try:
        task: SearchTask = pickle.load(sys.stdin.buffer)
    except EOFError:  # nothing had to be searched
        return
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    with suppress(BrokenPipeError):
        try:
            for number, answer in enumerate(answers(task)):
                pickle.dump(answer, out)
                out.flush()
                if number == 0:
                    os.nice(NICE)
        except Exception as error:  # the run goes on, and its controller says what was wrong
            pickle.dump(f"{type(error).__name__}: {error}", out)
            out.flush()
    out.close()
    # The thread still reads, and torch's destructors take their time.
    os._exit(0)


if __name__ == "__main__":
    main()
