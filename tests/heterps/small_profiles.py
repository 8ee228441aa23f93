"""A small model profile with measured layers."""

from __future__ import annotations

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile

# Of `place`: one device for each stage that keeps all, one sample in a micro-batch.
PLAIN = (
    *("--tensor-parallel", "1", "--recompute", "never", "--shard-state", "never"),
    *("--micro-batch", "1"),
)


def blocks_profile(num_layers: int = 8) -> ModelProfile:
    """Equal layers of 40 ms on the host."""
    layers = tuple(
        LayerProfile(
            name=f"block{index}",
            kind="Block",
            num_parameters=1000,
            forward_flops=1e9,
            backward_flops=2e9,
            activation_bytes=4000,
            output_bytes=400,
        )
        for index in range(num_layers)
    )
    host = Measurement(
        device_type="host-cpu",
        micro_batch_size=1,
        forward_s=(0.01,) * num_layers,
        backward_s=(0.03,) * num_layers,
        optimizer_s=(0.001,) * num_layers,
    )
    return ModelProfile(name="blocks", dtype="float32", layers=layers, measurements=(host,))
