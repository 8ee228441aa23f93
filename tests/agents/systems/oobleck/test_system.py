"""Oobleck on our problems: sets of templates, shares of the batch, and what it tolerates."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.oobleck.system import Oobleck
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from tests.uneven_problems import MakeProblem


def sizes(plan: Plan) -> list[int]:
    return sorted(len(pipeline.stages) for pipeline in plan.pipelines)


@pytest.mark.parametrize("tolerated", [0, 1, 2])
def test_every_device_works_and_a_pipeline_is_left_after_the_tolerated_losses(
    tolerated: int, make_problem: MakeProblem
) -> None:
    problem = make_problem(counts=(0, 5, 0), memory=2.5)
    plan = Oobleck(tolerated=tolerated).plan(problem, Budget())
    assert sum(sizes(plan)) == len(plan.devices) == 5
    assert len(plan.pipelines) > tolerated
    shares = [len(pipeline.micro_batches) for pipeline in plan.pipelines]
    assert sum(shares) == problem.job.num_micro_batches
    assert min(shares) > 0


def test_pipelines_are_as_long_as_the_model_needs(make_problem: MakeProblem) -> None:
    """Six times 984 MB of parameters need two devices of 3.6 GB, the activations none more."""
    plan = Oobleck().plan(make_problem(counts=(0, 4, 0), memory=1.2), Budget())
    assert sizes(plan) == [2, 2]


def test_more_losses_than_the_devices_allow_are_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^oobleck: 3 nodes cannot tolerate 1 losses: 2 rep"):
        Oobleck().plan(make_problem(counts=(0, 3, 0)), Budget())


def test_a_batch_of_too_few_micro_batches_is_refused(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(0, 4, 0), memory=1.2, global_batch_size=1)
    with pytest.raises(InfeasibleError, match=r"^oobleck: no 2 to 1 pipelines of 2 to 4 devices"):
        Oobleck().plan(problem, Budget())


def test_more_devices_than_it_tries_sets_for_are_refused(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(0, 33, 0))
    with pytest.raises(HeterpsError, match=r"sets of templates for up to 32 devices; there are 33"):
        Oobleck().plan(problem, Budget())
