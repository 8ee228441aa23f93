"""What a group of ranks can split of a model, and why not more, as it was found."""

from __future__ import annotations

from typing import NamedTuple

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.stage import Stage
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit


class SplitPlan(NamedTuple):
    """What a group of ranks can split of a model.

    Attributes:
        parameters: By canonical name.
        reasons: By layer, why it stays whole on every rank though the cost model splits it.
        not_shared: By layer, why queries that use one head of keys and values stay on one rank
            though the cost model splits them.
        unshared: The parameters where all such queries stay on one rank.
    """

    parameters: dict[str, ParameterSplit]
    reasons: dict[str, str]
    not_shared: dict[str, str]
    unshared: dict[str, ParameterSplit]

    def as_counted(self, profile: ModelProfile) -> dict[str, ParameterSplit]:
        """The parameters as a profile counts them; older ones know no shared keys and values."""
        splits = [layer.tensor_split for layer in profile.layers if layer.tensor_split]
        return self.parameters if any(own.key_values for own in splits) else self.unshared


def why_not(profile: ModelProfile, plan: SplitPlan, stage: Stage) -> str | None:
    """Why layers of a stage cannot be run by its group as they are counted; None where they can.

    Args:
        profile: Of the model.
        plan: Of the same model.
        stage: Says which layers the group splits.
    """
    for index in sorted(set(stage.layers).difference(stage.unsplit_layers)):
        layer = profile.layers[index]
        split = split_at(layer, stage.degree)
        if split is None:
            continue
        reasons = plan.reasons
        if 0 < split.key_value_heads < stage.degree:
            reasons = plan.not_shared | reasons
        if layer.name in reasons:
            return f"{profile.name}: layer {layer.name}: {reasons[layer.name]}"
    return None
