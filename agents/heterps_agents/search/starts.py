"""Placements that every search can begin with: those of greedy and the proportional planners."""

from __future__ import annotations

from heterps_agents.interface.question import Question
from heterps_agents.search.even_options import even_codes
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.proportional import RULES, divided
from heterps_envs.arrays import Code
from heterps_envs.problem import Problem

NUM_EVEN = 6


def simple_codes(problem: Problem, question: Question) -> list[Code]:
    """Codes of greedy and the proportional placements, whether they can be used or not.

    Where options are open, even placements as well.

    A budget of fewer evaluations gets fewer of them, but always one.
    """
    codes = list[Code]()
    for rule in RULES:
        if not codes or question.budget.evaluations_left != 0:
            codes.append(divided(problem, question, rule))
    question.found_all(codes)
    if question.options and not question.budget.is_exhausted:
        codes += even_codes(question, NUM_EVEN)
    greedy = greedy_code(question)
    return codes if greedy is None else [greedy, *codes]


def simple_start(problem: Problem, question: Question) -> Code:
    """The best of them, or the one that comes nearest to fitting."""
    return question.cheapest(simple_codes(problem, question))
