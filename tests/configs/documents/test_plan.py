"""Plans: every layer once on every route, every micro-batch on one route."""

from typing import Any

import pytest

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import DocumentError


def plan_data() -> dict[str, Any]:
    """HeterPS's shape: one shared stage in front, two replicas behind it."""
    return {
        "model": "tiny",
        "model_fingerprint": "0" * 16,
        "num_layers": 4,
        "cluster": "mine",
        "job": {"global_batch_size": 4, "micro_batch_size": 1},
        "stages": [
            {"name": "s0", "first_layer": 0, "last_layer": 1, "devices": ["a"]},
            {"name": "s1r0", "first_layer": 2, "last_layer": 3, "devices": ["b"]},
            {"name": "s1r1", "first_layer": 2, "last_layer": 3, "devices": ["c"]},
        ],
        "pipelines": [
            {"stages": ["s0", "s1r0"], "micro_batches": [0, 2]},
            {"stages": ["s0", "s1r1"], "micro_batches": [1, 3]},
        ],
    }


def problems_of(data: Any) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as caught:
        Plan.from_mapping(data, "plan.yaml")
    return caught.value.problems


def test_a_micro_batch_takes_the_stages_of_its_pipeline() -> None:
    plan = Plan.from_mapping(plan_data())
    assert [stage.name for stage in plan.route(1)] == ["s0", "s1r1"]
    assert list(plan.stage("s1r0").layers) == [2, 3]


def test_devices_come_once_in_the_order_of_the_stages() -> None:
    data = plan_data()
    data["stages"][2]["devices"] = ["a"]
    assert Plan.from_mapping(data).devices == ("a", "b")


def test_pipelines_that_share_a_stage_are_a_group_also_through_others() -> None:
    routes = [("a", "x"), ("b", "y"), ("c", "z"), ("b", "z")]
    spans = {name: (0, 1) if name in "abc" else (2, 3) for name in "abcxyz"}
    data = plan_data() | {
        "stages": [
            {"name": name, "first_layer": first, "last_layer": last, "devices": [name]}
            for name, (first, last) in spans.items()
        ],
        "pipelines": [
            {"stages": list(route), "micro_batches": [index]} for index, route in enumerate(routes)
        ],
    }
    groups = Plan.from_mapping(data).groups()
    assert [[pipeline.stages for pipeline in group] for group in groups] == [
        [("a", "x")],
        [("c", "z"), ("b", "y"), ("b", "z")],
    ]


def test_plans_run_alike_when_stages_and_routes_are_equal() -> None:
    plan = Plan.from_mapping(plan_data())
    assert plan.runs_like(plan.changed(planner="another", predicted_step_time_s=2.0))
    moved = plan.changed(stages=(plan.stages[0].changed(devices=("d",)), *plan.stages[1:]))
    assert not plan.runs_like(moved)


def test_a_stage_ends_behind_its_beginning() -> None:
    data = plan_data()
    data["stages"][1] |= {"first_layer": 3, "last_layer": 2}
    assert problems_of(data) == ("stages.1.last_layer: 2 lies before first_layer 3",)


def test_a_layer_that_is_left_out_is_refused() -> None:
    data = plan_data()
    data["stages"][0]["last_layer"] = 0
    assert problems_of(data) == (
        "pipelines.0.stages: must cover the layers 0..3 exactly once, in order",
        "pipelines.1.stages: must cover the layers 0..3 exactly once, in order",
    )


@pytest.mark.parametrize("micro_batches", [[0], [0, 1, 2], [0, 4], [0, 0, 2]])
def test_every_micro_batch_takes_exactly_one_route(micro_batches: list[int]) -> None:
    data = plan_data()
    data["pipelines"][0]["micro_batches"] = micro_batches
    assert problems_of(data) == (
        "pipelines: each of the micro-batches 0..3 must take exactly one route",
    )


def test_names_must_exist_be_unique_and_be_used() -> None:
    data = plan_data()
    data["pipelines"][1]["stages"] = ["s0", "s2"]
    data["stages"].append(data["stages"][0])
    assert problems_of(data) == (
        "stages.3.name: 's0' is taken by stages.0",
        "pipelines.1.stages: no stage is called 's2'",
        "stages: no pipeline uses s1r1",
    )


def test_a_problem_of_the_job_inside_has_its_path() -> None:
    data = plan_data()
    data["job"]["micro_batch_size"] = 8
    assert problems_of(data) == ("job.micro_batch_size: 8 is larger than global_batch_size 4",)
