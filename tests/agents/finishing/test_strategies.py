"""Plans with stage options: which placements are simulated."""

import numpy as np

from heterps_agents.finishing.strategies import NEAR_KNOWN, worth_simulating
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.job import Job
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem


def test_placements_that_only_their_sums_make_slow_are_simulated() -> None:
    """Beside passes, sums may take no time; a pipeline that is as slow as that stays slow."""
    profile = load_profile("vit-large")
    problem = Problem(
        profile,
        load_cluster("a100-v100-t4"),
        Job(dtype=profile.dtype, global_batch_size=32, micro_batch_size=8),
    )
    question, last = Question.of(problem, Budget()), profile.num_layers - 1
    replicated = encode([PlacedStage(0, last, 0, replicas=4)])
    unsummed = np.zeros_like(question.kernel.gradient_prefix_bytes)
    kernel = question.kernel._replace(gradient_prefix_bytes=unsummed)
    cost, without = question.cost(replicated), question.goal.cost(replicated, kernel)
    assert cost > NEAR_KNOWN * without

    def kept(known: float) -> list[Code]:
        budget = Budget()
        budget.known_cost = known
        return worth_simulating(question._replace(budget=budget), [replicated])

    assert kept(cost)
    assert kept(1.001 * without)
    assert not kept(0.999 * without)
