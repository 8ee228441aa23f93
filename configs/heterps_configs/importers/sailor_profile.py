"""The layers of Sailor's profiles, as those of a model profile."""

from __future__ import annotations

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.importers.sailor import SailorLayerSizes, SailorModel

_FLOAT_BYTES = 4


def sailor_layers(model: SailorModel) -> tuple[LayerProfile, ...]:
    """The layers without tensor parallelism; bytes are those of float32, FLOPs are not known.

    What a group splits follows from the sizes on one GPU and on one of the largest group that has
    any. A layer between embedding and head has Megatron's two sums of its output each way; those of
    the other two are not known.

    Raises:
        HeterpsError: There are no sizes for tensor-parallel degree 1.
    """
    whole, last = model.layer_sizes(1), model.num_layers - 1
    degree = max(model.sizes)
    parts = model.layer_sizes(degree)
    return tuple(
        LayerProfile(
            name=f"layer{index}",
            kind="SailorLayer",
            num_parameters=size.parameters,
            forward_flops=0,
            backward_flops=0,
            activation_bytes=size.activation_memory * _FLOAT_BYTES,
            output_bytes=size.output * _FLOAT_BYTES if index < last else 0,
            tensor_split=_split(size, part, degree, 2 if 0 < index < last else 0),
        )
        for index, (size, part) in enumerate(zip(whole, parts, strict=True))
    )


def _split(
    whole: SailorLayerSizes, part: SailorLayerSizes, degree: int, num_sums: int
) -> TensorSplit | None:
    """What of a layer is split, from its sizes on one GPU and on one of a group; None: nothing."""
    if degree == 1:
        return None
    if part.parameters >= whole.parameters:
        num_sums = 0
        if part.activation_memory >= whole.activation_memory:
            return None

    def divided(alone: int, in_group: int) -> float:
        return min(max(alone - in_group, 0) * degree / (degree - 1), alone)

    sums = (float(whole.output * _FLOAT_BYTES),) * num_sums
    return TensorSplit(
        unit="columns",
        num_units=degree,
        parameters=round(divided(whole.parameters, part.parameters)),
        activation_bytes=divided(whole.activation_memory, part.activation_memory) * _FLOAT_BYTES,
        forward_sums=sums,
        backward_sums=sums,
    )
