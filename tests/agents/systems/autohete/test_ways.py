"""What a stage holds by the method's own count: why it is not the count of other planners."""

from __future__ import annotations

from itertools import cycle
from typing import NamedTuple

import numpy as np
import pytest

from heterps.planning.problems import load_problem
from heterps_agents.systems.autohete.ways import WAYS_OF_PLANS, Part, stage_ways
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.held_bytes import held_bytes
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import state_parts
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import estimate

NUM_STAGES = 2
# Kept, computed again and offloaded, in turns; or one of them alone.
MIXTURES = ((0,), (1,), (2,), (0, 1, 2), (1, 2, 2))


class Counted(NamedTuple):
    """Bytes of one stage."""

    own: float
    of_planners: float
    simulated: float


def counted(problem: Problem, mixture: tuple[int, ...]) -> list[Counted]:
    """Both counts of two stages, one after the other, and what the simulator says."""
    number, half = problem.profile.num_layers, problem.profile.num_layers // 2
    devices, found = problem.cluster.devices[:NUM_STAGES], []
    plan = _plan(problem, mixture)
    shown, parts = estimate(problem, plan), state_parts(plan)
    for place, (layers, device) in enumerate(
        zip((range(half), range(half, number)), devices, strict=True)
    ):
        part = Part(
            layers, problem.class_of[device.name], NUM_STAGES - 1 - place, NUM_STAGES,
            micro_batches=problem.job.num_micro_batches,
        )  # fmt: skip
        ways, usable = stage_ways(problem, part, WAYS_OF_PLANS), problem.usable_bytes(device.name)
        chosen = np.array([way for way, _ in zip(cycle(mixture), layers, strict=False)])
        held = held_bytes(problem, plan.stages[place], part.kind, parts)
        of_planners = held.state_bytes.sum() + part.held(problem) * held.kept_bytes
        found.append(
            Counted(
                ways.layers.bytes_of(chosen) + usable - ways.room_bytes,
                float(of_planners) + usable - held.room_bytes,
                shown.memory_bytes[device.name],
            )
        )
    return found


def _plan(problem: Problem, mixture: tuple[int, ...]) -> Plan:
    number, half = problem.profile.num_layers, problem.profile.num_layers // 2
    stages = []
    for place, layers in enumerate((range(half), range(half, number))):
        done = dict(zip(layers, cycle(mixture), strict=False))
        stages.append(
            Stage(
                name=f"s{place}",
                first_layer=layers[0],
                last_layer=layers[-1],
                devices=(problem.cluster.devices[place].name,),
                recompute_layers=tuple(each for each in layers if done[each] == 1),
                offloaded_layers=tuple(each for each in layers if done[each] == 2),
            )
        )
    micro_batches = tuple(range(problem.job.num_micro_batches))
    pipelines = (Pipeline(stages=("s0", "s1"), micro_batches=micro_batches),)
    return plan_of(problem, tuple(stages), pipelines, planner="autohete", seed=0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_own_count_is_never_too_low_and_nearer_than_that_of_planners(schedule: str) -> None:
    found = [
        each
        for model in ("gpt2", "llama-7b", "resnet-152")
        for size in (1, 8)
        for mixture in MIXTURES
        for each in counted(
            load_problem(
                model, "h100-pod",
                global_batch_size=64, micro_batch_size=size, schedule=schedule,
            ),
            mixture,
        )
    ]  # fmt: skip
    assert all(each.own >= each.simulated - 1 for each in found)
    own, of_planners = (
        np.mean([getattr(each, name) / each.simulated - 1 for each in found])
        for name in ("own", "of_planners")
    )
    assert own < of_planners
