"""One planner, one problem: its answer as a row, whatever it does with its time.

Each question is asked in a process of its own, forked from this one: what a planner keeps of a
problem helps no other one, and one that does not end is ended by the operating system. Code is
compiled beforehand, by `prepare`.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.field.scores import AUTO
from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.place import chooses_options, place
from heterps.planning.problems import load_problem
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import System
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem

Row = dict[str, Any]
# A planner that does not look at its budget is ended at so many times as much, and so many more
# seconds, of the processor; on a busy machine these take longer by the clock.
HARD_FACTOR, HARD_SECONDS, WALL_FACTOR = 3.0, 10.0, 6.0
# Addresses of a planner's process: one that takes more fails, and the machine goes on.
MOST_BYTES = 16 * 2**30
# Of a planner's preparation, by the clock.
PREPARATION_S, PREPARATION_CPU_S = 90.0, 0.5


class Limits(NamedTuple):
    """What each planner may spend on a problem.

    Attributes:
        cpu_seconds: Its budget.
        seed: Of planners that draw random numbers.
        processes: In which `auto` searches at the same time, each with that budget.
    """

    cpu_seconds: float
    seed: int = 0
    processes: int = 1

    @property
    def hard_cpu_s(self) -> int:
        """Processor seconds after which its process ends."""
        return math.ceil(HARD_FACTOR * self.cpu_seconds + HARD_SECONDS)


Maker = Callable[[str, int], Planner]


def ask(problem: Problem, name: str, limits: Limits, make: Maker = planner_named) -> Row:
    """The row of a planner's answer.

    Args:
        problem: What is asked.
        name: The planner's.
        limits: What it may spend.
        make: Makes a planner of a name and a seed.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(theirs, problem, name, limits, make))
    start = time.perf_counter()
    process.start()
    theirs.close()
    row: Row | None = None
    has_ended = ours.poll(WALL_FACTOR * limits.hard_cpu_s)
    if has_ended:
        with suppress(EOFError):
            row = ours.recv()
    else:
        process.kill()
    process.join()
    ours.close()
    code = process.exitcode if has_ended else None
    return row or _without_answer(code, limits, time.perf_counter() - start)


def prepare(names: Iterable[str], make: Maker = planner_named) -> None:
    """Lets each planner answer small problems once: what it imports and compiles is in no row."""
    small = load_problem("gpt2", "a100-v100", global_batch_size=8)
    for name in names:
        # Whatever is wrong with a planner shows in its rows.
        with suppress(Exception), _alarm(PREPARATION_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            planner = make(name, 0)
            warm_up(planner, "throughput")
            place(small, planner, budget=Budget(cpu_seconds=PREPARATION_CPU_S))


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises inside the block when the time is over."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _in_child(
    connection: Connection, problem: Problem, name: str, limits: Limits, make: Maker
) -> None:
    """What the forked process does."""
    # The second limit is of no use: the first ends the process.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.hard_cpu_s, limits.hard_cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = _answer(problem, name, limits, make)
    connection.send(row)
    connection.close()


def _answer(problem: Problem, name: str, limits: Limits, make: Maker) -> Row:
    start_cpu_s, start_s = time.process_time(), time.perf_counter()

    def spent() -> Row:
        return {
            "cpu_s": time.process_time() - start_cpu_s,
            "wall_s": time.perf_counter() - start_s,
        }

    try:
        planner = make(name, limits.seed)
        own_s = _timed(planner)
        budget, processes = Budget(cpu_seconds=limits.cpu_seconds), 1
        if name == AUTO:
            processes = limits.processes
        result = place(problem, planner, budget=budget, processes=processes)
    except HeterpsError as error:
        kind = "infeasible" if isinstance(error, InfeasibleError) else "refused"
        return {"step_time_s": None, "kind": kind, "reason": _line(str(error), name), **spent()}
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return {"step_time_s": None, "kind": "failed", "reason": _line(said, name), **spent()}
    row = {**spent(), **_found(problem, result, chooses_options(planner))}
    # Of a paper's method its own code counts, of ours judging and proving as well.
    return {**row, "cpu_s": own_s[0]} if isinstance(planner, System) else row


def _timed(planner: Planner) -> list[float]:
    """Adds up, in the one number of the list, what a system of a paper spends on its answers."""
    spent = [0.0]
    if isinstance(planner, System):
        answer = planner.answer

        def timed(problem: Problem, budget: Budget) -> Any:
            start = time.process_time()
            try:
                return answer(problem, budget)
            finally:
                spent[0] += time.process_time() - start

        setattr(planner, "answer", timed)  # noqa: B010 (mypy: a method of this object alone)
    return spent


def _found(problem: Problem, result: PlaceResult, has_all_options: bool) -> Row:
    plan, shown = result.plan, result.estimate
    # A bound of plans without options is none of the others.
    bound_s = result.executable.step_time_s if has_all_options else None
    is_alone = len(plan.device_groups) == len(plan.stages)
    return {
        "step_time_s": shown.step_time_s,
        "kind": "found",
        "reason": "",
        "predicted_s": result.own_prediction_s,
        "bound_s": bound_s,
        "is_bounded": is_alone and keeps_to(plan, problem.strategy),
        "closed_form_status": result.bound.status if has_all_options else "unknown",
        "micro_batch": plan.job.micro_batch_size,
        "stages": len(plan.stages),
        "devices": len(plan.devices),
    }


def _line(text: str, name: str) -> str:
    """One line without the planner's name in front."""
    first = " ".join(text.split())
    return first.removeprefix(f"planner {name}: ").removeprefix(f"{name}: ")


def _without_answer(exit_code: int | None, limits: Limits, wall_s: float) -> Row:
    """The row of a process that was ended; with a code of None, by the clock."""
    row = {"step_time_s": None, "cpu_s": 0.0, "wall_s": wall_s}
    budget = f"({limits.cpu_seconds:g} processor seconds were its budget)"
    if exit_code is None:
        return {**row, "kind": "too long", "reason": f"no answer in {wall_s:.0f} s {budget}"}
    if exit_code == -signal.SIGXCPU:
        reason = f"no answer within {limits.hard_cpu_s} processor seconds {budget}"
        return {**row, "kind": "too long", "reason": reason, "cpu_s": float(limits.hard_cpu_s)}
    return {**row, "kind": "failed", "reason": f"its process ended with code {exit_code}"}
