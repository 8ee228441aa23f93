"""Placements that every search can begin with: those of greedy and the proportional planners."""

from __future__ import annotations

from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.proportional import simple_placements
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import encode
from heterps_envs.problem import Problem


def simple_codes(problem: Problem, question: Question) -> list[Code]:
    """Codes of greedy and the proportional placements, whether they can be used or not.

    A budget of fewer evaluations gets fewer of them, but always one.
    """
    left = question.budget.evaluations_left
    placements = simple_placements(problem)[: None if left is None else max(1, left)]
    codes = [encode(placement) for placement in placements]
    question.budget.spend(len(codes) if left is None else min(len(codes), left))
    greedy = greedy_code(question)
    return codes if greedy is None else [greedy, *codes]


def simple_start(problem: Problem, question: Question) -> Code:
    """The best of them, or the one that comes nearest to fitting."""
    return question.cheapest(simple_codes(problem, question))
