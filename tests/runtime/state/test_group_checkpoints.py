"""A checkpoint is bit for bit the same under whatever groups, shares, replicas and shared state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.cluster import DeviceGroup
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import not_run_yet
from heterps_runtime.state.checkpoint import TrainingState, load_state_dict
from tests.runtime.local_states import loaded, save, save_stages, specification_of, trained
from tests.runtime.small_runs import chain_of, problem_of

MOST_DEVICES, MOST_DEGREE, MOST_STAGES = 8, 4, 3
# Pairs of plans for each model, one written under, the other read under; 22 together.
NUM_PAIRS = {"llama": 11, "gpt2": 7, "resnet": 4}


def _problem(model: str) -> Problem:
    """Equal devices on one node."""
    problem = problem_of(model, global_batch_size=4, micro_batch_size=2)
    cluster = problem.cluster
    (node,), kind = cluster.nodes, cluster.device_types[0]
    devices = tuple(DeviceGroup(name=f"d{i}", type=kind.name) for i in range(MOST_DEVICES))
    node = node.changed(devices=devices)
    return Problem(
        profile=problem.profile,
        cluster=cluster.changed(device_types=(kind,), nodes=(node,)),
        job=problem.job,
    )


def _shares(draw: random.Random) -> tuple[float, ...]:
    """Of a group's devices: even or not."""
    degree = draw.randint(1, MOST_DEGREE)
    parts = [draw.choice((1, 1, 2, 5)) for _ in range(degree)]
    return tuple(part / sum(parts) for part in parts)


def _drawn(problem: Problem, draw: random.Random) -> Plan:
    """Any plan that is within the devices and can be run."""
    num_layers, num_replicas = problem.profile.num_layers, draw.randint(1, 2)
    is_whole = draw.random() < 1 / 3
    stages: list[Stage] = []
    routes: list[list[str]] = []
    taken, one = 0, _shares(draw)
    whole = {layer for layer in range(num_layers) if is_whole and draw.random() < 0.5}
    has_statistics = any(layer.buffer_bytes for layer in problem.profile.layers)
    unsplit = "whole_layers" if has_statistics or len(whole) % 2 else "batch_layers"
    if unsplit == "batch_layers":  # the ends are several modules with the model's own code between
        whole -= {0, num_layers - 1}
    for replica in range(num_replicas):
        cuts = sorted(draw.sample(range(1, num_layers), draw.randint(0, MOST_STAGES - 1)))
        routes.append([])
        for first, stop in pairwise([0, *cuts, num_layers]):
            # Replicas that share state must be in like groups.
            shares = one if draw.random() < 0.5 else _shares(draw)
            name, devices = f"r{replica}s{first}", range(taken, taken + len(shares))
            taken += len(shares)
            routes[-1].append(name)
            stages.append(
                Stage(
                    name=name,
                    first_layer=first,
                    last_layer=stop - 1,
                    devices=tuple(f"d{i}" for i in devices),
                    tensor_shares=shares,
                    **{unsplit: tuple(whole & {*range(first, stop)} if len(shares) > 1 else ())},
                )
            )
    if taken > MOST_DEVICES:
        return _drawn(problem, draw)
    plan = chain_of(problem).changed(
        stages=tuple(stages),
        pipelines=tuple(
            Pipeline(stages=tuple(route), micro_batches=(0, 1) if num_replicas == 1 else (i,))
            for i, route in enumerate(routes)
        ),
        sharded_state=tuple(_sharded(num_layers, draw)),
    )
    return plan if not_run_yet(problem.profile, plan) is None else _drawn(problem, draw)


def _sharded(num_layers: int, draw: random.Random) -> Iterator[LayerRange]:
    """Some layers, all, or none."""
    first, last = sorted(draw.choices(range(num_layers), k=2))
    match draw.randint(0, 2):
        case 0:
            yield LayerRange(first_layer=0, last_layer=num_layers - 1)
        case 1:
            yield LayerRange(first_layer=first, last_layer=last)


def _plans(problem: Problem) -> list[Plan]:
    model = problem.profile.name
    draw = random.Random(model)
    return [_drawn(problem, draw) for _ in range(NUM_PAIRS[model] + 1)]


def _assert_same(found: TrainingState, expected: TrainingState, plan: Plan) -> None:
    assert found.model.keys() == expected.model.keys()
    assert found.optimizer.keys() == expected.optimizer.keys()
    for name, tensor in expected.model.items():
        assert torch.equal(found.model[name], tensor), (name, plan)
    for name, state in expected.optimizer.items():
        assert found.optimizer[name].keys() == state.keys()
        for key, tensor in state.items():
            assert torch.equal(found.optimizer[name][key], tensor), (name, key, plan)


def _kinds(plans: Sequence[Plan]) -> set[str]:
    """What is among some plans."""
    found = {f"degree {stage.degree}" for plan in plans for stage in plan.stages}
    if any(stage.uneven_shares for plan in plans for stage in plan.stages):
        found.add("uneven")
    if any(stage.whole_layers for plan in plans for stage in plan.stages):
        found.add("layers whole")
    if any(stage.batch_layers for plan in plans for stage in plan.stages):
        found.add("layers by batch")
    found.update(f"{len(plan.pipelines)} pipelines" for plan in plans)
    if any(plan.sharded_state and len(plan.pipelines) > 1 for plan in plans):
        found.add("shared state")
    return found


def test_all_that_plans_may_be_is_among_them() -> None:
    plans = [plan for model in NUM_PAIRS for plan in _plans(_problem(model))]
    degrees = {f"degree {d}" for d in range(1, 5)}
    assert _kinds(plans) >= {*degrees, "uneven", "layers whole", "layers by batch", "shared state"}


@pytest.mark.slow
@pytest.mark.parametrize("model", NUM_PAIRS)
def test_what_one_plan_writes_every_other_reads_and_writes_again(
    model: str, tmp_path: Path
) -> None:
    problem = _problem(model)
    first, *others = _plans(problem)
    run = trained(problem, first, steps=1)
    path = save(run, tmp_path / "0", 1)
    expected = load_state_dict(path)
    for number, plan in enumerate(others, 1):
        specification = specification_of(problem, plan)
        stages = loaded(specification, path)
        path = save_stages(stages, specification, tmp_path / str(number), 1)
        _assert_same(load_state_dict(path), expected, plan)
