"""Which plans another tool can say: one degree, and groups that split all that can be split."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.exports.shape import Chain, equal_degree
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError


def pair(**fields: Any) -> Chain:
    """Two layers on a group of two."""
    stage = Stage(name="s", first_layer=0, last_layer=1, devices=("a", "b"), **fields)
    return Chain((stage,), 1)


def test_even_groups_have_one_degree() -> None:
    assert equal_degree(pair(), "tool") == 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tensor_shares": (0.25, 0.75)}, "tool: stage s is split unevenly"),
        ({"whole_layers": (1,)}, "tool: the group of stage s does not split all of its layers"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(HeterpsError, match=problem):
        equal_degree(pair(**fields), "tool")
