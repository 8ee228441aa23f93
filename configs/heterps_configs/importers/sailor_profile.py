"""The layers of Sailor's profiles, as those of a model profile."""

from __future__ import annotations

from heterps_configs.documents.model_profile import LayerProfile
from heterps_configs.importers.sailor import SailorModel

_FLOAT_BYTES = 4


def sailor_layers(model: SailorModel) -> tuple[LayerProfile, ...]:
    """The layers without tensor parallelism; bytes are those of float32, FLOPs are not known.

    Raises:
        HeterpsError: There are no sizes for tensor-parallel degree 1.
    """
    last = model.num_layers - 1
    return tuple(
        LayerProfile(
            name=f"layer{index}",
            kind="SailorLayer",
            num_parameters=size.parameters,
            forward_flops=0,
            backward_flops=0,
            activation_bytes=size.activation_memory * _FLOAT_BYTES,
            output_bytes=size.output * _FLOAT_BYTES if index < last else 0,
        )
        for index, size in enumerate(model.layer_sizes(1))
    )
