"""Generated problems: deterministic, in real units, of named families, some of them tight."""

from typing import Any

import numpy as np
import pytest

from heterps_configs.errors import HeterpsError
from heterps_envs.problem_sets.chains import fingerprint, generate
from heterps_envs.problem_sets.model_families import FAMILIES, draw_model


def test_equal_seeds_give_equal_problems_and_longer_lists_extend_shorter_ones() -> None:
    assert fingerprint(generate(5, seed=3)) == fingerprint(generate(9, seed=3)[:5])
    assert fingerprint(generate(5, seed=3)) != fingerprint(generate(5, seed=4))


def test_sizes_stay_in_their_ranges() -> None:
    problems = generate(80, seed=0, layers=(5, 9), classes=(3, 6), count_range=(2, 5))
    assert {entry.num_layers for entry in problems} == {5, 6, 7, 8, 9}
    assert {entry.num_classes for entry in problems} == {3, 4, 5, 6}
    assert min(entry.device_count.min() for entry in problems) == 2
    assert max(entry.device_count.max() for entry in problems) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_positive_seconds_and_bytes_of_real_machines(family: str) -> None:
    for entry in generate(30, seed=1, classes=(1, 12), families=[family]):
        assert (entry.forward_s > 0).all()
        assert (entry.backward_s > 0).all()
        assert entry.forward_s.max() < 60
        assert (entry.memory_bytes > 0).all()
        assert (entry.state_bytes > 0).all()
        assert (entry.output_bytes[:-1] > 0).all()
        assert entry.output_bytes[-1] == 0
        assert np.array_equal(
            entry.inverse_bandwidth_s_per_byte, entry.inverse_bandwidth_s_per_byte.T
        )
        assert 1e9 <= (1 / entry.inverse_bandwidth_s_per_byte).max() < 1e12


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 5])
def test_every_family_has_short_models(family: str, num_layers: int) -> None:
    for seed in range(20):
        model = draw_model(family, np.random.default_rng(seed), num_layers)
        assert all(values.shape == (num_layers,) for values in model)
        assert all((values >= 0).all() for values in model)


def test_skips_of_a_unet_are_carried_over_the_cuts_that_they_pass() -> None:
    model = draw_model("unet", np.random.default_rng(1), 16)
    alone = model.output_bytes[-1]
    assert model.output_bytes[7] > alone
    # The first skip passes every cut but the last two.
    assert (model.output_bytes[1:-2] > 0.5 * model.output_bytes[0]).all()


def test_experts_have_many_parameters_and_few_flops_for_each() -> None:
    model = draw_model("moe", np.random.default_rng(0), 16)
    per_parameter = model.flops[2:-2] / model.parameters[2:-2]
    assert (per_parameter[1::2] > 3 * per_parameter[::2]).all()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"layers": (8, 4)}, r"layers: is \(8, 4\); allowed: two whole numbers from 1 on"),
        ({"layers": 8}, "layers: is of type int"),
        ({"classes": (0, 2)}, r"classes: is \(0, 2\)"),
        ({"count_range": (1, 2.5)}, "count_range: is of type float"),
        ({"seed": -1}, "seed: is -1"),
    ],
)
def test_empty_ranges_and_no_seeds_are_told(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(HeterpsError, match=f"^{text}"):
        generate(**{"count": 1, "seed": 0, **changed})
