"""The kernels of the closed form against its definition in plain Python."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_envs.certificates.definition import PlainStage, closed_form_s, stage_bytes
from heterps_envs.closed_form.formula import OUT_OF_MEMORY, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import Placement, encode
from tests.envs.small_problems import placements, random_tables

SEEDS = st.integers(0, 100_000)


def plain(placement: Placement) -> list[PlainStage]:
    return [
        PlainStage(each.first_layer, each.last_layer + 1, each.device_class, each.replicas)
        for each in placement
    ]


@given(SEEDS, placements(6, (3, 2, 2)))
@settings(max_examples=200, deadline=None)
def test_step_time_and_memory_are_those_of_the_kernels(seed: int, placement: Placement) -> None:
    tables = random_tables(seed, 6, (3, 2, 2))
    step_time_s, _, verdict = evaluate(encode(placement)[None], kernel_tables(tables))
    stages = plain(placement)
    behind = [sum(each.replicas for each in stages[index + 1 :]) for index in range(len(stages))]
    fits = all(
        stage_bytes(tables, each.start, each.stop, each.replicas, count)
        <= tables.memory_bytes[each.kind]
        for each, count in zip(stages, behind, strict=True)
    )
    assert fits == (verdict[0] != OUT_OF_MEMORY)
    if fits:
        assert math.isclose(closed_form_s(tables, stages), step_time_s[0], rel_tol=1e-9)
