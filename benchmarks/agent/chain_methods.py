"""The methods for chains, one line each: exact, the policy at every effort, and the baselines."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks.agent.comparison import Entry
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question, Search
from heterps_agents.learned.decode import TARGETS_PER_ROUND, decode
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.learned.unlearned_beam import beam_code, random_beam_code
from heterps_agents.search.annealing import annealed_code
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.genetic import genetic_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_agents.training.evaluation import GREEDY_TARGETS
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.packed import pack_problems

EVALUATIONS, QUICK_EVALUATIONS = (256, 2000, 20_000), (2000,)
# Entries whose CPU seconds the baselines get as well.
NORMAL, HIGH = "policy, effort normal", "policy, effort high"
EXACT_SECONDS, QUICK_EXACT_SECONDS = 10.0, 1.0
# Methods that learn anew for every problem take seconds each.
LEARNER_PROBLEMS = 10


class Chain(NamedTuple):
    """A problem as all methods get it."""

    tables: CostTables
    kernel: KernelTables
    goal: Goal


Run = Callable[[Chain, Budget, int], Code | None]


def cost(chain: Chain, code: Code) -> float:
    """What a placement costs, by the closed form; inf where it may not be used."""
    return chain.goal.cost(code, chain.kernel)


def entries(policy: Policy, quick: bool) -> list[Entry[Chain, Code]]:
    """The lines of a table, top to bottom."""
    policies = {**decoding_methods(policy), **effort_methods(policy), **without_sweeps(policy)}
    return _lines(policies, quick)


def cheapest_entries(
    policy: Policy, for_short_steps: Policy, quick: bool
) -> list[Entry[Chain, Code]]:
    """The same for the objective price; the decodings know step times only.

    Args:
        policy: Trained on prices.
        for_short_steps: Not; the planner asks it about subsets of the device classes.
        quick: Few lines.
    """
    others = {
        name.replace("policy,", "policy for short steps,"): run
        for name, run in effort_methods(for_short_steps).items()
    }
    return _lines({**effort_methods(policy), **others}, quick)


def _lines(policies: dict[str, Run], quick: bool) -> list[Entry[Chain, Code]]:
    return [
        exact_entry(quick),
        *(Entry(name, run) for name, run in policies.items()),
        Entry("greedy", _greedy),
        *_search_entries(quick),
    ]


def learner_entries() -> list[Entry[Chain, Code]]:
    """Networks that are trained anew for every problem: seconds each."""
    from heterps_agents.search.layer_ppo import layer_ppo_code
    from heterps_agents.systems.heterps.lstm import lstm_code

    learners = {"LSTM + REINFORCE": lstm_code, "PPO on layers": layer_ppo_code}
    return [
        Entry(name, partial(_alone, learner), evaluations=2000, first=LEARNER_PROBLEMS)
        for name, learner in learners.items()
    ]


def exact_entry(quick: bool) -> Entry[Chain, Code]:
    """The exact solver, with a limit in seconds."""
    seconds = QUICK_EXACT_SECONDS if quick else EXACT_SECONDS
    return Entry("exact", partial(_exact, seconds), proves=True)


def decoding_methods(policy: Policy) -> dict[str, Run]:
    """Plain ladders of targets by name: the policy alone, and the cuts of what it finds refined."""
    return {
        "policy, greedy": partial(_decoded, policy, 1, GREEDY_TARGETS),
        "policy, beam 16": partial(_decoded, policy, 16, TARGETS_PER_ROUND),
        "policy, beam 64": partial(_decoded, policy, 64, TARGETS_PER_ROUND),
    }


def effort_methods(policy: Policy) -> dict[str, Run]:
    """The efforts of the learned placer, from greedy's placement on, as planners begin too."""
    return {
        "policy, effort fast": partial(_with_effort, effort_named("fast"), policy),
        NORMAL: partial(_with_effort, effort_named("normal"), policy),
        HIGH: partial(_with_effort, effort_named("high"), policy),
    }


def without_sweeps(policy: Policy) -> dict[str, Run]:
    """The same where the exact solver takes no placement as a whole: what it adds."""
    return {
        f"{name}, no sweep": partial(
            _with_effort, effort_named(effort).changed(sweeps=False), policy
        )
        for name, effort in ((NORMAL, "normal"), (HIGH, "high"))
    }


def _searches() -> dict[str, Run]:
    """Searches that use up any budget; all but random begin with greedy's placement."""
    return {
        "annealing": partial(_from_greedy, annealed_code),
        "genetic": partial(_from_greedy, genetic_code),
        "cross-entropy": partial(_from_greedy, cross_entropy_code),
        "beam by price": partial(_from_greedy, beam_code),
        "beam at random": partial(_from_greedy, random_beam_code),
        "random": partial(_alone, random_code),
    }


def _search_entries(quick: bool) -> list[Entry[Chain, Code]]:
    lines = []
    for name, run in _searches().items():
        for evaluations in QUICK_EVALUATIONS if quick else EVALUATIONS:
            lines.append(Entry(name, run, evaluations=evaluations))
        for other in (NORMAL,) if quick else (NORMAL, HIGH):
            lines.append(Entry(name, run, cpu_of=other))
    return lines


def _exact(seconds: float, chain: Chain, budget: Budget, seed: int) -> Code | None:
    result = solve(chain.kernel, chain.goal, max_seconds=seconds)
    budget.spend(result.transitions)
    return result.code


def _decoded(
    policy: Policy, width: int, targets: int, chain: Chain, budget: Budget, seed: int
) -> Code | None:
    found = decode(policy, pack_problems([chain.tables]), width=width, targets_per_round=targets)
    budget.spend(found.evaluations)
    return found.code[0] if math.isfinite(found.step_time_s[0]) else None


def _with_effort(
    effort: Effort, policy: Policy, chain: Chain, budget: Budget, seed: int
) -> Code | None:
    question = Question(*chain, budget)
    return learned_code(policy, question._replace(start=greedy_code(question)), effort)


def _greedy(chain: Chain, budget: Budget, seed: int) -> Code | None:
    return greedy_code(Question(*chain, budget))


def _from_greedy(search: Search, chain: Chain, budget: Budget, seed: int) -> Code | None:
    question = Question(*chain, budget, seed)
    return search(question._replace(start=greedy_code(question)))


def _alone(search: Search, chain: Chain, budget: Budget, seed: int) -> Code | None:
    return search(Question(*chain, budget, seed))
