"""What every system of a paper keeps: a plan of ours that fits, its own cost, one-line refusals."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from heterps_agents.interface.papers import EVIDENCE, PAPERS
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named, system_names
from heterps_agents.interface.system import PERIOD, STEP, System
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Methods for equal devices have nothing to say of the others' clusters.
CLUSTERS = ("h100-pod", "a100-v100")


@cache
def shipped(model: str, cluster: str, **job: object) -> Problem:
    settings = {"global_batch_size": 16, "micro_batch_size": 1, "dtype": "bfloat16", **job}
    return Problem(load_profile(model), load_cluster(cluster), Job.from_mapping(settings))


def system(name: str) -> System:
    found = planner_named(name, seed=3)
    assert isinstance(found, System)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", system_names())
def test_a_shipped_model_gets_a_plan_that_simulates_or_one_line_that_says_why_not(
    name: str, cluster: str
) -> None:
    problem = shipped("vit-large", cluster)
    reason = system(name).why_not(problem)
    if reason is not None:
        assert "\n" not in reason
        with pytest.raises(HeterpsError, match=f"^{name}: "):
            system(name).plan(problem, Budget())
        return
    budget = Budget()
    plan, own_cost = system(name).answer(problem, budget)
    check_plan(problem, plan)
    shown = estimate(problem, plan)
    assert shown.feasible
    assert shown.step_time_s == plan.predicted_step_time_s
    assert (plan.planner, plan.seed) == (name, 3)
    assert budget.evaluations_used > 0
    first = next(
        each for each in CLUSTERS if system(name).why_not(shipped("vit-large", each)) is None
    )
    if cluster == first:  # once is enough
        assert plan == system(name).plan(problem, Budget())
    if own_cost is not None:
        rounds = {STEP: 1, PERIOD: problem.job.num_micro_batches}[own_cost.of]
        # Some leave sums of gradients out, or the filling of a pipeline.
        assert 0 < own_cost.seconds * rounds < 1.5 * shown.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("name", system_names())
def test_a_model_that_fits_nowhere_is_refused_by_the_systems_name(name: str) -> None:
    # Of one sample each, micro-batches would fit where layers are computed again or offloaded.
    problem = shipped("llama-70b", "h100-pod", global_batch_size=128, micro_batch_size=8)
    with pytest.raises(HeterpsError, match=f"^{name}: "):
        system(name).plan(problem, Budget())


@pytest.mark.parametrize("name", system_names())
def test_every_system_has_a_paper(name: str) -> None:
    found = system(name)
    assert name in PAPERS
    assert found.evidence == EVIDENCE.get(name, ())


def test_naming_a_system_imports_no_other_system() -> None:
    script = (
        "import sys; from heterps_agents.interface.registry import planner_named;"
        "planner_named('pipeedge');"
        "print(*[m for m in sys.modules if m.startswith('heterps_agents.systems.p')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert all(".pipeedge" in name for name in done.stdout.split())


def test_unequal_devices_are_named_with_their_numbers() -> None:
    with pytest.raises(
        HeterpsError, match=r"^piper: needs equal devices; the cluster has 2 A100-40G and 2 V100"
    ):
        system("piper").plan(shipped("vit-large", "a100-v100"), Budget())


@pytest.mark.slow
def test_pipedream_does_not_count_memory_and_the_simulator_says_what_is_missing() -> None:
    with pytest.raises(InfeasibleError, match=r"^pipedream: its plan does not fit here: memory: "):
        system("pipedream").plan(shipped("llama-70b", "h100-pod"), Budget())
