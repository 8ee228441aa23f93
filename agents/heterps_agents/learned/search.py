"""The learned placer on one problem: what a policy finds, improved, until an effort is spent.

    `shortest_step`     beams for ladders of targets, the step time
    `least_price`       the same for the objective price, from the shortest step on
    `best_placements`   what improves the placements that beams find: descents, windows, a sweep

The order of all this depends on the effort alone. A budget only ends it sooner, so that a larger
one never gives a worse placement; the best so far is what is returned. Nothing is random but the
last of it, the annealing from the best placement, which has the question's seed.
"""

from __future__ import annotations

from heterps_agents.interface.question import Question
from heterps_agents.learned.beam import Scorer
from heterps_agents.learned.best_placements import BestPlacements
from heterps_agents.learned.least_price import LeastPrice
from heterps_agents.learned.shortest_step import ShortestStep
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code


def learned_code(scorer: Scorer, question: Question, effort: Effort) -> Code | None:
    """Code of the best placement found.

    Args:
        scorer: The policy.
        question: Its budget is charged a beam's width for every target, one for every placement
            that is evaluated, and one for as many stages of windows as the placement has. What is
            returned is never worse than its start.
        effort: How much to do at most.

    Raises:
        HeterpsError: A layer fits on no device.
    """
    return _searched(scorer, question, effort).code


def learned_codes(scorer: Scorer, question: Question, effort: Effort, most: int) -> list[Code]:
    """The best placement, and the best with each set of options, at most so many; best first.

    The simulator tells apart what the closed form cannot: replicas that wait for their sums. The
    arguments are those of `learned_code`.
    """
    search = _searched(scorer, question, effort)
    codes = [] if search.code is None else [search.code]
    ranked = sorted(search.by_options.values(), key=lambda entry: entry[0])
    return codes + [code for _, code in ranked[: most - len(codes)]]


def _searched(scorer: Scorer, question: Question, effort: Effort) -> BestPlacements:
    kind = LeastPrice if question.goal.is_price else ShortestStep
    search = kind(scorer, question, effort)
    search.know(question.start)
    search.find()
    return search
