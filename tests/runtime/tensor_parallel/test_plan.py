"""What the runtime can split of a model, and one line where it cannot split what is counted."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from heterps_configs.documents.stage import Stage
from heterps_runtime.tensor_parallel.found_splits import why_not
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from tests.runtime.small_models import TOKENS
from tests.runtime.tensor_parallel.split_cases import Case, case_of

_DOCUMENT = TypeAdapter(dict[str, ParameterSplit])


@pytest.mark.slow
def test_a_plan_is_small_and_can_be_sent() -> None:
    case = case_of("gpt2")
    plan = case.found.parameters
    assert _DOCUMENT.validate_json(_DOCUMENT.dump_json(plan)) == plan
    packed = plan["transformer.h.0.attn.c_attn.weight"]
    assert (packed.dim, packed.sections) == (1, ((0, 32), (32, 32), (64, 32)))
    # The one number of the model's own code that counts what a rank has a part of.
    assert {count for split in plan.values() for count in split.counts} == {
        f"transformer.h.{block}.attn.split_size" for block in range(2)
    }
    assert why_not(case.profile, case.found, _pair(case)) is None


@pytest.mark.slow
def test_the_one_key_and_value_of_all_queries_are_made_by_every_rank() -> None:
    case = case_of("one key")
    assert case.found.reasons == {}
    outputs = {path for split in case.found.parameters.values() for path in split.outputs}
    made = {f"model.layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "kv"}
    assert outputs == made
    assert not any(f"{path}.weight" in case.found.parameters for path in made)
    # Of the layer's two sums in the backward pass there are two more, of a key and of a value.
    split = case.profile.layers[1].tensor_split
    assert split is not None
    state, head = 32 * TOKENS * 4, 32 // 8 * TOKENS * 4
    assert sorted(split.backward_sums) == [head, head, state, state]


@pytest.mark.slow
def test_a_model_that_always_repeats_keys_for_as_many_queries_keeps_these_together() -> None:
    case = case_of("own attention")
    profile, found = case.profile, case.found
    split = profile.layers[0].tensor_split
    assert split is not None
    assert (split.num_units, split.key_value_heads) == (4, 2)
    assert found.reasons == {}
    assert found.not_shared.keys() == {layer.name for layer in profile.layers}
    assert {own.num_units for own in found.parameters.values()} == {2}
    assert why_not(profile, found, _pair(case)) is None
    four = _pair(case).changed(devices=("d0", "d1", "d2", "d3"))
    reason = why_not(profile, found, four)
    assert reason is not None
    assert "blocks.0.out cannot be split" in reason


@pytest.mark.slow
def test_what_cannot_be_run_is_named_with_its_reason() -> None:
    # It returns zeros for the distances of all heads, of which a rank would have some.
    case = case_of("t5")
    assert why_not(case.profile, case.found, _pair(case)) == (
        "t5: layer decoder.block.0.layer.1: decoder.block.0.layer.1 cannot be split: "
        "what it returns would not be whole"
    )
    assert "shared.weight" in case.found.parameters
    assert not any("SelfAttention" in name for name in case.found.parameters)


@pytest.mark.slow
def test_what_cannot_be_split_runs_where_the_stage_keeps_it_whole() -> None:
    case = case_of("t5")
    stage, names = _pair(case), [layer.name for layer in case.profile.layers]
    whole = tuple(names.index(name) for name in case.found.reasons)
    assert why_not(case.profile, case.found, stage.changed(whole_layers=whole)) is None
    assert why_not(case.profile, case.found, stage.changed(whole_layers=whole[1:])) is not None


def _pair(case: Case) -> Stage:
    """All layers on two devices."""
    last = case.profile.num_layers - 1
    return Stage(name="s", first_layer=0, last_layer=last, devices=("d0", "d1"))
