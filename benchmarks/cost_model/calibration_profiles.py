"""Sailor's published layer times as model profiles with FLOPs and bytes, for the calibration.

The files hold times and sizes but no operation counts. These follow from the shapes: a product
with p weights takes 2 p FLOPs a token, attention over a sequence of s tokens `4 s^2 h`, and the
backward pass twice the forward pass. Memory traffic is 3.5 times the kept activations: that is the
ratio of a block of the shipped GPT-2 profile, whose operations were traced one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps_configs.documents.device import DeviceType, device_type_named
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorModel, SailorShape, load_model

_PROFILES = Path("sailor", "Planner", "simulations", "profiles_tmp.json")
_SIZES = Path("sailor", "Planner", "llm_info.json")
_FLOAT_BYTES = 4
_TRAFFIC_OVER_KEPT = 3.5


@dataclass(frozen=True)
class PublishedModel:
    """What the files do not say of a model.

    Attributes:
        last_kinds: Kinds of the layers behind the blocks.
        tensor_parallel: Degree that the chosen times were measured at; all sizes are one GPU's.
        float32_gpus: GPUs whose times for this model are those of plain float32: their FLOP/s stay
            below that peak, while others exceed it by far, so they ran in TF32.
    """

    name: str
    hidden: int
    sequence: int
    vocabulary: int
    last_kinds: tuple[str, ...]
    tensor_parallel: int = 1
    float32_gpus: tuple[str, ...] = ()


MODELS = (
    PublishedModel("OPT-350", 1024, 2048, 50272, ("Linear",)),
    PublishedModel("GPT-Neo-2.7", 2560, 2048, 50257, ("LayerNorm",)),
    PublishedModel("LLAMA-3-8", 4096, 8192, 128256, ("LayerNorm", "Linear"), 4, ("A100-40",)),
    PublishedModel("OPT-30", 7168, 2048, 50272, ("Linear",), 4, ("A100-40",)),
)

_TURING = "NVIDIA Turing GPU architecture whitepaper, reference clocks"
# Types that the file calls by names of its own, without a price, which no time depends on. Its
# RTX-2080 has 11 GiB, which only the Ti has.
_MORE_TYPES = {
    "RTX-2080": (11e9, 13.4e12, 53.8e12, 616e9, _TURING),
    "Titan-RTX": (24e9, 16.3e12, 130.5e12, 672e9, _TURING),
    "GH-96": (96e9, 67e12, 989e12, 4.0e12, "NVIDIA GH200 data sheet, 96 GB HBM3"),
}
_SHIPPED = {
    "V100-16": "V100-16G",
    "A100-40": "A100-40G",
    "A100-80": "A100-80G",
    "RTX-3090": "RTX-3090",
}
# Dense TF32 peaks: A100 and H100 data sheets (half of the figure with sparsity), GA102 whitepaper.
_TF32 = {"A100-40": 156e12, "A100-80": 156e12, "GH-96": 494.7e12, "RTX-3090": 35.6e12}


def device_type(gpu: str, rate: str) -> DeviceType:
    """A GPU of the files; its "float32" peak is that of the arithmetic that is assumed.

    Args:
        gpu: Sailor's name of it.
        rate: `float32` (ordinary units), `tf32` (where the hardware has it) or `float16`.
    """
    if gpu in _SHIPPED:
        entry = device_type_named(_SHIPPED[gpu])
    else:
        memory, single, half, bandwidth, source = _MORE_TYPES[gpu]
        entry = DeviceType(
            name=gpu,
            memory_bytes=int(memory),
            peak_flops_per_s={"float32": single, "float16": half},
            memory_bandwidth_bytes_per_s=bandwidth,
            price_usd_per_hour=0,
            specification_source=source,
        )
    peak = {
        "float32": entry.peak("float32"),
        "tf32": _TF32.get(gpu, entry.peak("float32")),
        "float16": entry.peak("float16"),
    }[rate]
    return entry.changed(name=gpu, peak_flops_per_s={"float32": peak})


def load(folder: Path, model: PublishedModel) -> ModelProfile:
    """One model with its times at the chosen tensor-parallel degree, GPUs by Sailor's names.

    Raises:
        HeterpsError: The files are missing or malformed.
    """
    sailor = load_model(folder / _PROFILES, folder / _SIZES, model.name)
    shapes = [shape for shape in sorted(sailor.times) if _chosen(model, shape)]
    if not shapes:
        raise HeterpsError(f"{model.name}: no times at degree {model.tensor_parallel}")
    return ModelProfile(
        name=model.name,
        layers=_layers(model, sailor),
        measurements=tuple(
            Measurement(
                device_type=shape.gpu,
                micro_batch_size=shape.micro_batch_size,
                forward_s=tuple(layer.forward_s for layer in sailor.times[shape]),
                backward_s=tuple(layer.backward_s for layer in sailor.times[shape]),
                optimizer_s=tuple(layer.update_s for layer in sailor.times[shape]),
            )
            for shape in shapes
        ),
    )


def _chosen(model: PublishedModel, shape: SailorShape) -> bool:
    return shape.tensor_parallel == model.tensor_parallel


def _layers(model: PublishedModel, sailor: SailorModel) -> tuple[LayerProfile, ...]:
    kinds = _kinds(model, sailor.num_layers)
    # Without the degree's own sizes, a GPU holds its share of the whole.
    degree = model.tensor_parallel
    sizes = sailor.layer_sizes(1)
    layers = []
    for index, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        divided = 1 if kind == "LayerNorm" else degree
        parameters = size.parameters
        if kind == "Linear":  # The file leaves out the head's weights where they are tied.
            parameters = max(parameters, model.hidden * model.vocabulary)
        products = 2.0 * parameters * model.sequence if kind != "Embedding" else 0.0
        attention = 4.0 * model.sequence**2 * model.hidden if kind == "DecoderBlock" else 0.0
        forward_flops = 0.0 if kind == "LayerNorm" else (products + attention) / divided
        kept = size.activation_memory * _FLOAT_BYTES / divided
        layers.append(
            LayerProfile(
                name=f"layer{index}",
                kind=kind,
                num_parameters=parameters // divided,
                forward_flops=forward_flops,
                backward_flops=2 * forward_flops,
                activation_bytes=kept,
                output_bytes=size.output * _FLOAT_BYTES,
                memory_traffic_bytes=_TRAFFIC_OVER_KEPT * kept,
                sparse_parameters=parameters // divided if kind == "Embedding" else 0,
            )
        )
    return tuple(layers)


def _kinds(model: PublishedModel, num_layers: int) -> Sequence[str]:
    blocks = num_layers - 1 - len(model.last_kinds)
    return ("Embedding", *("DecoderBlock",) * blocks, *model.last_kinds)
