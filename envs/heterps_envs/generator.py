"""Random placement problems in real units, for training and held-out sets. Deterministic by seed.

Four families of models meet random clusters: transformers (equal blocks, a heavy embedding and
head), CNNs (activations early, parameters late), click-through-rate models (huge tables that
compute nothing, then a dense tower) and rough ones (every layer drawn on its own). Seconds come
from the roofline idea of `heterps_envs.layer_times`: the slower of arithmetic and memory traffic.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.problem import CostTables

Floats = NDArray[np.float64]

FAMILIES = ("transformer", "cnn", "ctr", "rough")
MICRO_BATCHES = (4, 8, 16, 32, 64)
GPIPE_SHARE = 0.1
# Weight, gradient and AdamW state in reduced precision, with float32 master weights.
STATE_BYTES_PER_PARAMETER = 16.0
BYTES_PER_ELEMENT = 2.0
LINK_BYTES_PER_S = (1.25e9, 3.1e9, 12.5e9, 25e9, 50e9)  # 10 GbE ... 400 Gb/s
WIDE_AREA_SHARE = 0.08
INSIDE_BYTES_PER_S = (1.25e9, 12.5e9, 25e9, 64e9, 300e9)  # 10 GbE, PCIe 3/4/5, NVLink

# The held-out set that curves and tables quote. Its content is frozen by a test.
HELD_OUT_SEED, HELD_OUT_COUNT = 20_261_120, 160


class _Layers(NamedTuple):
    """(L,) of one micro-batch; FLOPs and traffic of the forward pass."""

    flops: Floats
    traffic_bytes: Floats
    parameters: Floats
    activation_bytes: Floats
    output_bytes: Floats


class _Devices(NamedTuple):
    """(T,) of one device of each class."""

    flops_per_s: Floats
    bandwidth_bytes_per_s: Floats
    memory_bytes: Floats
    price_usd_per_hour: Floats


def generate(
    count: int,
    seed: int,
    layers: tuple[int, int] = (8, 32),
    classes: tuple[int, int] = (2, 4),
    count_range: tuple[int, int] = (1, 4),
) -> list[CostTables]:
    """Draws problems; problem i depends on `seed` and i alone, so longer lists extend shorter ones.

    Every layer alone fits on one device of some class. Whether a whole placement exists is not
    promised: about one problem in fifty has none.

    Args:
        count: How many.
        seed: Any non-negative integer.
        layers: Smallest and largest number of layers.
        classes: The same of device classes.
        count_range: The same of devices of one class.
    """
    return [
        _draw(np.random.default_rng([seed, index]), layers, classes, count_range)
        for index in range(count)
    ]


def held_out(count: int = HELD_OUT_COUNT) -> list[CostTables]:
    """The frozen problems (8-32 layers, 2-4 classes) that no training seed draws."""
    return generate(count, HELD_OUT_SEED)


def fingerprint(problems: list[CostTables]) -> str:
    """16 hexadecimal digits of the problems' numbers, at four significant digits."""
    digest = hashlib.sha256()
    for tables in problems:
        for name in CostTables.__dataclass_fields__:
            values = np.atleast_1d(np.asarray(getattr(tables, name), dtype=float)).ravel()
            digest.update(name.encode() + ",".join(f"{value:.3e}" for value in values).encode())
    return digest.hexdigest()[:16]


def _draw(
    rng: np.random.Generator,
    layers: tuple[int, int],
    classes: tuple[int, int],
    count_range: tuple[int, int],
) -> CostTables:
    num_layers = int(rng.integers(layers[0], layers[1] + 1))
    num_classes = int(rng.integers(classes[0], classes[1] + 1))
    model = _MODELS[int(rng.integers(len(FAMILIES)))](rng, num_layers)
    devices = _devices(rng, num_classes)
    device_count = rng.integers(count_range[0], count_range[1] + 1, num_classes)
    forward, backward = _seconds(rng, model, devices)
    state_bytes = model.parameters * STATE_BYTES_PER_PARAMETER
    latency, inverse_bandwidth = _links(rng, num_classes)
    micro_batches, is_gpipe = int(rng.choice(MICRO_BATCHES)), bool(rng.random() < GPIPE_SHARE)
    # In flight in a stage that stands alone, on one device.
    held = micro_batches if is_gpipe else 1
    output_bytes = model.output_bytes.copy()
    output_bytes[-1] = 0.0
    return CostTables(
        num_micro_batches=micro_batches,
        is_gpipe=is_gpipe,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=(2 * state_bytes)[:, None] / (0.7 * devices.bandwidth_bytes_per_s),
        state_bytes=state_bytes,
        gradient_bytes=model.parameters * BYTES_PER_ELEMENT,
        activation_bytes=model.activation_bytes,
        output_bytes=output_bytes,
        device_count=device_count.astype(np.int64),
        memory_bytes=_memory(rng, model, devices, device_count, held),
        price_usd_per_hour=devices.price_usd_per_hour,
        latency_s=latency,
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
    )


def _noise(rng: np.random.Generator, sigma: float, *shape: int) -> Floats:
    return np.exp(sigma * rng.standard_normal(shape))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _transformer(rng: np.random.Generator, num_layers: int) -> _Layers:
    hidden = float(rng.choice([768, 1024, 2048, 4096, 5120, 8192]))
    tokens = _log_uniform(rng, 512, 8192)
    vocabulary = float(rng.choice([32_000, 50_257, 128_256]))
    parameters = np.full(num_layers, 12 * hidden**2)
    flops = 2 * tokens * parameters * rng.uniform(1.0, 1.4)
    activation = np.full(num_layers, 34 * hidden * tokens) * _noise(rng, 0.03, num_layers)
    output = np.full(num_layers, BYTES_PER_ELEMENT * hidden * tokens)
    parameters[0] = parameters[-1] = vocabulary * hidden
    flops[0], activation[0] = 0.0, output[0]
    flops[-1] = 2 * tokens * vocabulary * hidden
    activation[-1] = 3 * BYTES_PER_ELEMENT * vocabulary * tokens
    return _Layers(
        flops, activation + BYTES_PER_ELEMENT * parameters, parameters, activation, output
    )


def _cnn(rng: np.random.Generator, num_layers: int) -> _Layers:
    depth = np.linspace(0, 1, num_layers)
    samples = _log_uniform(rng, 8, 128)
    parameters = 2e4 * np.exp(rng.uniform(3.5, 5.5) * depth) * _noise(rng, 0.4, num_layers)
    output = samples * 1.6e6 * np.exp(-2.5 * depth) * _noise(rng, 0.3, num_layers)
    activation = output * rng.uniform(3, 10) * _noise(rng, 0.3, num_layers)
    flops = samples * 5e8 * _noise(rng, 0.6, num_layers)
    traffic = 2 * activation + BYTES_PER_ELEMENT * parameters
    return _Layers(flops, traffic, parameters, activation, output)


def _ctr(rng: np.random.Generator, num_layers: int) -> _Layers:
    num_tables = max(1, int(num_layers * rng.uniform(0.15, 0.5)))
    samples = _log_uniform(rng, 256, 16_384)
    width = _log_uniform(rng, 256, 4096)
    parameters = width**2 * _noise(rng, 0.5, num_layers)
    flops = 2 * samples * parameters
    output = samples * width * BYTES_PER_ELEMENT * _noise(rng, 0.4, num_layers)
    activation = output * rng.uniform(2, 6)
    traffic = activation + BYTES_PER_ELEMENT * parameters
    tables = slice(0, num_tables)
    parameters[tables] = _log_uniform(rng, 1e7, 4e8) * _noise(rng, 0.7, num_tables)
    flops[tables] = samples * width
    traffic[tables] = samples * width * rng.uniform(4, 64)
    return _Layers(flops, traffic, parameters, activation, output)


def _rough(rng: np.random.Generator, num_layers: int) -> _Layers:
    parameters = _log_uniform(rng, 1e6, 2e8) * _noise(rng, 1.0, num_layers)
    flops = _log_uniform(rng, 1e10, 3e12) * _noise(rng, 1.0, num_layers)
    activation = _log_uniform(rng, 1e7, 1e9) * _noise(rng, 1.0, num_layers)
    output = _log_uniform(rng, 1e6, 5e7) * _noise(rng, 0.8, num_layers)
    traffic = 2 * activation + BYTES_PER_ELEMENT * parameters
    return _Layers(flops, traffic, parameters, activation, output)


_MODELS = (_transformer, _cnn, _ctr, _rough)


def _devices(rng: np.random.Generator, num_classes: int) -> _Devices:
    """Accelerators up to twelve times apart, and now and then a CPU with much memory."""
    slowest, spread = _log_uniform(rng, 8e12, 1.5e14), _log_uniform(rng, 1.2, 12)
    speed = slowest * np.exp(np.log(spread) * rng.random(num_classes))
    bandwidth = 4.5e11 * (speed / 8e12) ** 0.45 * _noise(rng, 0.3, num_classes)
    memory = rng.choice([8.0, 16.0, 24.0, 32.0, 40.0, 80.0], num_classes) * 1e9
    price = 0.4 * (speed / 8e12) ** 0.65 * _noise(rng, 0.3, num_classes)
    is_cpu = rng.random(num_classes) < 0.08
    speed, bandwidth = np.where(is_cpu, 3e12, speed), np.where(is_cpu, 2e11, bandwidth)
    memory, price = np.where(is_cpu, 256e9, memory), np.where(is_cpu, 1.0, price)
    return _Devices(speed, bandwidth, memory, price)


def _seconds(rng: np.random.Generator, model: _Layers, devices: _Devices) -> tuple[Floats, Floats]:
    arithmetic = model.flops[:, None] / (rng.uniform(0.3, 0.6) * devices.flops_per_s)
    traffic = model.traffic_bytes[:, None] / (0.7 * devices.bandwidth_bytes_per_s)
    launch = _log_uniform(rng, 1e-5, 2e-4)
    forward = (np.maximum(arithmetic, traffic) + launch) * _noise(rng, 0.08, *arithmetic.shape)
    return forward, 2 * forward


def _memory(
    rng: np.random.Generator,
    model: _Layers,
    devices: _Devices,
    device_count: NDArray[np.int64],
    held: int,
) -> Floats:
    """Memory that makes the cluster 5 % to 70 % full, and lets every layer stand alone somewhere.

    The sizes keep their ratios; the scale stands for what a shared device leaves free.
    """
    state = model.parameters * STATE_BYTES_PER_PARAMETER
    needed = (state + (held + 1) * model.activation_bytes).sum()
    fullness = _log_uniform(rng, 0.05, 0.7)
    scale = needed / fullness / (devices.memory_bytes * device_count).sum()
    largest = (state + (held + 3) * model.activation_bytes).max()
    scale = max(scale, 1.2 * largest / devices.memory_bytes.max())
    return np.asarray(devices.memory_bytes * scale)


def _links(rng: np.random.Generator, num_classes: int) -> tuple[Floats, Floats]:
    between, latency_s = float(rng.choice(LINK_BYTES_PER_S)), _log_uniform(rng, 5e-6, 2e-4)
    if rng.random() < WIDE_AREA_SHARE:
        between, latency_s = _log_uniform(rng, 1e8, 1.25e9), _log_uniform(rng, 2e-3, 4e-2)
    speed = between * _noise(rng, 0.4, num_classes, num_classes)
    speed = np.minimum(speed, speed.T)
    np.fill_diagonal(speed, rng.choice(INSIDE_BYTES_PER_S, num_classes))
    latency = np.full((num_classes, num_classes), latency_s)
    np.fill_diagonal(latency, _log_uniform(rng, 3e-6, 5e-5))
    return latency, 1 / speed
