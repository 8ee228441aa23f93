"""Predicted runs of Megatron-DeepSpeed: what each fact of the software adds to the step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import (
    SailorEnd,
    SailorLayerSizes,
    SailorLayerTimes,
    SailorLink,
    SailorLinks,
    SailorModel,
    SailorShape,
)
from heterps_configs.importers.sailor_runs import (
    SailorGroup,
    SailorPlan,
    SailorStage,
    SailorTraining,
)
from heterps_envs.engines.megatron_memory import predicted_memory_bytes, runtime_bytes
from heterps_envs.engines.megatron_runs import (
    MegatronSetting,
    all_gather_s,
    predicted_step_s,
    reduce_s,
)

FAST, SLOW = "RTX-3090", "Titan-RTX"
PARAMETERS, OUTPUT, ACTIVATION = 1_000_000, 4_000_000, 500_000
# 1 GB/s of all GPUs together, for messages of any size.
FLAT = SailorLink((0.0, 0.0, 1.0), 1e12)


def setting(degree: int = 1) -> MegatronSetting:
    """Four layers: 1 s forward and 2 s backward on the fast GPU, twice that on the slow one."""
    times = {
        SailorShape(gpu, 1, degree): (SailorLayerTimes(scale, 2 * scale, 0.0),) * 4
        for gpu, scale in ((FAST, 1.0), (SLOW, 2.0))
    }
    sizes = {k: (SailorLayerSizes(PARAMETERS // k, OUTPUT, ACTIVATION),) * 4 for k in (1, degree)}
    ends = [SailorEnd(gpu, degree, "here") for gpu in (FAST, SLOW)]
    links = SailorLinks("links", {(a, b): FLAT for a in ends for b in ends})
    inside = {(gpu, degree): FLAT for gpu in (FAST, SLOW)}
    return MegatronSetting(SailorModel("tiny", times, sizes), links, inside)


def plan(
    cuts: tuple[int, ...], *replicas: str, degree: int = 1, micro_batches: int = 4
) -> SailorPlan:
    """Stages end at the cuts and at layer 4; all stages of a replica are on one GPU type."""
    groups = tuple(SailorGroup(gpu, degree, "here") for gpu in replicas)
    bounds = (0, *cuts, 4)
    return SailorPlan(
        tuple(SailorStage(a, b, groups) for a, b in pairwise(bounds)),
        1,
        micro_batches * len(replicas),
    )


@pytest.mark.parametrize("degree", [1, 2])
def test_a_single_group_takes_its_passes_in_turn(degree: int) -> None:
    alone = plan((), FAST, degree=degree)
    assert predicted_step_s(setting(degree), alone) == pytest.approx(4 * 12, rel=1e-4)


def test_messages_lengthen_a_pipeline_whose_stages_are_balanced() -> None:
    """Two messages of 16 MB a micro-batch pass between the stages, each takes 16 ms."""
    seconds = predicted_step_s(setting(), plan((2,), FAST))
    assert seconds == pytest.approx(5 * 6 + 2 * 4 * 0.016, abs=0.02)


def test_the_slowest_replica_counts_and_then_the_ring() -> None:
    reduce_seconds = 2 * 0.5 * 4 * PARAMETERS * 4 / 1e9
    mixed = plan((), FAST, SLOW)
    assert reduce_s(setting(), mixed.stages[0]) == pytest.approx(reduce_seconds)
    assert predicted_step_s(setting(), mixed) == pytest.approx(4 * 24 + reduce_seconds, rel=1e-4)
    halved = replace(setting(), bandwidth_share=0.5)
    assert reduce_s(halved, mixed.stages[0]) == pytest.approx(2 * reduce_seconds)


def test_rings_of_a_group_share_its_network_card() -> None:
    """Half the gradients on each of two GPUs, but two rings at a time: no gain."""
    alone = reduce_s(setting(), plan((), FAST, FAST).stages[0])
    pair = reduce_s(setting(2), plan((), FAST, FAST, degree=2).stages[0])
    assert pair == pytest.approx(alone)
    assert reduce_s(setting(), plan((), FAST).stages[0]) == 0


def test_an_all_gather_moves_all_shares_but_one_over_its_pairs() -> None:
    group = SailorGroup(FAST, 4, "here")
    # Shares of 1 GB; a GPU of two pairs has half of 1 GB/s and receives three shares.
    assert all_gather_s({(FAST, 4): FLAT}, group, 4e9) == pytest.approx(6.0)
    assert all_gather_s({}, SailorGroup(FAST, 1, "here"), 4e9) == 0
    with pytest.raises(HeterpsError, match="no link between 4 x RTX-3090 inside a node"):
        all_gather_s({}, group, 4e9)


def test_replicas_of_different_degrees_are_an_error() -> None:
    groups = (SailorGroup(FAST, 1, "here"), SailorGroup(FAST, 2, "here"))
    with pytest.raises(HeterpsError, match="different tensor-parallel degrees"):
        reduce_s(setting(), SailorStage(0, 4, groups))


def test_memory_is_state_activations_in_flight_scores_and_runtime() -> None:
    model, training = setting().model, SailorTraining(2, 100)
    state = 16 * 2 * PARAMETERS
    saved = 2 * 2 * ACTIVATION * 4  # two layers of the first of two stages, two in flight
    scores = 2 * 2 * 100**2 * 4
    two_stages = plan((2,), FAST)
    needed = predicted_memory_bytes(model, two_stages, training)
    assert needed == pytest.approx(state + saved + scores + runtime_bytes(FAST))
    at_rest = predicted_memory_bytes(model, two_stages, training, "state")
    assert at_rest == pytest.approx(state + runtime_bytes(FAST))
    once = predicted_memory_bytes(model, plan((2,), FAST, micro_batches=1), training)
    assert once == pytest.approx(state + saved / 2 + scores + runtime_bytes(FAST))


def test_kernels_reserve_more_on_gpus_that_hold_more_threads() -> None:
    assert runtime_bytes("GH-96") == pytest.approx(5.06e9)
    assert runtime_bytes(SLOW) < runtime_bytes(FAST) < runtime_bytes("GH-96")
