"""Bytes that stages keep: of one stage, and of all that follow one another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.planning.problems import load_problem
from heterps_envs.problem import Problem


@settings(max_examples=20)
@given(cuts=st.sets(st.integers(1, 13), max_size=5))
@pytest.mark.parametrize("model", ["gpt2", "llama-7b"])
def test_stages_that_follow_one_another_keep_what_each_of_them_keeps(
    model: str, cuts: set[int]
) -> None:
    problem = load_problem(model, "a100-v100-t4", global_batch_size=8)
    num_layers, starts = problem.profile.num_layers, np.array([0, *sorted(cuts)])
    ends = [*starts[1:], num_layers]
    for again in (False, True):
        memory = problem.layer_memory.computed_again() if again else problem.layer_memory
        found = memory.kept_bytes_of(starts)
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            recomputed = range(start, end) if again else ()
            for kind in range(len(problem.classes)):
                own = problem.layer_memory.kept_bytes(start, end - 1, kind, recomputed)
                assert found[row, kind] == pytest.approx(own)


def test_an_attention_matrix_is_kept_on_cpus_and_by_emulated_gpus_alone() -> None:
    for cluster, added in (("a100-v100-t4", 0.0), ("local-emulated", 4000.0)):
        plain = load_problem("gpt2", cluster, global_batch_size=8, micro_batch_size=4)
        layers = [layer.changed(attention_matrix_bytes=1000.0) for layer in plain.profile.layers]
        profile = plain.profile.changed(layers=layers)
        random = Problem(profile=profile, cluster=plain.cluster, job=plain.job)
        # The first layer, an embedding, keeps less than its inputs.
        more = (random.layer_memory.own_bytes - plain.layer_memory.own_bytes)[1:]
        assert more == pytest.approx(np.full_like(more, added)), cluster
