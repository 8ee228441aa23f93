"""Migration: any plan to any plan is like loading a checkpoint, and what stays does not move."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.state.layout import HeldState, state_bytes
from heterps_runtime.state.migrate import held_by
from heterps_runtime.tensor_parallel.regions import copy_common
from tests.runtime.group_plans import group_plans
from tests.runtime.local_states import (
    assert_equal,
    loaded,
    losses_from,
    migrated,
    save,
    specification_of,
    trained,
)
from tests.runtime.random_plans import plans
from tests.runtime.small_runs import DEVICES, chain_of, plan_of, problem_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:batch normalisation"),
]


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_migration_is_like_loading_a_checkpoint_under_the_new_plan(data: st.DataObject) -> None:
    problem = problem_of(data.draw(st.sampled_from(["sequential", "dropping"])))
    _check_move(problem, data.draw(plans(problem)), data.draw(plans(problem)))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "resnet"])
@given(data=st.data())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_migration_of_tied_weights_and_running_statistics(model: str, data: st.DataObject) -> None:
    problem = problem_of(model)
    plan, other = data.draw(plans(problem)), data.draw(plans(problem))
    # Replicas have running statistics of their own, which those that stay keep.
    _check_move(problem, plan, other, with_statistics=model != "resnet")


def _check_move(problem: Problem, old: Plan, new: Plan, *, with_statistics: bool = True) -> None:
    """From a plan to another one, beside a checkpoint loaded under that."""
    run = trained(problem, old, 2, DEVICES)
    specification = specification_of(problem, new, DEVICES)
    before = {device: held_by(owned) for device, owned in run.owned.items()}
    with tempfile.TemporaryDirectory() as folder:
        expected = loaded(specification, save(run, Path(folder), 2))
    moved = migrated(run.owned, specification)
    owned = {device: entry.owned for device, entry in moved.items()}
    assert_equal(owned, expected, with_statistics=with_statistics)
    assert losses_from(owned, specification, 2) == losses_from(expected, specification, 2)
    for device, entry in moved.items():
        assert entry.migration.bytes_received == _num_missing(held_by(entry.owned), before[device])


def _num_missing(found: HeldState, before: HeldState) -> int:
    """Bytes of a state that were not in another one."""
    count = 0
    for name, tensors in found.tensors.items():
        for key, tensor in tensors.items():
            is_new = torch.ones(tensor.shape, dtype=torch.bool)
            if key in before.tensors.get(name, {}):
                known = torch.zeros(before.tensors[name][key].shape, dtype=torch.bool)
                copy_common(known, before.place(name, key), is_new, found.place(name, key))
            count += int(is_new.sum()) * tensor.itemsize
    return count


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_groups_and_shared_state_move_as_a_checkpoint_is_loaded(data: st.DataObject) -> None:
    problem = problem_of("llama", global_batch_size=8)
    old = data.draw(group_plans(problem))
    new = data.draw(st.one_of(group_plans(problem), plans(problem)))
    _check_move(problem, *data.draw(st.permutations([old, new])))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_that_stay_move_no_bytes(dtype: str) -> None:
    problem = problem_of("gpt2", dtype=dtype)
    run = trained(problem, chain_of(problem, 2, 4), 1, DEVICES)
    # A stage more of what d1 has, for d3: only that one gets anything.
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0"), "b": (2, 3, "d1"), "b2": (2, 3, "d3"), "c": (4, -1, "d2")},
        {("a", "b", "c"): (0, 1), ("a", "b2", "c"): (2, 3)},
    )
    moved = migrated(run.owned, specification_of(problem, plan, DEVICES))
    received = {device: entry.migration.bytes_received for device, entry in moved.items()}
    assert received == {
        "d0": 0,
        "d1": 0,
        "d2": 0,
        "d3": state_bytes(held_by(run.owned["d1"]).tensors),
    }
    for device in ("d0", "d1", "d2"):
        before = {name: p.data_ptr() for name, p in run.owned[device].parameters.items()}
        after = {name: p.data_ptr() for name, p in moved[device].owned.parameters.items()}
        assert after == before
