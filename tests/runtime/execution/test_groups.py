"""Plans with tensor-parallel groups, in one process: the training is that of one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.hap.system import Hap
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.run.verify import reference_training
from heterps_runtime.specification.build import why_not_run
from tests.runtime.group_plans import grouped, keeping
from tests.runtime.parity_checks import check_parity, problem_with
from tests.runtime.small_runs import DEVICES

SIZES = (4, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [("llama", "gpipe"), ("bert", "1f1b"), ("llama", "interleaved"), ("gpt2", "zero-bubble")],
)
def test_two_groups_in_a_chain(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    check_parity(problem, grouped(problem, {"a": DEVICES[:2], "b": DEVICES[2:]}))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "bert"])
@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ({"a": "0", "b": "123"}, (0.5, 0.25, 0.25)),
        ({"a": "01", "b": "2"}, (0.25, 0.75)),
        ({"a": "0123"}, ()),
    ],
)
def test_unlike_groups_with_uneven_shares(
    model: str, groups: dict[str, str], shares: Sequence[float]
) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    named = {name: [f"d{number}" for number in own] for name, own in groups.items()}
    plan = grouped(problem, named, shares)
    check_parity(problem, plan)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ({"a": "0", "b": "123"}, (0.5, 0.25, 0.25)),
        ({"a": "01", "b": "23"}, (0.25, 0.75)),
        ({"a": "01", "b": "2"}, (0.25, 0.75)),
    ],
)
def test_replicas_in_unlike_groups(
    model: str, groups: dict[str, str], shares: Sequence[float]
) -> None:
    """Of uneven groups of two, one has its shares the other way round."""
    problem = problem_with(model, "1f1b", SIZES)
    named = {name: [f"d{number}" for number in own] for name, own in groups.items()}
    plan = grouped(problem, named, shares, are_replicas=True)
    first, *others = plan.stages
    turned = first.changed(tensor_shares=first.tensor_shares[::-1])
    check_parity(problem, plan.changed(stages=(turned, *others)))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "bert"])
@pytest.mark.parametrize("are_replicas", [True, False])
def test_unlike_groups_train_as_one_process_to_the_last_digits(
    model: str, are_replicas: bool
) -> None:
    """In float64, with the first and the last layer tied: table and output layer in both groups."""
    problem = problem_with(model, "1f1b", SIZES)
    groups = {"a": ["d0"], "b": ["d1", "d2", "d3"]}
    plan = grouped(problem, groups, (0.5, 0.25, 0.25), are_replicas=are_replicas)
    check_float64_parity(problem, plan)


def check_float64_parity(problem: Problem, plan: Plan) -> None:
    """Losses and parameters of two steps are those of one process: of the second, they are new."""
    job = plan.job.model_copy(update={"dtype": "float64"})  # no format of jobs
    specification = LocalRun.of(problem, plan).specification.changed(plan=plan.changed(job=job))
    losses, whole = reference_training(specification.changed(num_steps=2))
    run = LocalRun(specification)
    assert [run.step() for _ in range(2)] == pytest.approx(losses, rel=0, abs=1e-12)
    expected = whole.parameters_by_name()
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            own = owned.slices.get(name)
            part = expected[name] if own is None else own.of(expected[name])
            torch.testing.assert_close(parameter, part, rtol=0, atol=1e-12, msg=name)


@pytest.mark.slow
def test_replicas_of_which_one_keeps_a_layer_whole_train_as_one_process_to_the_last_digits() -> (
    None
):
    """In float64: the other group splits that layer."""
    problem, groups = problem_with("gpt2", "1f1b", SIZES), {"a": ["d0", "d1"], "b": ["d2", "d3"]}
    plan = grouped(problem, groups, (0.25, 0.75), are_replicas=True)
    first, *others = plan.stages
    kept = first.changed(whole_layers=(1,))
    check_float64_parity(problem, plan.changed(stages=(kept, *others)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "chosen"), [("llama", "all"), ("ctr", "all"), ("gpt2", "some, recompute")]
)
def test_groups_that_split_samples_train_as_one_process_to_the_last_digits(
    model: str, chosen: str
) -> None:
    """In float64; of the last micro-batch, one sample, each of two ranks computes all."""
    problem = problem_with(model, "1f1b", (4, 3, 1))
    count = problem.profile.num_layers
    # What tables return is put together by the model's own code, and so are parts of the ends.
    inner = range(27 if model == "ctr" else 1, count - 1)
    plan = grouped(problem, {"a": DEVICES[:2], "b": DEVICES[2:]}, (0.75, 0.25))
    if chosen == "all":
        plan = keeping(plan, [], inner)
    else:
        # gpt2's first and last layer are tied: both are whole, or none.
        plan = keeping(plan, [0, count - 1], inner[::2])
        stages = (s.changed(recompute_layers=tuple(s.layers)) for s in plan.stages)
        plan = plan.changed(stages=tuple(stages))
    check_float64_parity(problem, plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule", "reason"),
    [
        ("resnet", "1f1b", "it normalises over the samples of a batch"),
        ("llama", "zero-bubble", "zero-bubble puts off weight gradients"),
    ],
)
def test_layers_that_cannot_be_split_by_batch_are_refused_in_one_line(
    model: str, schedule: Schedule, reason: str
) -> None:
    problem = problem_with(model, schedule, SIZES)
    plan = keeping(grouped(problem, {"a": DEVICES[:2]}), [], [1])
    refusal = why_not_run(problem, plan)
    assert refusal is not None
    assert reason in refusal
    assert refusal.endswith("take it out of the batch_layers of stage 'a'")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [4, 8])
def test_what_hap_finds_runs(batch: int) -> None:
    """One micro-batch: slices of unlike devices; two: replicas of unlike devices, or slices."""
    problem = problem_with("llama", "1f1b", (4,) * (batch // 4))
    (node,) = problem.cluster.nodes
    fast = node.changed(link=Link(latency_s=0, bandwidth_bytes_per_s=1e12))
    problem = replace(problem, cluster=problem.cluster.changed(nodes=(fast,)))
    plan = Hap().plan(problem, Budget())
    assert len(plan.devices) > 1
    check_parity(problem, plan)


@pytest.mark.parametrize("model", ["gpt2", "sequential"])
def test_replicas_of_groups(model: str) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    groups = {"a": DEVICES[:2], "b": DEVICES[2:]}
    check_parity(problem, grouped(problem, groups, (0.25, 0.75), are_replicas=True))
