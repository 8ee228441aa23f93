"""The graph simulator: equal to an event simulator, exact memory, clear refusals."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_envs.graphs.problem import GraphTables, Placement, pack_graphs, put_graph
from heterps_envs.graphs.simulator import graph_cost, graph_step_times, simulate_graph
from heterps_envs.problem_sets.graphs import generate_graphs
from tests.envs.reference_graphs import EventSimulator


def random_devices(tables: GraphTables, rng: np.random.Generator) -> Placement:
    """Any devices, in a third of the cases long runs of one."""
    devices = rng.integers(0, tables.num_devices, tables.num_nodes)
    if rng.random() < 0.3:
        devices = np.repeat(devices, 6)[: tables.num_nodes]
    return devices.astype(np.int16)


def two_nodes(**changes: object) -> GraphTables:
    """A chain of two nodes on two devices with a slow link."""
    tables = GraphTables(
        forward_s=np.array([[1.0, 2.0], [1.0, 2.0]]),
        backward_s=np.array([[2.0, 4.0], [2.0, 4.0]]),
        memory_bytes=np.array([10.0, 10.0]),
        output_bytes=np.array([5.0, 5.0]),
        gradient_bytes=np.array([3.0, 5.0]),
        producer_start=np.array([0, 0, 1]),
        producers=np.array([0]),
        device_memory_bytes=np.array([20.0, 20.0]),
        latency_s=np.array([[0.0, 0.25], [0.5, 0.0]]),
        inverse_bandwidth_s_per_byte=np.array([[0.0, 0.1], [0.2, 0.0]]),
        channel=np.array([[0, 0], [1, 1]]),
    )
    return dataclasses.replace(tables, **changes)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_start_and_end_is_that_of_the_event_simulator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = generate_graphs(1, seed, nodes=(1, 24), devices=(1, 6))[0]
    tables = dataclasses.replace(
        tables,
        forward_s=np.where(np.isfinite(tables.forward_s), tables.forward_s, 1.0),
        device_memory_bytes=np.full(tables.num_devices, np.inf),
    )
    devices = random_devices(tables, rng)
    run, events = simulate_graph(tables, devices), EventSimulator(tables, devices.tolist())
    assert run.step_time_s == pytest.approx(events.run(), rel=1e-12)
    for index, direction in enumerate(("forward", "backward")):
        for node in range(tables.num_nodes):
            if (direction, node) in events.start_s:
                begin_s = events.start_s[direction, node]
                assert run.start_s[index, node] == pytest.approx(begin_s, rel=1e-12)
                end_s = events.finish_s[direction, node]
                assert run.finish_s[index, node] == pytest.approx(end_s, rel=1e-12)
            else:
                assert np.isnan(run.start_s[index, node])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_memory_is_exact_and_many_placements_cost_what_each_costs_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = generate_graphs(5, seed, nodes=(4, 20))
    problems = pack_graphs(tables, max_nodes=30, max_devices=8)
    rows = rng.integers(0, 5, 20)
    devices = np.zeros((20, 30), np.int16)
    step_time_s, overflow = np.empty(20), np.empty(20)
    for index, row in enumerate(rows):
        devices[index, : tables[row].num_nodes] = random_devices(tables[row], rng)
    graph_step_times(problems, rows, devices, step_time_s, overflow)
    for index, row in enumerate(rows):
        entry = tables[row]
        mine = devices[index, : entry.num_nodes]
        run = simulate_graph(entry, mine)
        held = [entry.memory_bytes[mine == d].sum() for d in range(entry.num_devices)]
        np.testing.assert_allclose(run.memory_bytes, held, rtol=1e-12)
        assert (
            run.fits
            == (overflow[index] == 0)
            == bool((run.memory_bytes <= entry.device_memory_bytes).all())
        )
        if run.fits:
            assert run.step_time_s == step_time_s[index]
        else:
            assert run.step_time_s == np.inf
            excess = run.memory_bytes / entry.device_memory_bytes - 1
            assert overflow[index] == pytest.approx(excess[excess > 0].sum())


def test_a_chain_over_a_slow_link_takes_what_one_adds_up_by_hand() -> None:
    run = simulate_graph(two_nodes(), np.array([0, 1], np.int16))
    # 1 forward, 0.5 + 0.25 on the link, 2 forward, 4 backward, 0.6 + 0.5 on the way back, 2.
    assert run.step_time_s == pytest.approx(1 + 0.75 + 2 + 4 + 1.1 + 2)
    np.testing.assert_allclose(run.start_s, [[0, 1.75], [8.85, 3.75]])
    np.testing.assert_allclose(run.memory_bytes, [10, 10])


def test_inference_sends_nothing_back() -> None:
    nothing = np.zeros(2)
    tables = two_nodes(backward_s=np.zeros((2, 2)), gradient_bytes=nothing)
    run = simulate_graph(tables, np.array([0, 1], np.int16))
    assert run.step_time_s == pytest.approx(1 + 0.75 + 2)
    assert np.isnan(run.start_s[1]).all()


def test_too_much_memory_and_missing_kernels_take_forever() -> None:
    crowded = simulate_graph(
        two_nodes(device_memory_bytes=np.array([15.0, 10.0])), np.zeros(2, np.int16)
    )
    assert not crowded.fits
    assert crowded.step_time_s == np.inf
    lacking = two_nodes(forward_s=np.array([[1.0, np.inf], [1.0, 2.0]]))
    run = simulate_graph(lacking, np.array([1, 1], np.int16))
    assert run.fits
    assert run.step_time_s == np.inf


def test_searches_pay_for_each_byte_that_does_not_fit() -> None:
    cost = graph_cost(np.array([1.0, 1.0]), np.array([0.0, 0.5]))
    np.testing.assert_allclose(cost, [1.0, 2.5])


def test_what_does_not_fit_into_the_room_is_refused() -> None:
    tables = generate_graphs(1, seed=0, nodes=(9, 9), devices=(3, 3))[0]
    with pytest.raises(HeterpsError, match=r"9 nodes, 3 devices and .* edges; there is room for 8"):
        pack_graphs([tables], max_nodes=8, max_devices=4)
    with pytest.raises(HeterpsError, match="at most 16 devices, not 17"):
        pack_graphs([tables], max_devices=17)
    with pytest.raises(HeterpsError, match="at least one graph"):
        pack_graphs([])


def test_a_node_without_a_device_is_refused() -> None:
    problems = pack_graphs([two_nodes()])
    with pytest.raises(HeterpsError, match="node 1 can run on no device"):
        put_graph(problems, 0, two_nodes(forward_s=np.array([[1.0, 1.0], [np.inf, np.inf]])))
    with pytest.raises(HeterpsError, match="node 0 fits on no device: it needs 10 B"):
        put_graph(problems, 0, two_nodes(device_memory_bytes=np.array([5.0, 9.0])))
