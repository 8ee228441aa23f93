"""The frozen sets stay what they are."""

import numpy as np
import pytest

from heterps_configs.errors import UnknownNameError
from heterps_envs.bounds import price_bound
from heterps_envs.generator import fingerprint
from heterps_envs.test_sets import DRAWN_CHAINS, chain_set, held_out


@pytest.mark.parametrize("name", DRAWN_CHAINS)
def test_a_drawn_set_never_changes(name: str) -> None:
    problems = chain_set(name)
    assert len(problems) == DRAWN_CHAINS[name].count
    assert fingerprint(problems) == DRAWN_CHAINS[name].fingerprint
    assert all(np.isfinite(price_bound(entry)[0]) for entry in problems)


def test_held_out_problems_are_those_of_the_first_set() -> None:
    assert fingerprint(held_out(5)) == fingerprint(chain_set("in-range")[:5])


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(UnknownNameError, match="in-range"):
        chain_set("in-rnge")
