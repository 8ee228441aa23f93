"""Initial parameters depend on their name and the seed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps_runtime.models.build import build_module
from heterps_runtime.models.initialise import initial_values
from tests.runtime.small_models import NAMES, initialise, source_of


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_any_subset_of_names_gets_the_values_of_the_whole_model(name: str) -> None:
    whole = dict(initialise(build_module(source_of(name)), seed=3).named_parameters())
    names = list(whole)
    for part in (names[::2], names[1::3], names[-1:]):
        values = initial_values(build_module(source_of(name)), part, seed=3)
        assert values.keys() == set(part)
        assert all(torch.equal(values[key], whole[key]) for key in part)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_stays_without_a_value(name: str) -> None:
    module = initialise(build_module(source_of(name)), seed=0)
    assert all(bool(p.isfinite().all()) and not p.is_meta for p in module.parameters())


def test_the_seed_changes_the_values() -> None:
    one, other = (
        initialise(build_module(source_of("llama")), seed=seed).get_parameter("lm_head.weight")
        for seed in (0, 1)
    )
    assert not torch.equal(one, other)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialise(build_module(source_of("llama")), seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_tied_parameters_stay_tied() -> None:
    module = initialise(build_module(source_of("gpt2")), seed=0)
    assert module.get_parameter("lm_head.weight") is module.get_parameter("transformer.wte.weight")


def test_layers_of_one_kind_start_unlike() -> None:
    module = initialise(build_module(source_of("sequential")), seed=0)
    weights = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    assert weights[0].flatten()[0] != weights[1].flatten()[0]


def test_recurrent_modules_are_initialised_by_their_own_rule() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.LSTM(4, 6))
    initialise(module, seed=0)
    assert all(float(p.detach().abs().max()) <= 6**-0.5 for p in module.parameters())
    assert module[0](torch.zeros(2, 4))[0].shape == (2, 6)
