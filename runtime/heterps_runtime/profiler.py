"""Measures the seconds of every layer on one device.

Each distinct layer runs alone, as a stage of one layer on random tensors; layers of equal kind and
equal sizes share one measurement. Times are medians. What a stage does besides its layers (masks,
rotary tables) is left out of them.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from heterps_configs.document import Dtype
from heterps_configs.errors import HeterpsError
from heterps_configs.job import Optimizer
from heterps_configs.model_profile import LayerProfile, Measurement, ModelProfile, ModelSource
from heterps_runtime.data import make_batch
from heterps_runtime.losses import loss_sum
from heterps_runtime.optimizer import build_optimizer
from heterps_runtime.stage import StageModule, build_stage

NUM_WARM_UPS = 2
MIN_REPEATS = 3

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LayerSeconds:
    """Medians for one layer and one micro-batch."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass
class _Samples:
    """Seconds of repeated passes."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    optimizer_s: list[float] = field(default_factory=list)

    def medians(self) -> LayerSeconds:
        return LayerSeconds(
            median(self.forward_s), median(self.backward_s), median(self.optimizer_s)
        )


def measure(
    profile: ModelProfile,
    device_type: str,
    micro_batch_sizes: Sequence[int],
    dtype: Dtype = "float32",
    *,
    optimizer: Optimizer = "adamw",
    device: str = "cpu",
    num_threads: int = 1,
    repeats: int = 7,
    layer_limit_s: float = 3.0,
    progress: Progress | None = None,
) -> ModelProfile:
    """Adds measurements to a profile; older ones of the same type, size and dtype are replaced.

    Args:
        profile: With its `source`.
        device_type: Name that plans and clusters know the device by.
        micro_batch_sizes: One measurement for each.
        dtype: Format of parameters and activations.
        optimizer: Whose step is measured.
        device: `cpu` or `cuda:N`.
        num_threads: Of one process on a CPU; restored afterwards.
        repeats: Passes that the median is taken over, at least 3.
        layer_limit_s: A layer stops earlier, after 3 passes, when it has taken this long.
        progress: Called with (done, total, layer name) before each distinct layer and at the end.

    Returns:
        The profile with one more `Measurement` for each micro-batch size.

    Raises:
        HeterpsError: The profile has no source, or the device does not exist.
    """
    if profile.source is None:
        raise HeterpsError(f"{profile.name}: has no source to build the model from")
    _check_device(device)
    distinct = _distinct_layers(profile)
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        seconds: dict[tuple[Any, ...], list[LayerSeconds]] = {}
        for done, (key, index) in enumerate(distinct.items()):
            if progress is not None:
                progress(done, len(distinct), profile.layers[index].name)
            seconds[key] = _measure_layer(
                profile, profile.source, index, micro_batch_sizes, dtype, optimizer, device,
                max(repeats, MIN_REPEATS), layer_limit_s,
            )  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    if progress is not None:
        progress(len(distinct), len(distinct), "")
    added = [
        _measurement(
            [seconds[_signature(layer)][number] for layer in profile.layers],
            device_type, size, dtype, _host(device, num_threads),
        )
        for number, size in enumerate(micro_batch_sizes)
    ]  # fmt: skip
    replaced = {(entry.device_type, entry.micro_batch_size, entry.dtype) for entry in added}
    kept = [
        entry
        for entry in profile.measurements
        if (entry.device_type, entry.micro_batch_size, entry.dtype) not in replaced
    ]
    return profile.model_copy(update={"measurements": (*kept, *added)})


def _signature(layer: LayerProfile) -> tuple[Any, ...]:
    """Layers with equal signatures cost the same.

    What crosses the cut behind a layer is no part of it: some of that may only pass by.
    """
    differing = {"name", "tied_to", "tied_parameters", "output_bytes"}
    return tuple(layer.model_dump(exclude=differing).values())


def _distinct_layers(profile: ModelProfile) -> dict[tuple[Any, ...], int]:
    """The first layer of each signature."""
    found: dict[tuple[Any, ...], int] = {}
    for index, layer in enumerate(profile.layers):
        found.setdefault(_signature(layer), index)
    return found


def _measure_layer(
    profile: ModelProfile,
    source: ModelSource,
    index: int,
    micro_batch_sizes: Sequence[int],
    dtype: Dtype,
    optimizer: Optimizer,
    device: str,
    repeats: int,
    limit_s: float,
) -> list[LayerSeconds]:
    """Medians for each micro-batch size."""
    stage = build_stage(
        source, profile, index, index, micro_batch_sizes[0], 0, dtype=dtype, device=device
    )
    timer = _Timer(stage, device)
    parameters = [p for p in stage.parameters_by_name().values() if p.requires_grad]
    stepper = build_optimizer(optimizer, parameters)
    results = []
    for size in micro_batch_sizes:
        inputs, target = make_batch(source, 0, size, seed=0)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        samples, started = _Samples(), time.perf_counter()
        for number in range(NUM_WARM_UPS + repeats):
            forward_s, backward_s = _one_pass(
                stage, timer, source, size, inputs, target.to(device), device
            )
            optimizer_s = timer.seconds(stepper.step) if stepper is not None else 0.0
            stage.zero_grad()
            if number >= NUM_WARM_UPS:
                samples.forward_s.append(forward_s)
                samples.backward_s.append(backward_s)
                samples.optimizer_s.append(optimizer_s)
            enough = len(samples.forward_s) >= MIN_REPEATS
            if enough and time.perf_counter() - started > limit_s:
                break
        results.append(samples.medians())
    return results


def _one_pass(
    stage: StageModule,
    timer: _Timer,
    source: ModelSource,
    size: int,
    inputs: dict[str, Tensor],
    target: Tensor,
    device: str,
) -> tuple[float, float]:
    """Seconds of one forward and one backward pass; the loss belongs to the last layer."""
    received = tuple(
        (
            torch.randn(spec.shape, dtype=spec.dtype, device=device)
            if spec.dtype.is_floating_point
            else torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        ).requires_grad_(spec.requires_grad)
        for spec in stage.specs(size)[0]
    )

    def run() -> list[Tensor]:
        outputs = stage(inputs, received)
        if stage.is_last:
            return [loss_sum(source, outputs[0], target)]
        return [tensor for tensor in outputs if tensor.requires_grad]

    forward_s, roots = timer.forward(run)
    gradients = [torch.ones_like(root) for root in roots]
    if not roots:
        return forward_s, 0.0
    return forward_s, timer.seconds(lambda: torch.autograd.backward(roots, gradients))


class _Timer:
    """A stopwatch for a device; a forward pass counts from the stage's first unit on."""

    def __init__(self, stage: StageModule, device: str) -> None:
        self._device = torch.device(device)
        self._started: Any = None
        stage.first_unit.register_forward_pre_hook(self._start_once)

    def forward(self, run: Callable[[], list[Tensor]]) -> tuple[float, list[Tensor]]:
        """Seconds of the stage's own layers in a forward pass, and its result."""
        self._started = None
        self._synchronize()
        result = run()
        assert self._started is not None
        return self._since(self._started), result

    def seconds(self, run: Callable[[], object]) -> float:
        """Seconds of a call."""
        self._synchronize()
        started = self._now()
        run()
        return self._since(started)

    def _start_once(self, *_: object) -> None:
        if self._started is None:
            self._started = self._now()

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since(self, started: Any) -> float:
        ended = self._now()
        if self._device.type != "cuda":
            return float(ended - started)
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1000

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _measurement(
    seconds: list[LayerSeconds], device_type: str, size: int, dtype: Dtype, host: str
) -> Measurement:
    return Measurement(
        device_type=device_type,
        micro_batch_size=size,
        dtype=dtype,
        date=datetime.date.today().isoformat(),
        host=host,
        forward_s=tuple(_rounded(entry.forward_s) for entry in seconds),
        backward_s=tuple(_rounded(entry.backward_s) for entry in seconds),
        optimizer_s=tuple(_rounded(entry.optimizer_s) for entry in seconds),
    )


def _rounded(seconds: float) -> float:
    """Five significant digits; a clock does not give more."""
    return float(f"{seconds:.5g}")


def _check_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise HeterpsError(f"device {device!r} cannot be used here: {reason}") from None


def _host(device: str, num_threads: int) -> str:
    """What was measured on, without the name of the machine."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {num_threads} thread(s), torch {torch.__version__}"
