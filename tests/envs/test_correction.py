"""A corrected problem predicts what was measured."""

from __future__ import annotations

import pytest

from heterps_configs.cluster import Cluster
from heterps_configs.job import Job
from heterps_configs.model_profile import LayerProfile, Measurement, ModelProfile
from heterps_envs.correction import StageMeasurement, correct, drift
from heterps_envs.problem import Problem


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


def test_a_slow_device_gets_a_type_of_its_own_and_the_others_stay_equal() -> None:
    corrected = correct(small_problem(), [measured("d-0", 0, 2, 3.0), measured("d-1", 3, 5, 1.0)])
    by_class = {tuple(d.name for d in entry.devices) for entry in corrected.classes}
    assert by_class == {("d-0",), ("d-1", "d-2")}


def test_the_corrected_problem_predicts_what_was_measured_exactly_where_it_was_seen() -> None:
    seen = [measured("d-0", 0, 2, 3.0)]
    corrected = correct(small_problem(), seen)
    assert drift(corrected, seen) == pytest.approx({"d-0": 1.0})


def test_layers_that_were_not_seen_take_the_devices_factor_shrunk_towards_one() -> None:
    corrected = correct(small_problem(), [measured("d-0", 0, 2, 3.0)])
    column = next(i for i, c in enumerate(corrected.classes) if c.devices[0].name == "d-0")
    assert 2.5 < corrected.tables.forward_s[5, column] / 0.04 < 3.0


def test_correcting_twice_replaces_the_first_correction() -> None:
    once = correct(small_problem(), [measured("d-0", 0, 2, 3.0)])
    twice = correct(once, [measured("d-0", 0, 2, 1.5)])
    assert drift(twice, [measured("d-0", 0, 2, 1.5)]) == pytest.approx({"d-0": 1.0})
    assert len(twice.cluster.device_types) == 2
    assert len(twice.profile.measurements) == 2


def test_layers_keep_their_fingerprint_so_that_plans_stay_valid() -> None:
    problem = small_problem()
    corrected = correct(problem, [measured("d-0", 0, 2, 3.0)])
    assert corrected.profile.layers_fingerprint() == problem.profile.layers_fingerprint()
