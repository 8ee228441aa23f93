"""The simulator: published makespans, links, all-reduce, bounds by the closed form."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, LinkOverride, Node
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule import reduce_buckets
from heterps_envs.schedule.actions import REDUCE, STEP
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.reduce_buckets import reduce_s
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import estimate, simulate
from tests.envs.small_problems import FAST, chain_problem, one_layer_each, plan_of


# Event simulations of 1F1B without communication, on the stage times of HAPMoE's equations 4 and 5.
@pytest.mark.parametrize(
    ("forward_s", "backward_s", "num_micro_batches", "makespan_s"),
    [
        ([1, 1, 1, 1], [2, 2, 2, 2], 8, 33),
        ([1, 1, 1, 1], [2, 2, 2, 2], 32, 105),
        ([1, 2, 1], [2, 4, 2], 8, 52),
        ([2, 1, 1], [4, 2, 2], 8, 50),
        ([1, 1, 2], [2, 2, 4], 8, 54),
        ([1, 1.5, 3, 1], [2, 3, 6, 2], 16, 151.5),
    ],
)
def test_1f1b_makespans(
    forward_s: list[float], backward_s: list[float], num_micro_batches: int, makespan_s: float
) -> None:
    problem = chain_problem(forward_s, backward_s, num_micro_batches=num_micro_batches)
    assert one_layer_each(problem).step_time_s == pytest.approx(makespan_s)


# Forward pipelines with a delay between stages, from a study of pipelined inference.
@pytest.mark.parametrize(
    ("seconds", "delays_s", "num_micro_batches", "makespan_s"),
    [
        ([1, 2, 1], [0, 0], 4, 10),
        ([1.13, 2.9, 2.6], [0.3, 0.5], 8, 27.73),
        ([3, 1, 1, 2], [0.1, 0.1, 0.1], 16, 52.3),
    ],
)
def test_forward_pipeline_makespans(
    seconds: list[float], delays_s: list[float], num_micro_batches: int, makespan_s: float
) -> None:
    # A delay that does not occupy the link: its bytes leave at once, each cut on its own device
    # pair, so that messages of one cut never queue (every delay is below the stage times).
    problem = chain_problem(
        seconds,
        [0.0] * len(seconds),
        num_micro_batches=num_micro_batches,
        output_bytes=[*delays_s, 0.0],
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=1.0),
        schedule="gpipe",
    )
    timeline = one_layer_each(problem).timeline
    assert max(e.end_s for e in timeline if e.action == "forward") == pytest.approx(makespan_s)


def test_the_timeline_shows_every_action_once_and_no_device_does_two_passes_at_a_time() -> None:
    problem = chain_problem(
        [1, 2, 1],
        [2, 3, 2],
        output_bytes=[1.0, 1.0, 0.0],
        parameters=[1, 1, 1],
        link=Link(latency_s=0.1, bandwidth_bytes_per_s=4.0),
        optimizer_s=[0.1, 0.2, 0.3],
    )
    plan = bind(problem, (PlacedStage(0, 1, 0, 2), PlacedStage(2, 2, 0)), planner="test", seed=0)
    schedule = build_schedule(problem, plan)
    result = simulate(problem, plan, schedule)
    assert len(result.timeline) == sum(map(len, schedule.actions.values()))
    assert result.step_time_s == max(event.end_s for event in result.timeline)
    for device in plan.devices:
        own = [e for e in result.timeline if e.device == device and e.action != "send"]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))
    assert estimate(problem, plan).timeline == ()
    assert estimate(problem, plan, with_timeline=True) == result


def test_messages_queue_on_a_link_and_the_two_directions_do_not_meet() -> None:
    # Two forwards of 1 s each, messages that take 3 s on the wire: the second waits for the first.
    problem = chain_problem(
        [1, 0.5],
        [1, 0.5],
        num_micro_batches=2,
        output_bytes=[3.0, 0.0],
        link=Link(latency_s=0.25, bandwidth_bytes_per_s=1.0),
    )
    sends = [e for e in one_layer_each(problem).timeline if e.action == "send"]
    forward = [(e.start_s, e.end_s) for e in sends if e.device == "d0-0"]
    backward = [(e.start_s, e.end_s) for e in sends if e.device == "d0-1"]
    assert forward == [(1.0, 4.25), (4.0, 7.25)]
    assert backward == [(5.25, 8.5), (8.25, 11.5)]


def test_a_gradient_all_reduce_is_a_ring_that_starts_when_all_are_there() -> None:
    link = Link(latency_s=0.5, bandwidth_bytes_per_s=2.0)
    problem = chain_problem(
        [1.0], [2.0], num_micro_batches=4, parameters=[6], link=link, optimizer_s=[0.25]
    )
    plan = bind(problem, (PlacedStage(0, 0, 0, 3),), planner="test", seed=0)
    result = simulate(problem, plan)
    ring_s = 2 * 2 * (0.5 + 6 * 4 / 3 / 2.0)
    assert result.step_time_s == pytest.approx(2 * 3.0 + ring_s + 0.25)
    assert result.step_time_s == pytest.approx(result.closed_form_step_time_s)
    busy_s = 4 * 3.0 + 3 * 0.25
    assert result.bubble_share == pytest.approx(1 - busy_s / (3 * result.step_time_s))


@pytest.mark.parametrize(
    ("stages", "expected_bytes"),
    [
        # 40 bytes of the embedding on device 0 and of the head on device 1.
        ([PlacedStage(0, 1, 0), PlacedStage(2, 2, 0)], 40),
        # Two copies of the whole model: the shared parameters are reduced once.
        ([PlacedStage(0, 2, 0, 2)], 4 * (10 + 2 + 3)),
    ],
)
def test_tied_parameters_are_reduced_once(stages: list[PlacedStage], expected_bytes: float) -> None:
    problem = chain_problem(
        [1] * 3,
        [1] * 3,
        parameters=[13, 2, 10],  # 3 of the first layer's are its own
        tied_to={2: 0},
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=1.0),
        output_bytes=[0.0] * 3,
    )
    plan = bind(problem, stages, planner="test", seed=0)
    reduces = [e for e in simulate(problem, plan).timeline if e.action == "reduce"]
    assert min(e.end_s - e.start_s for e in reduces) == pytest.approx(expected_bytes)


def test_a_smaller_last_micro_batch_takes_its_share_of_seconds_and_bytes() -> None:
    problem = chain_problem(
        [2.0, 2.0],
        [4.0, 4.0],
        samples=5,
        micro_batch_size=4,
        output_bytes=[1.0, 0.0],
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=8.0),
    )
    last = {
        (e.device, e.action): e.end_s - e.start_s
        for e in one_layer_each(problem).timeline
        if e.micro_batch == 1 and e.action != "receive"
    }
    assert last["d0-0", "forward"] == pytest.approx(0.5)
    assert last["d0-1", "backward"] == pytest.approx(1.0)
    assert last["d0-0", "send"] == pytest.approx(1 / 8)


def test_a_slowed_down_device_slows_its_passes_and_its_optimizer_step() -> None:
    problem = chain_problem([1, 1], [2, 2], optimizer_s=[0.5, 0.5], num_micro_batches=1)
    plan = bind(problem, (PlacedStage(0, 0, 0), PlacedStage(1, 1, 0)), planner="test", seed=0)
    assert simulate(problem, plan).step_time_s == pytest.approx(6.5)
    slow = simulate(problem, plan, slowdown={"d0-1": 3.0})
    assert slow.step_time_s == pytest.approx(3 + 9 + 0.5)
    durations = {
        event.action: event.end_s - event.start_s
        for event in slow.timeline
        if event.device == "d0-1"
    }
    assert durations["step"] == pytest.approx(1.5)
    assert durations["forward"] == pytest.approx(3.0)


@st.composite
def stages_in_a_row(draw: st.DrawFn) -> tuple[Problem, list[PlacedStage]]:
    """Links with a price, or replicas without one; no gradients and no optimizer."""
    num_layers = draw(st.integers(1, 6))
    times = st.lists(st.floats(0, 3), min_size=num_layers, max_size=num_layers)
    replicated = draw(st.booleans())
    link = Link(latency_s=draw(st.floats(0, 2)), bandwidth_bytes_per_s=draw(st.floats(0.2, 5)))
    problem = chain_problem(
        draw(times),
        draw(times),
        num_micro_batches=draw(st.integers(1, 10)),
        counts=(24, 24),
        speeds=(1.0, draw(st.floats(1, 5))),
        output_bytes=draw(times),
        link=FAST if replicated else link,
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
    )
    cuts = sorted(draw(st.sets(st.integers(1, num_layers), max_size=num_layers)) | {num_layers})
    stages, first = [], 0
    for cut in cuts:
        replicas = draw(st.integers(1, 4)) if replicated else 1
        stages.append(PlacedStage(first, cut - 1, draw(st.integers(0, 1)), replicas))
        first = cut
    return problem, stages


@pytest.mark.slow
@given(stages_in_a_row())
def test_no_step_is_shorter_than_the_closed_form(case: tuple[Problem, list[PlacedStage]]) -> None:
    problem, stages = case
    result = estimate(problem, bind(problem, stages, planner="test", seed=0))
    assert result.closed_form_step_time_s is not None
    assert result.step_time_s >= result.closed_form_step_time_s * (1 - 1e-9)


def test_price_and_throughput_follow_from_the_step_time() -> None:
    problem = chain_problem([1.0], [2.0], num_micro_batches=10, prices=[7.2])
    result = one_layer_each(problem)
    assert result.step_time_s == pytest.approx(30)
    assert result.throughput_samples_per_s == pytest.approx(1 / 3)
    assert result.price_usd_per_million_samples == pytest.approx(7.2 / 3600 * 3 * 1e6)
    assert result.layer_times == "measured"
    assert result.feasible


def test_an_estimate_says_what_does_not_fit_and_by_how_much() -> None:
    problem = chain_problem(
        [1.0, 1.0],
        [2.0, 2.0],
        parameters=[100, 10],
        memory_bytes=[500],
        min_throughput=0.5,
    )
    result = one_layer_each(problem)
    assert not result.feasible
    assert result.memory_bytes == {"d0-0": 800, "d0-1": 80}
    assert result.memory_limit_bytes == {"d0-0": 500, "d0-1": 500}
    memory, floor = result.reasons
    assert memory == "memory: d0-0 (stage s0) needs 800 B, 300 B more than its 500 B"
    assert "0.203704 below the floor of 0.5" in floor


def test_a_plan_that_no_placement_describes_is_simulated_without_a_closed_form() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=3)
    plan = plan_of(
        problem,
        {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-0"), "c": (0, 1, "d0-1")},
        {("a", "b"): [0, 2], ("c",): [1]},
    )
    result = estimate(problem, plan)
    assert result.closed_form_step_time_s is None
    assert result.step_time_s == pytest.approx(8)


def test_links_inside_a_node_may_differ_by_direction() -> None:
    problem = chain_problem([1.0, 1.0], [1.0, 1.0], num_micro_batches=1, output_bytes=[1.0, 0.0])
    there = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    back = Link(latency_s=0.0, bandwidth_bytes_per_s=0.25)
    cluster = problem.cluster
    links = {"link": there, "reverse_link": back}
    nodes = tuple(node.changed(**links) for node in cluster.nodes)
    fields = {name: getattr(cluster, name) for name in type(cluster).model_fields}
    directed = replace(problem, cluster=type(cluster)(**{**fields, "nodes": nodes}))
    assert directed.link("d0-0", "d0-1") == there
    assert directed.link("d0-1", "d0-0") == back
    # Planners count the slower of the two.
    assert directed.tables.inverse_bandwidth_s_per_byte.max() == 4.0
    assert one_layer_each(directed).step_time_s == pytest.approx(4.0 + 1.0 + 4.0)


def test_links_differ_by_direction() -> None:
    problem = chain_problem([1.0, 1.0], [1.0, 1.0], num_micro_batches=1, output_bytes=[1.0, 0.0])
    nodes = tuple(
        Node(
            name=name,
            devices=(DeviceGroup(name=name, type="class0"),),
            link=FAST,
        )
        for name in ("a", "b")
    )
    there = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    back = Link(latency_s=0.0, bandwidth_bytes_per_s=0.25)
    cluster = Cluster(
        name="two",
        device_types=problem.cluster.device_types,
        nodes=nodes,
        inter_node_link=FAST,
        link_overrides=(LinkOverride(between=("a", "b"), link=there, reverse_link=back),),
    )
    changed = replace(problem, cluster=cluster)
    plan = plan_of(changed, {"x": (0, 0, "a"), "y": (1, 1, "b")}, {("x", "y"): [0]})
    assert estimate(changed, plan).step_time_s == pytest.approx(4 + 1 + 4)


def test_layers_that_are_computed_again_add_their_forward_pass_to_the_backward_pass() -> None:
    problem = chain_problem([1.0, 3.0], [2.0, 6.0], num_micro_batches=2)
    plan = plan_of(problem, {"a": (0, 1, "d0-0")}, {("a",): [0, 1]})
    stage = plan.stages[0].changed(recompute_layers=(1,))
    again = plan.changed(stages=(stage,))
    assert estimate(problem, plan).step_time_s == pytest.approx(24)
    assert estimate(problem, again).step_time_s == pytest.approx(30)


def without_overlap(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    job = problem.job.changed(overlaps_reduce=False)
    return replace(problem, job=job), plan.changed(job=job)


def test_all_reduces_that_overlap_start_early_and_are_done_before_the_step() -> None:
    problem = chain_problem(
        [1.0, 1.0],
        [1.0, 1.0],
        num_micro_batches=2,
        parameters=[1, 1],
        counts=(3,),
        link=Link(latency_s=1.5, bandwidth_bytes_per_s=1e9),
    )
    # The last stage has two replicas: their gradients are ready while the first stage still works.
    plan = bind(problem, (PlacedStage(0, 0, 0), PlacedStage(1, 1, 0, 2)), planner="test", seed=0)
    early = build_schedule(problem, plan)
    late = build_schedule(*without_overlap(problem, plan))
    assert early.overlaps_reduce
    kinds = [action.kind for action in early.actions["d0-1"]]
    assert kinds.index("reduce") < len(kinds) - 2
    assert [kind for kind in kinds if kind != "reduce"] == [
        action.kind for action in late.actions["d0-1"] if action.kind != "reduce"
    ]
    for schedule in (late, early):
        times = action_times(PreparedPlan(problem, plan, schedule))
        own = schedule.device_of == 1
        reduced_s = times.end_s[own & (schedule.kind == REDUCE)].max()
        assert times.start_s[own & (schedule.kind == STEP)].min() >= reduced_s


def test_gradients_of_the_last_layers_leave_while_those_of_the_first_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: each bucket takes 2 s on its way, and a layer's backward pass 1, 2, 3 or 4 s."""
    monkeypatch.setattr(reduce_buckets, "LEAST_BUCKET_BYTES", 1.0)
    monkeypatch.setattr(reduce_buckets, "BYTES_OVER_LATENCY", 0.0)
    problem = chain_problem(
        [1.0] * 4,
        [1.0, 2.0, 3.0, 4.0],
        num_micro_batches=4,
        parameters=[2] * 4,
        counts=(2,),
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=4.0),
    )
    plan = bind(problem, (PlacedStage(0, 3, 0, 2),), planner="test", seed=0)
    # Two micro-batches of 14 s on each. The gradients of layers 3, 2, 1, 0 are there at 22, 25, 27
    # and 28 s; each is on its way for 2 s, the last one from 29 s on.
    times = action_times(PreparedPlan(problem, plan))
    reduces = (times.schedule.kind == REDUCE) & (times.schedule.device_of == 0)
    assert times.start_s[reduces].tolist() == pytest.approx([22, 25, 27, 29])
    assert times.step_time_s == pytest.approx(31)
    assert estimate(*without_overlap(problem, plan)).step_time_s == pytest.approx(28 + 8)


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_an_overlap_hides_at_most_what_all_reduces_take(
    layers: list[int], replicas: int, num_micro_batches: int, latency: int
) -> None:
    n, replicas = len(layers), min(replicas, num_micro_batches)
    problem = chain_problem(
        [float(value) for value in layers],
        [float(value) for value in reversed(layers)],
        num_micro_batches=num_micro_batches,
        parameters=layers,
        counts=(4,),
        link=Link(latency_s=float(latency), bandwidth_bytes_per_s=3.0),
    )
    placed = [PlacedStage(0, n - 1, 0, replicas)]
    if n > 1:
        placed = [PlacedStage(0, n - 2, 0, replicas), PlacedStage(n - 1, n - 1, 0)]
    plan = bind(problem, tuple(placed), planner="test", seed=0)
    early, (off, late) = estimate(problem, plan), without_overlap(problem, plan)
    reduces = [reduce_s(off, bucket) for bucket in build_schedule(off, late).buckets]
    late_s = estimate(off, late).step_time_s
    assert late_s - sum(reduces) - 1e-9 <= early.step_time_s <= late_s + 1e-9


@pytest.mark.parametrize("num_micro_batches", [1, 3, 16])
def test_a_plan_whose_job_was_changed_unchecked_is_refused(num_micro_batches: int) -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4)
    stages = PlacedStage(0, 0, 0), PlacedStage(1, 1, 0)
    plan = bind(problem, stages, planner="test", seed=0)
    other = plan.job.changed(global_batch_size=num_micro_batches * plan.job.micro_batch_size)
    broken = plan.changed_unchecked(job=other)
    for asked in (problem, replace(problem, job=other)):
        for ask in (estimate, simulate):
            with pytest.raises(DocumentError, match=r"^plan: pipelines: each of the micro-batches"):
                ask(asked, broken)


def test_what_is_no_plan_is_refused_in_words() -> None:
    problem = chain_problem([1.0], [1.0])
    with pytest.raises(HeterpsError, match="plan: is None; allowed: a heterps Plan"):
        estimate(problem, None)  # type: ignore[arg-type]
