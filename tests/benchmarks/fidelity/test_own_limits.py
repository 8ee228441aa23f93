"""Random plans near a memory limit are valid, repeatable and near it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fidelity.own_limits import LIMIT_SHARE, draw_case, limited_cluster
from benchmarks.fidelity.own_plans import emulated_cluster
from heterps_configs.library import load_profile

PROFILES = [load_profile("llama-tiny"), load_profile("perceptron")]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_limit_is_within_its_share_of_the_predicted_need(seed: int) -> None:
    case = draw_case(PROFILES, seed)
    need = case.need_bytes[case.device]
    assert abs(case.limit_bytes / need - 1) <= LIMIT_SHARE + 1 / need
    assert case.predicted_to_fit == (need <= case.limit_bytes)


def test_a_seed_always_draws_the_same_plan() -> None:
    assert draw_case(PROFILES, 7).plan == draw_case(PROFILES, 7).plan


def test_one_device_of_a_cluster_can_be_limited() -> None:
    cluster = limited_cluster(emulated_cluster(1.0), {"d2": 12345})
    memory = {device.name: device.memory_bytes for device in cluster.devices}
    assert memory["d2"] == 12345
    assert memory["d0"] == memory["d3"] == 2**31
