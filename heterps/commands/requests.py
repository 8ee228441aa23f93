"""What commands are asked: options that belong together, as one document each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heterps.planning.problems import JOB_OPTIONS, load_problem
from heterps.planning.strategies import STRATEGY_OPTIONS
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_envs.problem import Problem

# What command lines call fields of jobs and strategies, where that is another name.
OPTION_OF = {
    "global_batch_size": "--global-batch",
    "micro_batch_size": "--micro-batch",
    "min_throughput_samples_per_s": "--min-throughput",
}


@contextmanager
def told_by_option(given: Collection[str]) -> Iterator[None]:
    """What is wrong with a job or a strategy is told by the names that a command line has.

    Args:
        given: Fields that options gave.

    Raises:
        HeterpsError: In place of the document's own error.
    """
    try:
        yield
    except DocumentError as error:
        if error.source not in (JOB_OPTIONS, STRATEGY_OPTIONS):
            raise
        problems = list(error.problems)
        for name in given:
            option = OPTION_OF.get(name, f"--{name.replace('_', '-')}")
            # Other names are words, too.
            field = rf"\b{name}\b" if "_" in name else rf"^{name}\b"
            problems = [re.sub(rf"{field}(\.\d+)?", option, text) for text in problems]
        raise HeterpsError("; ".join(problems)) from None


@dataclass(frozen=True)
class JobOptions:
    """Fields of a `Job` that stand above those of a job file; None: not named."""

    objective: str | None = None
    min_throughput_samples_per_s: float | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    dtype: str | None = None
    optimizer: str | None = None
    schedule: str | None = None

    def named(self) -> dict[str, Any]:
        """Those that were named, by field."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ProblemRequest:
    """The problem that a command is about, in the words of its user.

    Attributes:
        model: MODEL, see `heterps.planning.problems.load_model`.
        cluster: Shipped name, or cluster file.
        job: What options say of the job.
        job_file: A job document.
        inputs: Of a model that is traced, see `load_model`.
        sequence_length: The same.
        strategy: What planners may choose; None: what `load_problem` leaves open.
        names_ways: Ways to carry out stages were asked for in so many words. The strategy cannot
            tell, where they are the default as well.
    """

    model: str
    cluster: str
    job: JobOptions = JobOptions()
    job_file: str | None = None
    inputs: tuple[str, ...] = ()
    sequence_length: int | None = None
    strategy: Strategy | None = None
    names_ways: bool = False

    @property
    def read(self) -> dict[str, str | None]:
        """What may be a file, by argument and option; for `heterps_configs.outputs.try_outputs`."""
        return {"MODEL": self.model, "--cluster": self.cluster, "--job": self.job_file}

    def load(self) -> Problem:
        """Reads the documents; traces the model where that is no file.

        Raises:
            HeterpsError: One of them is missing or broken, or an option does not fit.
        """
        given = self.job.named()
        with told_by_option(given):
            return load_problem(
                self.model,
                self.cluster,
                job_file=self.job_file,
                inputs=self.inputs,
                sequence_length=self.sequence_length,
                strategy=self.strategy,
                **given,
            )


@dataclass(frozen=True)
class Limits:
    """Where a search ends; None: by itself.

    Attributes:
        evaluations: Placements.
        seconds: Of a clock on the wall.
        cpu_seconds: Of processors.
    """

    evaluations: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    def budget(self) -> Budget:
        """What may be spent from now on.

        Raises:
            HeterpsError: That is nothing.
        """
        return Budget(self.evaluations, self.seconds, self.cpu_seconds)


@dataclass(frozen=True)
class PlannerRequest:
    """Which planner answers, and how hard it tries.

    Attributes:
        name: None: `auto`, or with a policy `ppo`.
        policy: Name or file of the user's own policy.
        effort: None: the planner's usual one.
        seed: Of everything random.
        processes: In which searches go on at the same time.
    """

    name: str | None = None
    policy: str | None = None
    effort: str | None = None
    seed: int = 0
    processes: int = 1

    def planner(self) -> Planner | System:
        """The planner itself.

        Raises:
            HeterpsError: There is no such planner, policy or effort, or they do not go together.
        """
        if self.policy is None:
            chosen = planner_named("auto" if self.name is None else self.name, seed=self.seed)
        else:
            chosen = with_policy(self.policy, self.name, self.seed)
        if self.effort is not None:
            effort_named(self.effort)
        return chosen


def with_policy(policy: str, planner: str | None = None, seed: int = 0) -> PolicyPlanner:
    """The planner `ppo` with a policy of the user's; plans name the policy.

    Raises:
        HeterpsError: Another planner was asked for, or there is no such policy for chains.
    """
    if planner not in (None, PolicyPlanner.name):
        raise HeterpsError(f"--policy belongs to the planner ppo, not to --planner {planner}")
    chosen = PolicyPlanner(seed, policy=Policy.load(policy))
    chosen.name = f"{chosen.name}:{Path(policy).stem}"
    return chosen
