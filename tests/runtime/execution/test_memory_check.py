"""Measured memory: exact by kind, and limits of emulated devices are kept."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heterps_configs.units import bytes_text
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.memory_check import measure_memory, peak_bytes
from heterps_runtime.process.memory_report import MemoryByKind, OutOfMemoryError, check_limits
from heterps_runtime.run.verify import max_difference, reference_losses
from tests.runtime.small_runs import chain_of, plan_of, problem_of

FLOAT = 4
SAMPLES = 4  # of one micro-batch


def _without_workspace(memory: MemoryByKind) -> int:
    return int(sum(memory.model_dump().values())) - memory.workspace


def test_every_kind_is_exact_for_a_chain_of_linear_layers() -> None:
    # Layers: Linear 8-24, Tanh, Linear 24-16, Tanh, Linear 16-32, Tanh, Linear 32-4, Tanh.
    problem = problem_of("sequential", schedule="gpipe")
    reports = peak_bytes(problem.profile, chain_of(problem, 4), problem.cluster)
    first, second = reports["d0"].largest, reports["d1"].largest
    parameters = 8 * 24 + 24 + 24 * 16 + 16
    assert first.parameters == FLOAT * parameters
    # AdamW: two moments, and a step counter for each of four parameters.
    assert first.optimizer == FLOAT * (2 * parameters + 4)
    # Kept of a sample: both activations of Tanh; what enters the first layer is an input.
    assert first.activations == FLOAT * 4 * SAMPLES * (24 + 16)
    # Eight numbers, and the index of the right class.
    assert first.inputs == 16 * (FLOAT * 8 + 8)
    # Gradients of four micro-batches are asked for ahead.
    assert first.messages == FLOAT * 4 * SAMPLES * 16
    assert second.parameters == FLOAT * (16 * 32 + 32 + 32 * 4 + 4)
    assert first.gradients == first.parameters
    assert (
        reports["d0"].peak_bytes
        == _without_workspace(reports["d0"].at_peak)
        < _without_workspace(first)
    )


def test_memory_does_not_grow_from_step_to_step_and_ends_as_it_began() -> None:
    problem = problem_of("gpt2")
    run = LocalRun.of(problem, chain_of(problem, 2, 3))
    run.step()
    first, second = run.measured_step(), run.measured_step()
    for device, step in first.items():
        assert step.report() == second[device].report()
        left = step.ledger.actions[-1].after
        assert left.gradients == 0
        assert left.activations <= FLOAT * 4  # the losses


def test_activations_of_a_stage_rise_by_the_same_for_each_micro_batch_in_flight() -> None:
    problem = problem_of("llama", schedule="gpipe")
    measured = measure_memory(problem.profile, chain_of(problem, 3), problem.cluster)
    _, actions = measured["d0"]
    held = [0, *(a.after.activations for a in actions if a.kind == "forward")]
    kept = {after - before for before, after in pairwise(held)}
    assert len(kept) == 1


@pytest.mark.parametrize("overlaps_reduce", [True, False])
def test_replicas_hold_a_copy_of_small_gradients_when_their_all_reduce_begins(
    overlaps_reduce: bool,
) -> None:
    problem = problem_of("sequential")
    plan = plan_of(
        problem,
        {"a": (0, 3, "d0"), "b0": (4, -1, "d1"), "b1": (4, -1, "d2")},
        {("a", "b0"): (0, 2), ("a", "b1"): (1, 3)},
    )
    job = problem.job.changed(overlaps_reduce=overlaps_reduce)
    plan = plan.changed(job=job)
    report, actions = measure_memory(problem.profile, plan, problem.cluster)["d1"]
    reduce = next(action for action in actions if action.kind == "reduce")
    # Beside the passes, the copy is made within the last one.
    copied = report.largest if overlaps_reduce else reduce.peak
    assert copied.messages >= reduce.after.gradients > 0
    assert (reduce.peak.messages >= reduce.peak.gradients) == (not overlaps_reduce)
    # One gradient is still on its way to the first stage.
    assert reduce.after.messages == FLOAT * SAMPLES * 32
    # Beside the gradients, a flag for each of four parameters.
    assert reduce.after.gradients == reduce.after.parameters + 4 * FLOAT


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "ctr", "sequential"])
def test_local_run_trains_like_one_process(model: str) -> None:
    problem = problem_of(model, global_batch_size=14)
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, 2, "d2"), "d": (3, -1, "d0")},
        {("a", "b"): (0, 3), ("c", "d"): (1, 2)},
    )
    run = LocalRun.of(problem, plan)
    losses = [run.step(), run.step()]
    reference = reference_losses(run.specification.changed(num_steps=2))
    assert max_difference(losses, reference) < 1e-5


def test_limit_that_is_just_kept_is_kept_and_one_byte_less_is_not() -> None:
    problem = problem_of("sequential")
    plan = chain_of(problem, 3, 5)
    found = peak_bytes(problem.profile, plan, problem.cluster)
    limits = {device: report.peak_bytes for device, report in found.items()}
    reports = list(found.values())
    check_limits(reports, limits)
    limits["d1"] -= 1
    with pytest.raises(OutOfMemoryError, match=r"^d1 is out of memory in .* 's1'.*: needs") as info:
        check_limits(reports, limits)
    assert str(info.value).endswith(f"1 B more than the {bytes_text(limits['d1'])} allowed")
    assert (info.value.device, info.value.rank) == ("d1", 1)
