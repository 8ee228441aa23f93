"""The simulator: what hosts add to the seconds of actions, and cores that passes share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_configs.documents.cluster import HostTimes, Link
from heterps_configs.documents.device import Emulation
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulate
from tests.envs.small_problems import chain_problem, one_layer_each, plan_of


def with_host(problem: Problem, host: HostTimes, emulated: bool = False) -> Problem:
    """The same problem on nodes with these host times."""
    cluster = problem.cluster
    types = cluster.device_types
    if emulated:
        emulation = Emulation(host_device_type=types[0].name, slowdown=1.0)
        types = tuple(entry.changed(emulation=emulation) for entry in types)
    fields = {name: getattr(cluster, name) for name in type(cluster).model_fields}
    nodes = tuple(node.changed(host=host) for node in cluster.nodes)
    changed = type(cluster)(**{**fields, "nodes": nodes, "device_types": types})
    return replace(problem, cluster=changed)


def two_alone(problem: Problem) -> Plan:
    """Two pipelines of one stage; the second device is twice as slow."""
    return plan_of(problem, {"a": (0, 0, "d0-0"), "b": (0, 0, "d1-0")}, {("a",): [0], ("b",): [1]})


def test_passes_that_share_cores_slow_each_other_down_while_they_run_together() -> None:
    host = HostTimes(slowdown_together=(1.0, 2.0))
    problem = with_host(
        chain_problem([1.0], [1.0], num_micro_batches=2, speeds=(1.0, 2.0), counts=(2, 2)), host
    )
    # 2 s of work beside 4 s: together at half pace until 4, and then 2 s alone.
    result = simulate(problem, two_alone(problem))
    assert result.step_time_s == pytest.approx(6.0)
    ends = {event.device: event.end_s for event in result.timeline if event.action == "backward"}
    assert ends == pytest.approx({"d0-0": 4.0, "d1-0": 6.0})
    assert any("d0-0, d1-0 share the cores of node" in note for note in result.notes)


@pytest.mark.parametrize(
    ("own", "end_s"), [({"sgd": (1.0, 2.0)}, 11.0), ({"adamw": (1.0, 2.0)}, 9.0), ({}, 9.0)]
)
def test_optimizer_steps_at_one_time_slow_each_other_down_by_a_factor_of_their_own(
    own: dict[Optimizer, tuple[float, ...]], end_s: float
) -> None:
    host = HostTimes(slowdown_together=(1.0, 1.5), optimizer_slowdown_together=own)
    problem = with_host(
        chain_problem([1.0], [1.0], num_micro_batches=2, counts=(2,), optimizer_s=[4.0]), host
    )
    # A step waits for all gradients: both begin theirs at 3 s, after 2 s of work at 1.5.
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (0, 0, "d0-1")}, {("a",): [0], ("b",): [1]})
    result = simulate(problem, plan)
    assert result.step_time_s == pytest.approx(end_s)
    assert f"an optimizer step {2 if 'sgd' in own else 1.5} times" in result.notes[0]


def test_an_optimizer_step_beside_passes_is_disturbed_as_they_are() -> None:
    host = HostTimes(slowdown_together=(1.0, 1.5), optimizer_slowdown_together={"sgd": (1.0, 3.0)})
    problem = with_host(
        chain_problem(
            [1.0, 1.0], [1.0, 9.0], num_micro_batches=1, counts=(2,), optimizer_s=[2.0, 2.0]
        ),
        host,
    )
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1")}, {("a", "b"): [0]})
    # The second device takes its step from 11 s on, beside the backward pass of the first until
    # 12.5 s; then both are in theirs: a third of a second of work a second, until it is done.
    ends = {e.device: e.end_s for e in simulate(problem, plan).timeline if e.action == "step"}
    assert ends["d0-1"] == pytest.approx(12.5 + 3.0)
    assert ends["d0-0"] == pytest.approx(15.5 + 1.0)


def test_emulated_devices_have_neither_host_times_nor_shared_cores() -> None:
    host = HostTimes(action_s=0.25, step_s=0.5, slowdown_together=(1.0, 2.0))
    problem = chain_problem([1.0], [1.0], num_micro_batches=2, speeds=(1.0, 2.0), counts=(2, 2))
    emulated = with_host(problem, host, emulated=True)
    result = estimate(emulated, two_alone(emulated))
    assert result.step_time_s == pytest.approx(4.0)
    assert result.notes == ()


def test_a_host_takes_its_time_for_each_pass_and_each_step() -> None:
    problem = with_host(
        chain_problem([1.0], [2.0], num_micro_batches=4), HostTimes(action_s=0.25, step_s=0.5)
    )
    assert one_layer_each(problem).step_time_s == pytest.approx(0.5 + 4 * (3.0 + 2 * 0.25))


@pytest.mark.parametrize(
    ("emulated", "message_bytes", "latency_s", "last_leaves_s"),
    [
        (False, 1e8, 0.0, 11.1),
        (False, 1e8, 0.5, 12.1),
        (False, 1.0, 0.0, 5.1),
        (True, 1e8, 0.0, 5.1),
    ],
)
def test_a_message_leaves_when_its_receiver_has_asked_for_it(
    emulated: bool, message_bytes: float, latency_s: float, last_leaves_s: float
) -> None:
    # The receiver asks for four large messages at once, and for one more with each that it has
    # received: for the sixth when it is done with the first pass. That takes a latency to get
    # there. It asks for all small ones at once, and emulated links do not ask.
    problem = chain_problem(
        [0.1, 10.0],
        [0.1, 10.0],
        num_micro_batches=6,
        output_bytes=[message_bytes, 0.0],
        link=Link(latency_s=latency_s, bandwidth_bytes_per_s=message_bytes),
        schedule="gpipe",
    )
    timeline = one_layer_each(with_host(problem, HostTimes(), emulated)).timeline
    leaves = [e.start_s for e in timeline if e.action == "send" and e.device == "d0-0"]
    assert leaves == pytest.approx([0.1, 1.1, 2.1, 3.1, 4.1, last_leaves_s])
