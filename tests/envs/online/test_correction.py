"""A corrected problem predicts what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.stage import Stage
from heterps_envs.online.correction import ProblemBelief, StageMeasurement, correct, drift
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import stage_cost
from tests.envs.simulator import test_groups as groups


def small_problem() -> Problem:
    layers = tuple(
        LayerProfile(
            name=f"layer{i}",
            kind="Block",
            num_parameters=10,
            forward_flops=1e6,
            backward_flops=2e6,
            activation_bytes=10,
            output_bytes=4,
        )
        for i in range(6)
    )
    host = Measurement(
        device_type="host", micro_batch_size=1, forward_s=(0.01,) * 6, backward_s=(0.02,) * 6
    )
    gpu = {
        "memory_bytes": 1000,
        "peak_flops_per_s": {"float32": 1e9},
        "memory_bandwidth_bytes_per_s": 1e9,
        "price_usd_per_hour": 1,
    }
    emulation = {"host_device_type": "host", "slowdown": 4}
    cluster = Cluster.from_mapping(
        {
            "name": "pair",
            "device_types": [{"name": "card", **gpu, "emulation": emulation}],
            "nodes": [
                {
                    "name": "n",
                    "devices": [{"name": "d", "type": "card", "count": 3}],
                    "link": {"latency_s": 0, "bandwidth_bytes_per_s": 1e9},
                }
            ],
        }
    )
    profile = ModelProfile(name="m", layers=layers, measurements=(host,))
    return Problem(profile, cluster, Job(global_batch_size=4, dtype="float32"))


def measured(device: str, first: int, last: int, factor: float) -> StageMeasurement:
    count = last - first + 1
    return StageMeasurement(device, first, last, 0.04 * count * factor, 0.08 * count * factor)


def test_a_run_as_predicted_changes_nothing() -> None:
    problem = small_problem()
    seen = [measured("d-0", 0, 2, 1.0), measured("d-1", 3, 5, 1.01)]
    assert drift(problem, seen) == pytest.approx({"d-0": 1.0, "d-1": 1.01})
    assert correct(problem, seen) is problem


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_group_that_is_slow_is_predicted_slow(factor: float) -> None:
    """As a group and, as far as nobody knows better, alone."""
    problem = groups.measured()
    stage = Stage(name="s", first_layer=0, last_layer=1, devices=("d0-0", "d0-1"))
    cost = stage_cost(problem, stage)
    seen = [
        StageMeasurement(name, 0, 1, factor * cost.forward_s, factor * cost.backward_s, stage)
        for name in stage.devices
    ]
    assert drift(problem, seen) == pytest.approx(dict.fromkeys(stage.devices, factor))
    corrected = correct(problem, seen)
    assert drift(corrected, seen) == pytest.approx(dict.fromkeys(stage.devices, 1.0), rel=0.02)
    whole_s = corrected.tables.compute_s[:, corrected.class_of["d0-0"]].sum()
    assert whole_s == pytest.approx(factor * problem.tables.compute_s[:, 0].sum(), rel=0.02)
    assert (corrected is problem) == (factor == 1.0)


def test_of_a_slow_group_the_device_that_the_others_wait_for_is_slow() -> None:
    problem = groups.measured()
    stage = Stage(name="s", first_layer=0, last_layer=1, devices=("d0-0", "d0-1"))
    cost = stage_cost(problem, stage)
    seen = [
        StageMeasurement(name, 0, 1, 3 * cost.forward_s, 3 * cost.backward_s, stage, busy_share)
        for name, busy_share in (("d0-0", 1 / 3), ("d0-1", 1.0))
    ]
    assert drift(problem, seen) == pytest.approx({"d0-0": 1.0, "d0-1": 3.0})
    corrected = correct(problem, seen)
    # The group is as slow as that device, which is told apart there, too.
    assert drift(corrected, seen) == pytest.approx({"d0-0": 1.0, "d0-1": 1.0}, rel=0.02)
    whole_s = corrected.tables.compute_s.sum(axis=0)
    ratio = whole_s[corrected.class_of["d0-1"]] / whole_s[corrected.class_of["d0-0"]]
    assert ratio == pytest.approx(3.0, rel=0.02)
    assert corrected.class_of["d0-0"] == corrected.class_of["d0-7"]


def test_devices_of_a_group_that_wait_for_each_other_for_a_while_are_alike() -> None:
    problem = groups.measured()
    stage = Stage(name="s", first_layer=0, last_layer=1, devices=("d0-0", "d0-1"))
    cost = stage_cost(problem, stage)
    seen = [
        StageMeasurement(name, 0, 1, cost.forward_s, cost.backward_s, stage, busy_share)
        for name, busy_share in (("d0-0", 0.95), ("d0-1", 1.0))
    ]
    assert drift(problem, seen) == pytest.approx({"d0-0": 1.0, "d0-1": 1.0})


def test_a_slow_device_gets_a_type_of_its_own_and_the_others_stay_equal() -> None:
    corrected = correct(small_problem(), [measured("d-0", 0, 2, 3.0), measured("d-1", 3, 5, 1.0)])
    by_class = {tuple(d.name for d in entry.devices) for entry in corrected.classes}
    assert by_class == {("d-0",), ("d-1", "d-2")}


def test_the_corrected_problem_predicts_what_was_measured_where_it_was_seen() -> None:
    seen = [measured("d-0", 0, 2, 3.0)]
    corrected = correct(small_problem(), seen)
    assert drift(corrected, seen) == pytest.approx({"d-0": 1.0}, abs=0.01)


def test_layers_that_were_not_seen_take_the_devices_factor_shrunk_towards_one() -> None:
    corrected = correct(small_problem(), [measured("d-0", 0, 2, 3.0)])
    column = next(i for i, c in enumerate(corrected.classes) if c.devices[0].name == "d-0")
    assert 2.5 < corrected.tables.forward_s[5, column] / 0.04 < 3.0


def test_correcting_twice_replaces_the_first_correction() -> None:
    once = correct(small_problem(), [measured("d-0", 0, 2, 3.0)])
    twice = correct(once, [measured("d-0", 0, 2, 1.5)])
    assert drift(twice, [measured("d-0", 0, 2, 1.5)]) == pytest.approx({"d-0": 1.0}, abs=0.01)
    assert len(twice.cluster.device_types) == 2
    assert len(twice.profile.measurements) == 2


def test_layers_keep_their_fingerprint_so_that_plans_stay_valid() -> None:
    problem = small_problem()
    corrected = correct(problem, [measured("d-0", 0, 2, 3.0)])
    assert corrected.profile.layers_fingerprint() == problem.profile.layers_fingerprint()


def test_a_device_that_was_not_measured_is_as_its_type_is() -> None:
    both = [measured("d-0", 0, 2, 1.5), measured("d-1", 3, 5, 1.5)]
    corrected = correct(small_problem(), both)
    assert [entry.count for entry in corrected.classes] == [3]
    assert corrected.tables.forward_s[0, 0] / 0.04 == pytest.approx(1.5, rel=0.02)


def test_an_emulated_device_stays_emulated() -> None:
    corrected = correct(small_problem(), [measured("d-0", 0, 2, 3.0)])
    assert all(device.type.emulation is not None for device in corrected.cluster.devices)


def test_what_earlier_runs_told_stays() -> None:
    belief = ProblemBelief(small_problem())
    belief.observe([measured("d-0", 0, 2, 1.3), measured("d-1", 3, 5, 1.0)])
    belief.observe([measured("d-0", 3, 5, 1.3)])
    assert drift(belief.problem(), [measured("d-0", 0, 5, 1.3)]) == pytest.approx(
        {"d-0": 1.0}, abs=0.01
    )


def test_measured_bytes_outlive_a_correction() -> None:
    problem = small_problem()
    peaks = (5.0,) * 6
    own = Measurement(
        device_type="card",
        micro_batch_size=1,
        forward_s=(0.04,) * 6,
        backward_s=(0.08,) * 6,
        peak_bytes=peaks,
    )
    profile = problem.profile.changed(measurements=(*problem.profile.measurements, own))
    corrected = correct(replace(problem, profile=profile), [measured("d-0", 0, 2, 3.0)])
    found = {entry.device_type: entry for entry in corrected.profile.measurements}
    assert found["card~d-0"].peak_bytes == peaks
    assert found["card~d-0"].source == "corrected"


def test_draws_are_spread_around_what_is_believed() -> None:
    belief = ProblemBelief(small_problem())
    seen = [measured("d-0", 0, 2, 1.5)]
    belief.observe(seen)
    draws = list(belief.draws(20, seed=1, problem=belief.problem()))
    ratios = [drift(problem, seen)["d-0"] for problem in draws]
    assert min(ratios) < 1 < max(ratios)
    assert all(0.9 < ratio < 1.1 for ratio in ratios)
    assert belief.spread("d-0") < belief.spread("d-2")
