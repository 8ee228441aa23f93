"""Placing with options, and with the size of micro-batches left open."""

import math
from dataclasses import replace

import pytest

from heterps.micro_batches import one_size
from heterps.micro_batches.each_size import NO_BUDGET
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.planning.frontier import frontier
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.interface.planner import Budget
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.job import Job, Objective, Strategy
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Bound
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster
from heterps_envs.closed_form.bounds import plans_bound_s
from heterps_envs.problem import PLAIN, Problem
from heterps_envs.simulator.simulate import simulated_step_time_s
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.tracing.trace import trace_source

ALL = OPEN.changed(chooses_micro_batch=False)


@pytest.mark.slow
def test_what_fits_on_no_pod_fits_with_groups_that_compute_again() -> None:
    problem = load_problem("llama-70b", "h100-pod", strategy=ALL, global_batch_size=16)
    result = place(problem)
    assert result.estimate.feasible
    assert any(stage.degree > 1 and stage.recompute_layers for stage in result.plan.stages)
    even = best_uniform(problem, Budget())
    assert even is not None
    assert result.estimate.step_time_s <= even.cost
    assert result.bound.step_time_s is not None
    assert result.bound.step_time_s <= result.estimate.step_time_s


def _qwen2() -> ModelProfile:
    """Four layers of the 7B model: 28 query heads, of which seven share a key and value."""
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 4,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    return trace_source(huggingface_source(config, sequence_length=4096), "qwen2")


def test_a_group_may_have_more_devices_than_keys_and_values() -> None:
    """One sample at a time: a group of eight is faster than any two of four."""
    cluster = load_cluster("h100-pod")
    node = cluster.changed(nodes=cluster.nodes[:1], inter_node_link=None)
    job = Job(global_batch_size=1, micro_batch_size=1, dtype="bfloat16")
    asked = Strategy(tensor_parallel=(1, 2, 4, 8))
    problem = Problem(profile=_qwen2(), cluster=node, job=job, strategy=asked)
    result = place(problem)
    assert [stage.degree for stage in result.plan.stages] == [8]
    # As profiles were before: a key and value with all of its queries on one device.
    layers = [
        layer.changed(tensor_split=layer.tensor_split and layer.tensor_split.by_key_values())
        for layer in problem.profile.layers
    ]
    before = replace(problem, profile=problem.profile.changed(layers=layers))
    with_fewer = place(before)
    assert all(stage.degree < 8 for stage in with_fewer.plan.stages)
    assert result.estimate.step_time_s < with_fewer.estimate.step_time_s


@pytest.mark.slow
def test_options_never_make_a_plan_worse() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=8)
    sized = with_size(problem, 1)
    without, options = place(sized.plain), place(sized)
    assert options.estimate.step_time_s <= without.estimate.step_time_s


def test_a_search_keeps_to_the_degrees_that_are_allowed() -> None:
    problem = load_problem("gpt2", "h100-pod", strategy=Strategy(tensor_parallel=(2,)))
    plan = place(problem, "greedy").plan
    assert {stage.degree for stage in plan.stages} == {2}


def test_a_planner_without_options_says_that_what_was_asked_for_is_ignored() -> None:
    asked = ALL.changed(tensor_parallel=(2, 4))
    problem = load_problem("gpt2", "a100-v100", strategy=asked)
    with pytest.warns(UserWarning, match="pipeedge places each stage on one device"):
        plan = place(problem, "pipeedge").plan
    assert {stage.degree for stage in plan.stages} == {1}


@pytest.mark.filterwarnings("error")
def test_what_nobody_asked_for_is_not_said_to_be_ignored() -> None:
    plan = place(load_problem("gpt2", "a100-v100", micro_batch_size=4), "pipeedge").plan
    assert {stage.degree for stage in plan.stages} == {1}
    assert plan.job.micro_batch_size == 4


def test_the_size_of_micro_batches_is_chosen_by_the_simulator() -> None:
    strategy = PLAIN.changed(chooses_micro_batch=True)
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=8, strategy=strategy)
    found = place(problem, "greedy")
    each = [place(with_size(problem, size), "greedy") for size in open_sizes(problem)]
    assert found.estimate.step_time_s == min(one.estimate.step_time_s for one in each)
    assert found.plan.job == found.problem.job
    assert [entry.size for entry in found.tried_sizes] == open_sizes(problem)


@pytest.mark.parametrize("planner", ["annealing", "exact"])
def test_sizes_of_micro_batches_share_a_budget_of_evaluations(planner: str) -> None:
    """Also those of the exact solver, whose transitions no budget of evaluations binds."""
    problem = load_problem("gpt2", "a100-v100", global_batch_size=8)
    budget = Budget(evaluations=400)
    found = place(problem, planner, budget=budget)
    assert all(entry.why != NO_BUDGET for entry in found.tried_sizes)
    if planner == "annealing":
        assert found.evaluations <= 400


@pytest.mark.slow
def test_with_few_evaluations_auto_begins_with_the_size_that_simple_placements_promise() -> None:
    problem = load_problem("llama-7b", "a100-v100-t4", global_batch_size=32)
    found = place(problem, "auto", budget=Budget(evaluations=1000))
    tried = {entry.size: entry for entry in found.tried_sizes}
    assert tried[1].promised < tried[4].promised
    assert tried[1].bound > tried[4].bound
    assert found.plan.job.micro_batch_size == 1
    simple = place(problem, "greedy", budget=Budget(evaluations=1000))
    assert found.estimate.step_time_s < 1.01 * simple.estimate.step_time_s


def test_the_policy_moves_plans_without_options_too_where_they_may_be_better() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", micro_batch_size=4)
    planner = PolicyPlanner()
    (plan,) = planner._without_options(problem.plain, Budget(), math.inf)
    assert {stage.degree for stage in plan.stages} == {1}
    step_time_s = place(problem, planner).estimate.step_time_s
    assert step_time_s <= simulated_step_time_s(problem, plan)
    assert planner._without_options(problem.plain, Budget(), step_time_s / 100) == []


@pytest.mark.slow
def test_a_limit_in_time_is_for_all_sizes_and_the_best_is_improved() -> None:
    # Of so many devices nothing is proven, which would end it.
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=16, strategy=OPEN)
    budget = Budget(cpu_seconds=2)
    result = place(problem, "auto", budget=budget)
    assert budget.time_share > 1 - one_size.PROOF_PART
    assert result.plan.planner == "auto"
    found = [entry.found for entry in result.tried_sizes if entry.found is not None]
    assert min(found) == pytest.approx(result.estimate.step_time_s)
    assert all(not entry.why for entry in result.tried_sizes if entry.found is not None)


@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_what_no_plan_can_exceed_is_true_of_every_size(objective: Objective) -> None:
    """Sizes of micro-batches differ in what they reach: one of them reaches 210 samples/s."""
    problem = load_problem(
        "gpt2", "a100-v100", strategy=OPEN, objective=objective,
        min_throughput_samples_per_s=1e6,
    )  # fmt: skip
    most = [
        problem.job.global_batch_size / plans_bound_s(with_size(problem, size))
        for size in open_sizes(problem)
    ]
    assert max(most) > 1.2 * most[0]
    with pytest.raises(InfeasibleError, match=f"can exceed {max(most):.4g} samples/s"):
        place(problem, "greedy")
    with pytest.raises(InfeasibleError, match=f"can exceed {max(most):.4g} samples/s"):
        frontier(problem)


def test_what_a_bound_takes_is_not_the_planners_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of planners show their own seconds, and a bound of all plans takes more."""
    problem = load_problem("gpt2", "a100-v100", strategy=OPEN)
    budget, used_s = Budget(), list[float]()

    def bound(*asked: object) -> Bound:
        used_s.append(budget.cpu_seconds_used)
        return Bound()

    monkeypatch.setattr(one_size, "executable_bound", bound)
    result = place(problem, "even", budget=budget)
    assert len(used_s) == 1
    assert 0 < result.planning_cpu_s <= used_s[0]


@pytest.mark.parametrize("inputs", [5, [5]])
def test_inputs_that_are_no_texts_are_refused_in_words(inputs: object) -> None:
    with pytest.raises(HeterpsError, match="inputs: is of type int; allowed: texts such as x="):
        load_problem("gpt2", "a100-v100", inputs=inputs)  # type: ignore[arg-type]
