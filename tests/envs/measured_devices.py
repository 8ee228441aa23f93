"""Profiles whose measured seconds follow the calibrated roofline with known efficiencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.card_times.families import layer_family
from heterps_envs.layer_costs.calibration import Factors
from heterps_envs.layer_costs.roofline import layer_work

JOB = Job(global_batch_size=64, dtype="float32")
SIZES = (1, 4)


def gpu(name: str, flops_per_s: float, bytes_per_s: float) -> DeviceType:
    return DeviceType(
        name=name,
        memory_bytes=10**12,
        peak_flops_per_s={"float32": flops_per_s},
        memory_bandwidth_bytes_per_s=bytes_per_s,
        price_usd_per_hour=1,
    )


# Bound by arithmetic, in between, and bound by memory.
SLOW = gpu("slow", 10e12, 1e12)
MIDDLE = gpu("middle", 40e12, 1e12)
FAST = gpu("fast", 300e12, 2e12)
TYPES = (SLOW, MIDDLE, FAST)


def layer(name: str, kind: str, flops: float, traffic: float, parameters: int) -> LayerProfile:
    return LayerProfile(
        name=name,
        kind=kind,
        num_parameters=parameters,
        forward_flops=flops,
        backward_flops=2 * flops,
        activation_bytes=1,
        output_bytes=1,
        memory_traffic_bytes=traffic,
    )


LAYERS = (
    layer("first", "Linear", 2e11, 1e9, 10**8),
    layer("block0", "DecoderBlock", 5e10, 3e9, 10**7),
    layer("block1", "DecoderBlock", 5e10, 3e9, 10**7),
    layer("last", "Linear", 1e11, 4e9, 10**8),
)


def measured_profile(
    types: Sequence[DeviceType],
    factors: Mapping[str, Factors],
    speeds: Mapping[str, float] | None = None,
    optimizer_factor: float = 2.0,
) -> ModelProfile:
    """A profile of `LAYERS`, measured on each type at `SIZES`.

    Args:
        types: What was measured.
        factors: Of each family; the backward pass has the same.
        speeds: Factors on all seconds of a type, by its name.
        optimizer_factor: Of the optimizer's bytes over the bandwidth.
    """
    plain = ModelProfile(name="known", layers=LAYERS)
    measurements = []
    for entry in types:
        speed = (speeds or {}).get(entry.name, 1.0)
        for size in SIZES:
            job = JOB.changed(micro_batch_size=size)
            work = layer_work(plain, entry, job)
            forward, backward = (
                tuple(
                    speed * float(factors[layer_family(each.kind)].seconds(part)[index])
                    for index, each in enumerate(LAYERS)
                )
                for part in (work.forward, work.backward)
            )
            measurements.append(
                Measurement(
                    device_type=entry.name,
                    micro_batch_size=size,
                    forward_s=forward,
                    backward_s=backward,
                    optimizer_s=tuple((optimizer_factor * work.optimizer_s).tolist()),
                )
            )
    return plain.changed(measurements=tuple(measurements))
