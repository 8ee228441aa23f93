"""Plans: every layer once on every route, every micro-batch on one route."""

from typing import Any

import pytest

from heterps_configs.documents.job import Job
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


def group_data() -> dict[str, Any]:
    """A group of four devices in front of a group of two."""
    data = plan_data()
    data["stages"] = [
        {"name": "s0", "first_layer": 0, "last_layer": 1, "devices": ["a", "b", "c", "d"]},
        {"name": "s1", "first_layer": 2, "last_layer": 3, "devices": ["e", "f"]},
    ]
    data["pipelines"] = [{"stages": ["s0", "s1"], "micro_batches": [0, 1, 2, 3]}]
    return data


def test_a_group_is_even_unless_it_says_its_shares() -> None:
    data = group_data()
    data["stages"][1]["tensor_shares"] = [0.25, 0.75]
    plan = Plan.from_mapping(data)
    assert [stage.degree for stage in plan.stages] == [4, 2]
    assert [stage.uneven_shares for stage in plan.stages] == [(), (0.25, 0.75)]
    assert plan.stages[1].changed(tensor_shares=(0.5, 0.5)).uneven_shares == ()
    assert plan.device_groups == (("a", "b", "c", "d"), ("e", "f"))
    assert Plan.from_mapping(plan.to_mapping()) == plan


@pytest.mark.parametrize(
    ("shares", "problem"),
    [
        ([0.5, 0.4], "tensor_shares: they sum to 0.9; must sum to 1"),
        ([0.5, 0.25, 0.25], "tensor_shares: 3 of them for 2 devices"),
        ([1.5, -0.5], "tensor_shares.0: must be at most 1, got 1.5"),
    ],
)
def test_shares_of_a_group_are_one_for_each_device_and_sum_to_1(
    shares: list[float], problem: str
) -> None:
    data = group_data()
    data["stages"][1]["tensor_shares"] = shares
    assert problems_of(data)[0] == f"stages.1.{problem}"


def test_a_group_may_keep_some_of_its_layers_whole() -> None:
    data = group_data()
    data["stages"][1]["whole_layers"] = [data["stages"][1]["first_layer"]]
    plan = Plan.from_mapping(data)
    assert plan.stages[1].split == (2, (), frozenset(plan.stages[1].whole_layers))
    assert plan.unsplit_layers_on(("e", "f")) == plan.stages[1].whole_layers
    assert plan.unsplit_layers_on(plan.stages[0].devices) == ()
    assert Plan.from_mapping(plan.to_mapping()) == plan
    assert "whole_layers" not in plan.to_mapping()["stages"][0]


def test_a_group_may_split_some_of_its_layers_by_batch() -> None:
    data = group_data()
    first, last = (data["stages"][1][end] for end in ("first_layer", "last_layer"))
    data["stages"][1] |= {"whole_layers": [last], "batch_layers": [first]}
    plan = Plan.from_mapping(data)
    assert plan.stages[1].unsplit_layers == (first, last)
    assert plan.stages[1].split == (2, (), frozenset((first, last)))
    assert Plan.from_mapping(plan.to_mapping()) == plan


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"whole_layers": [9]}, "whole_layers: 9 not among the stage's layers"),
        (
            {"whole_layers": [1], "devices": ["e"]},
            "whole_layers: one device has all of its layers whole; leave them out",
        ),
        ({"batch_layers": [9]}, "batch_layers: 9 not among the stage's layers"),
        (
            {"batch_layers": [1], "devices": ["e"]},
            "batch_layers: one device has all of its layers whole; leave them out",
        ),
        ({"whole_layers": [2], "batch_layers": [2]}, "batch_layers: 2 in whole_layers, too; each"),
    ],
)
def test_layers_that_are_not_split_are_those_of_a_group(
    fields: dict[str, Any], problem: str
) -> None:
    data = group_data()
    data["stages"][1].update(fields)
    assert problems_of(data)[0].startswith(f"stages.1.{problem}")


def test_devices_of_a_group_have_all_their_stages_in_common() -> None:
    data = group_data()
    data["stages"][1]["devices"] = ["d", "e"]
    (problem,) = problems_of(data)
    assert problem == (
        "stages.1.devices: 'd' is in a group with other devices in stage 's0'; stages that share "
        "a device must have the same devices, in the same order"
    )


def test_a_layer_is_computed_again_or_offloaded() -> None:
    data = group_data()
    data["stages"][0] |= {"recompute_layers": [0], "offloaded_layers": [1]}
    assert Plan.from_mapping(data).stages[0].offloaded_layers == (1,)
    data["stages"][0]["offloaded_layers"] = [0, 1]
    data["stages"][1]["offloaded_layers"] = [1]
    assert problems_of(data) == (
        "stages.0.offloaded_layers: 0 in recompute_layers, too; a layer is computed again or "
        "offloaded",
        "stages.1.offloaded_layers: 1 not among the stage's layers 2..3",
    )


def test_a_stage_of_1f1b_may_say_what_it_holds_in_flight() -> None:
    data = plan_data()
    data["stages"][0]["in_flight"] = 4
    plan = Plan.from_mapping(data)
    assert plan.stages[0].in_flight == 4
    assert Plan.from_mapping(plan.to_mapping()) == plan
    assert not plan.runs_like(Plan.from_mapping(plan_data()))
    data["job"]["schedule"] = "gpipe"
    assert problems_of(data) == (
        "stages: 's0' has in_flight, and the job's schedule is gpipe; only 1f1b can have it",
    )
    data["job"]["schedule"] = "1f1b"
    data["stages"][1]["devices"] = ["a"]
    assert problems_of(data) == (
        "stages: 's0' has in_flight, and shares 'a' with other stages; only a stage that has its "
        "devices for itself can have it",
    )
    data["stages"][0]["in_flight"] = 0
    assert problems_of(data)[0].startswith("stages.0.in_flight: ")


def test_state_is_sharded_by_ranges_of_layers() -> None:
    plan = Plan.from_mapping(plan_data() | {"sharded_state": [{"first_layer": 2, "last_layer": 3}]})
    assert plan.sharded_layers == {2, 3}
    whole = Plan.from_mapping(plan_data())
    assert not plan.runs_like(whole)
    assert plan.fingerprint() != whole.fingerprint()
    assert Plan.from_mapping(plan.to_mapping()) == plan
    ranges = [{"first_layer": 0, "last_layer": 2}, {"first_layer": 2, "last_layer": 4}]
    assert problems_of(plan_data() | {"sharded_state": ranges}) == (
        "sharded_state: the layers 2..4 are not all among 0..3",
        "sharded_state: a layer stands there twice",
    )


def test_what_no_plan_used_before_is_in_no_file_that_does_not_use_it() -> None:
    saved = Plan.from_mapping(plan_data()).to_mapping()
    assert "sharded_state" not in saved
    assert set(saved["stages"][0]) == {"name", "first_layer", "last_layer", "devices"}


def test_a_saved_plan_states_every_field_of_its_job() -> None:
    plan = Plan.from_mapping(plan_data())
    saved = plan.to_mapping()
    assert set(saved["job"]) == set(Job.model_fields)
    assert saved["job"]["schedule"] == "1f1b"
    assert Plan.from_mapping(saved) == plan
