"""Runs in one process: all kinds of models under all schedules, recompute, lists that are wrong."""

from __future__ import annotations

import pytest

from heterps_configs.documents.job import Schedule
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Action
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.memory_check import peak_bytes
from heterps_runtime.stages.deferred_gradients import DeferredGradients
from tests.runtime.parity_checks import check_parity, problem_with
from tests.runtime.small_runs import chain_of, plan_of

SIZES = (4, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        *((model, "zero-bubble") for model in ("llama", "gpt2", "bert", "resnet", "ctr")),
        *((model, "gpipe") for model in ("llama", "resnet")),
        *((model, "1f1b") for model in ("gpt2", "ctr")),
        *((model, "interleaved") for model in ("bert", "gpt2")),
    ],
)
def test_every_kind_of_model_under_every_schedule(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    last = problem.profile.num_layers - 1
    plan = plan_of(
        problem,
        {
            "a": (0, 1, "d0"), "b": (2, 2, "d1"), "c": (3, 3, "d0"), "d": (4, last, "d1"),
            "e": (0, 2, "d2"), "f": (3, last, "d3"),
        },
        {("a", "b", "c", "d"): (0, 2), ("e", "f"): (1,)},
    )  # fmt: skip
    run = check_parity(problem, plan)
    kinds = {action.kind for action in run.specification.actions["d0"]}
    assert ("backward-weight" in kinds) == (schedule == "zero-bubble")


def test_zero_bubble_puts_off_the_weights_of_linear_layers() -> None:
    problem = problem_with("sequential", "zero-bubble", (4, 4))
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        ("llama", "1f1b"), ("gpt2", "zero-bubble"), ("resnet", "1f1b"), ("resnet", "zero-bubble"),
        ("ctr", "1f1b"), ("in_place", "1f1b"), ("in_place", "zero-bubble"),
    ],
)  # fmt: skip
def test_recomputed_layers_change_nothing_but_memory(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    plan = chain_of(problem, 2)
    again = plan.changed(
        stages=tuple(stage.changed(recompute_layers=tuple(stage.layers)) for stage in plan.stages)
    )
    check_parity(problem, again)
    if model not in ("in_place", "ctr"):
        kept, dropped = (
            peak_bytes(problem.profile, p, problem.cluster)["d0"].largest.activations
            for p in (plan, again)
        )
        assert dropped < kept


@pytest.mark.parametrize("model", ["sequential", "gpt2"])
def test_more_micro_batches_in_flight_change_nothing_but_memory(model: str) -> None:
    problem = problem_with(model, "1f1b", SIZES)
    plan = chain_of(problem, 2)
    front, *behind = plan.stages
    more = plan.changed(stages=(front.changed(in_flight=3), *behind))
    check_parity(problem, more)
    few, many = (
        peak_bytes(problem.profile, p, problem.cluster)["d0"].largest.activations
        for p in (plan.changed(stages=(front.changed(in_flight=1), *behind)), more)
    )
    assert few < many


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"), [("llama", "1f1b"), ("gpt2", "zero-bubble"), ("resnet", "1f1b")]
)
def test_offloaded_layers_change_nothing_but_memory(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    types = problem.cluster.device_types
    linked = tuple(kind.changed(host_bandwidth_bytes_per_s=1e9) for kind in types)
    cluster = problem.cluster.changed(device_types=linked)
    problem = Problem(profile=problem.profile, cluster=cluster, job=problem.job)
    plan = chain_of(problem, 2)
    away = plan.changed(
        stages=tuple(stage.changed(offloaded_layers=tuple(stage.layers)) for stage in plan.stages)
    )
    check_parity(problem, away)
    kept, offloaded = (
        peak_bytes(problem.profile, p, cluster)["d0"].largest.activations for p in (plan, away)
    )
    assert offloaded < kept


def test_lists_that_wait_for_one_another_are_a_defect() -> None:
    problem = problem_with("sequential", "gpipe", (4, 4))
    run = LocalRun.of(problem, chain_of(problem, 4))
    actions = run.specification.actions
    without_sends = {
        device: tuple(a for a in own if not _is_send(a)) for device, own in actions.items()
    }
    broken = LocalRun(run.specification.changed(actions=without_sends))
    with pytest.raises(AssertionError, match="wait for one another"):
        broken.step()


def _is_send(action: Action) -> bool:
    return action.kind == "send"
