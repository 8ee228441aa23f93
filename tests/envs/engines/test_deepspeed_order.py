"""DeepSpeed's order: late messages, gradients before activations, and no more than 1F1B holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.engines.deepspeed_order import deepspeed_order
from heterps_envs.schedule.actions import Action
from tests.envs.small_problems import chain_problem, plan_of


def plan_with(num_stages: int, num_micro_batches: int, replicas: int = 1) -> Plan:
    """Every layer is a stage; replica r of stage s stands on device d0-(r S + s)."""
    problem = chain_problem(
        [1.0] * num_stages,
        [2.0] * num_stages,
        num_micro_batches=num_micro_batches,
        counts=(num_stages * replicas,),
    )
    single = num_stages * replicas == 1
    names = {(r, s): f"s{s}-r{r}" for r in range(replicas) for s in range(num_stages)}
    return plan_of(
        problem,
        {
            name: (s, s, "d0" if single else f"d0-{r * num_stages + s}")
            for (r, s), name in names.items()
        },
        {
            tuple(names[r, s] for s in range(num_stages)): range(r, num_micro_batches, replicas)
            for r in range(replicas)
        },
    )


def described(action: Action) -> str:
    """Such as `send forward 1`."""
    return " ".join(filter(None, (action.kind, action.direction, str(action.micro_batch))))


def test_a_stage_sends_activations_only_after_it_received_gradients() -> None:
    front, behind = (
        [described(action) for action in actions]
        for actions in deepspeed_order(plan_with(2, 2)).values()
    )
    assert front == [
        "forward 0",
        "send forward 0",
        "forward 1",
        "receive backward 0",
        "send forward 1",
        "backward 0",
        "receive backward 1",
        "backward 1",
    ]
    assert behind == [
        "receive forward 0",
        "forward 0",
        "backward 0",
        "send backward 0",
        "receive forward 1",
        "forward 1",
        "backward 1",
        "send backward 1",
    ]


def test_a_single_stage_takes_its_micro_batches_in_turn() -> None:
    (actions,) = deepspeed_order(plan_with(1, 2)).values()
    assert [described(action) for action in actions] == [
        "forward 0",
        "backward 0",
        "forward 1",
        "backward 1",
    ]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 2))
def test_every_pass_runs_once_and_few_are_in_flight(
    num_stages: int, per_replica: int, replicas: int
) -> None:
    plan = plan_with(num_stages, per_replica * replicas, replicas)
    lists = deepspeed_order(plan)
    assert set(lists) == set(plan.devices)
    for pipeline in plan.pipelines:
        for index, name in enumerate(pipeline.stages):
            actions = lists[plan.stage(name).devices[0]]
            passes = Counter(
                (a.kind, a.micro_batch) for a in actions if a.kind in ("forward", "backward")
            )
            expected = [(k, m) for k in ("forward", "backward") for m in pipeline.micro_batches]
            assert passes == Counter(expected)
            held = most = 0
            for action in actions:
                held += (action.kind == "forward") - (action.kind == "backward")
                most = max(most, held)
            assert most == min(num_stages - index, per_replica)


@given(st.integers(2, 6), st.integers(1, 9))
def test_neighbours_send_and_receive_in_the_same_order(num_stages: int, count: int) -> None:
    plan = plan_with(num_stages, count)
    lists = deepspeed_order(plan)
    for front, behind in pairwise(plan.devices):
        for source, destination, direction in (
            (front, behind, "forward"),
            (behind, front, "backward"),
        ):
            sent = [
                a.micro_batch
                for a in lists[source]
                if (a.kind, a.peer, a.direction) == ("send", destination, direction)
            ]
            received = [
                a.micro_batch
                for a in lists[destination]
                if (a.kind, a.peer, a.direction) == ("receive", source, direction)
            ]
            assert sent == received == list(range(count))
