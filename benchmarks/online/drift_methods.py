"""Ways to adapt to a drifted problem, one deployment after another.

Each yields, after every measured deployment, the placement that it would keep, and deploys that
one next, or another one where it explores. They see the truth through noisy measurements alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from benchmarks.online.drift_cases import NOISE_SIGMA, TablesBelief, deployed, step_time_s
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.planner import DEFAULT_POLICY
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.search.stage_changes import change_stages, num_changes
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal, read_stages, write_code
from heterps_envs.cost_tables import CostTables

# Seconds of PPO after every deployment.
FINE_TUNE_S = 0.6
# How far below the most likely times an exploring plan hopes to be, in standard deviations.
OPTIMISM = 1.0


class Case(NamedTuple):
    """One problem that drifted.

    Attributes:
        believed: The problem as it was when the first plan was made.
        truth: As it is.
        start: (L,) int32, the optimum of what is believed.
    """

    believed: CostTables
    truth: CostTables
    start: Code


Solver = Callable[[CostTables, Code], Code]
Adaptation = Callable[[Case, np.random.Generator], Iterator[Code]]


def recalibrate(case: Case, rng: np.random.Generator, resolve: Solver) -> Iterator[Code]:
    """Measured stages correct the belief; its optimum is kept and deployed."""
    belief, kept = TablesBelief(case.believed), case.start
    while True:
        belief.observe(deployed(kept, case.truth, rng))
        kept = resolve(belief.tables(), kept)
        yield kept


def explore(case: Case, rng: np.random.Generator) -> Iterator[Code]:
    """The same with the exact solver; where its plan was measured already, another is deployed.

    It is the optimum of hoped-for times, and where that was measured too, of drawn ones. The plan
    that is kept is always the optimum of the most likely times.
    """
    belief, plan = TablesBelief(case.believed), case.start
    measured: set[bytes] = set()
    while True:
        measured.add(plan.tobytes())
        belief.observe(deployed(plan, case.truth, rng))
        kept = plan = exact(belief.tables(), plan)
        if plan.tobytes() in measured:
            plan = exact(belief.optimistic_tables(OPTIMISM), plan)
        if plan.tobytes() in measured:
            plan = exact(belief.drawn_tables(rng), plan)
        yield kept


def climb(case: Case, rng: np.random.Generator) -> Iterator[Code]:
    """Black box: a random small change is deployed, and kept where its step was measured faster."""
    kernel = kernel_tables(case.truth)
    kept, kept_s = case.start, _measured_s(case.start, kernel, rng)
    while True:
        yield kept
        tried = _changed(kept, kernel, rng)
        tried_s = _measured_s(tried, kernel, rng)
        if tried_s < kept_s:
            kept, kept_s = tried, tried_s


def exact(tables: CostTables, known: Code) -> Code:
    """The optimum."""
    found = solve(kernel_tables(tables)).code
    return known if found is None else found


def policy_beam(tables: CostTables, known: Code, policy: Policy | None = None) -> Code:
    """What the learned search finds with effort `normal`; never worse than `known`."""
    policy = policy or Policy.load(DEFAULT_POLICY)
    effort = effort_named("normal")
    question = Question(tables, kernel_tables(tables), Goal(), Budget(), start=known)
    found = learned_code(policy, question, effort)
    return known if found is None else found


def fine_tuned(case: Case, rng: np.random.Generator) -> Iterator[Code]:
    """PPO in the corrected simulator after each deployment, then the search with its policy."""
    from heterps_agents.training.fine_tune import fine_tune

    policy = Policy.load(DEFAULT_POLICY)

    def resolve(tables: CostTables, known: Code) -> Code:
        nonlocal policy
        policy = fine_tune(policy, [tables], seconds=FINE_TUNE_S)
        return policy_beam(tables, known, policy)

    return recalibrate(case, rng, resolve)


def _measured_s(code: Code, kernel: KernelTables, rng: np.random.Generator) -> float:
    return step_time_s(code, kernel) * float(np.exp(NOISE_SIGMA * rng.standard_normal()))


def _changed(code: Code, kernel: KernelTables, rng: np.random.Generator) -> Code:
    """A random small change that fits; a cut moves by one layer about every other time."""
    free = np.zeros(kernel.num_classes, np.int64)
    for _ in range(100):
        stages = np.zeros((kernel.num_layers + 1, 3), np.int64)
        count = read_stages(code, stages)
        if count > 1 and rng.random() < 0.5:
            stages[rng.integers(count - 1), 0] += rng.choice((-1, 1))
            ends = np.concatenate([[0], stages[:count, 0]])
            count = count if (np.diff(ends) > 0).all() else 0
        else:
            index = int(rng.integers(num_changes(kernel, count)))
            count = change_stages(kernel, stages, count, index, free)
        changed = np.zeros(kernel.num_layers, np.int32)
        if count > 0:
            write_code(stages, count, changed)
            if np.isfinite(step_time_s(changed, kernel)):
                return changed
    return code


ADAPTATIONS: Mapping[str, Adaptation] = MappingProxyType(
    {
        "black-box hill climb": climb,
        "belief + exact": lambda case, rng: recalibrate(case, rng, exact),
        "belief + exact, explores": explore,
        "belief + policy's beam": lambda case, rng: recalibrate(case, rng, policy_beam),
        "belief + fine-tuned policy's beam": fine_tuned,
    }
)
