"""Groups of parameters by name: no weight decay on norms and biases, another rate for a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.program import GroupRule


def grouped(
    rule: GroupRule,
    own: Mapping[str, nn.Parameter],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[dict[str, Any]]:
    """What an optimizer takes: the same groups on every rank, some of them without parameters.

    So a schedule with a function for each group works on all ranks, and `param_groups[i]` means the
    same everywhere.

    Args:
        rule: Settings of a parameter.
        own: What this rank updates, by name.
        shapes: Of all parameters of the model, by name.

    Raises:
        HeterpsError: The rule returns no settings for a parameter.
    """
    groups: list[dict[str, Any]] = []
    for name, shape in sorted(shapes.items()):
        settings = rule(name, shape)
        if not isinstance(settings, Mapping):
            raise HeterpsError(
                f"parameter_groups: returned {type(settings).__name__} for {name}; expected a "
                "mapping such as {'weight_decay': 0.0}"
            )
        group = next((each for each in groups if _settings(each) == settings), None)
        if group is None:
            group = {**settings, "params": []}
            groups.append(group)
        if name in own:
            group["params"].append(own[name])
    return groups


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
