"""Random plans, all schedules, one process: what is learned does not depend on the plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_configs.job import Schedule
from heterps_configs.plan import Plan
from heterps_envs.actions import Action
from heterps_envs.problem import Problem
from heterps_runtime.deferred_gradients import DeferredGradients
from heterps_runtime.local_run import LocalRun
from heterps_runtime.memory_check import peak_bytes
from heterps_runtime.verify import max_difference, reference_training
from tests.runtime.small_runs import DEVICES, chain_of, plan_of, problem_of

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
STEPS = 2
# Fewest samples first, so that a failing plan shrinks to a small one.
BATCHES = (8, 10, 15, 22)


@cache
def _problem(model: str, schedule: Schedule, batch: int) -> Problem:
    # Plain SGD: AdamW turns the rounding of a small gradient into a step of the usual length.
    return problem_of(model, schedule=schedule, global_batch_size=batch, optimizer="sgd")


@cache
def _reference(model: str, batch: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    run = LocalRun.of(_problem(model, "gpipe", batch), chain_of(_problem(model, "gpipe", batch)))
    losses, module = reference_training(run.specification.model_copy(update={"num_steps": STEPS}))
    return losses, {name: p.detach() for name, p in module.parameters_by_name().items()}


def _check(model: str, problem: Problem, plan: Plan) -> LocalRun:
    """Trains under a plan and compares losses and parameters with one process."""
    losses, parameters = _reference(model, problem.job.global_batch_size)
    run = LocalRun.of(problem, plan)
    assert max_difference([run.step() for _ in range(STEPS)], losses) < 1e-5
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            torch.testing.assert_close(parameter.detach(), parameters[name], atol=1e-5, rtol=1e-4)
    return run


@st.composite
def routes(
    draw: st.DrawFn, num_layers: int, num_micro_batches: int
) -> tuple[dict[str, tuple[int, int, str]], dict[tuple[str, ...], Sequence[int]]]:
    """Stages and pipelines: any cuts, any devices, some stages shared between pipelines."""
    stages: dict[str, tuple[int, int, str]] = {}
    pipelines: dict[tuple[str, ...], list[int]] = {}
    devices = draw(st.permutations(DEVICES))[: draw(st.integers(1, 4))]
    num_pipelines = draw(st.integers(1, min(3, num_micro_batches)))
    for _ in range(num_pipelines):
        cuts = draw(st.sets(st.integers(1, num_layers - 1), max_size=4))
        names: list[str] = []
        for first, stop in pairwise([0, *sorted(cuts), num_layers]):
            device = draw(st.sampled_from(devices))
            same = [n for n, (a, b, _) in stages.items() if (a, b) == (first, stop - 1)]
            name = draw(st.sampled_from([*same, f"s{len(stages)}"]))
            stages.setdefault(name, (first, stop - 1, device))
            names.append(name)
        pipelines.setdefault(tuple(names), [])
    shares = list(pipelines.values())
    for micro_batch in range(num_micro_batches):
        index = micro_batch if micro_batch < len(shares) else draw(st.integers(0, len(shares) - 1))
        shares[index].append(micro_batch)
    return stages, {route: tuple(share) for route, share in pipelines.items()}


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_plans_train_like_one_process(schedule: Schedule, data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(BATCHES))
    problem = _problem("sequential", schedule, batch)
    stages, pipelines = data.draw(routes(problem.profile.num_layers, problem.job.num_micro_batches))
    _check("sequential", problem, plan_of(problem, stages, pipelines))


@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "resnet", "ctr"])
def test_every_kind_of_model_under_every_schedule(model: str, schedule: Schedule) -> None:
    problem = _problem(model, schedule, 10)
    last = problem.profile.num_layers - 1
    plan = plan_of(
        problem,
        {
            "a": (0, 1, "d0"), "b": (2, 2, "d1"), "c": (3, 3, "d0"), "d": (4, last, "d1"),
            "e": (0, 2, "d2"), "f": (3, last, "d3"),
        },
        {("a", "b", "c", "d"): (0, 2), ("e", "f"): (1,)},
    )  # fmt: skip
    run = _check(model, problem, plan)
    kinds = {action.kind for action in run.specification.actions["d0"]}
    assert ("backward-weight" in kinds) == (schedule == "zero-bubble")


def test_zero_bubble_puts_off_the_weights_of_linear_layers() -> None:
    problem = _problem("sequential", "zero-bubble", 8)
    run = LocalRun.of(problem, chain_of(problem, 4, 6))
    seen: list[int] = []
    compute = DeferredGradients.compute

    def count(self: DeferredGradients, key: tuple[str, int]) -> None:
        seen.append(len(self._jobs[key]))
        compute(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeferredGradients, "compute", count)
        run.step()
    # Of the four linear layers, each of two micro-batches.
    assert sum(seen) == 8


@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("model", ["llama", "gpt2", "resnet", "ctr", "in_place"])
def test_recomputed_layers_change_nothing_but_memory(model: str, schedule: Schedule) -> None:
    problem = _problem(model, schedule, 10)
    plan = chain_of(problem, 2)
    again = plan.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(update={"recompute_layers": tuple(stage.layers)})
                for stage in plan.stages
            )
        }
    )
    _check(model, problem, again)
    if model not in ("in_place", "ctr"):
        kept, dropped = (
            peak_bytes(problem.profile, p, problem.cluster)["d0"].largest.activations
            for p in (plan, again)
        )
        assert dropped < kept


def test_actions_are_carried_out_in_the_order_of_the_list() -> None:
    problem = _problem("gpt2", "1f1b", 15)
    run = LocalRun.of(problem, chain_of(problem, 2, 3))
    run.step()
    for device, executor in run.executors.items():
        expected = [(a.kind, a.stage, a.micro_batch) for a in run.specification.actions[device]]
        assert [(r.kind, r.stage, r.micro_batch) for r in executor.records] == expected


def test_lists_that_wait_for_one_another_are_a_defect() -> None:
    problem = _problem("sequential", "gpipe", 8)
    run = LocalRun.of(problem, chain_of(problem, 4))
    actions = run.specification.actions
    without_sends = {
        device: tuple(a for a in own if not _is_send(a)) for device, own in actions.items()
    }
    broken = LocalRun(run.specification.model_copy(update={"actions": without_sends}))
    with pytest.raises(AssertionError, match="wait for one another"):
        broken.step()


def _is_send(action: Action) -> bool:
    return action.kind == "send"
