"""Measures every layer of a model on one device: seconds with their spread, and bytes.

Each distinct layer is timed inside windows of neighbouring layers that run as stages do
(`heterps_runtime.profiling.layer_timing`). Rounds visit all windows and sizes in random order, so
that a drift of the machine does not fall on one layer; medians (`medians`) are over all rounds.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_runtime.process.allocator import keep_freed_memory
from heterps_runtime.profiling.layer_timing import Window, measure_overhead
from heterps_runtime.profiling.medians import measurement_of
from heterps_runtime.profiling.observed_stage import ObservedModel
from heterps_runtime.profiling.samples import (
    ProfileSamples,
    Settings,
    SizeSamples,
)
from heterps_runtime.profiling.windows import (
    MEMORY_SHARE,
    Range,
    WindowLimits,
    choose_windows,
    free_bytes,
    grouped,
    layer_bytes,
    overhead_stages,
)

# The first visits fetch memory from the system and fill caches.
NUM_WARM_UPS = 3
MIN_REPEATS = 3

Progress = Callable[[int, int, str], None]


class Conditions(NamedTuple):
    """What is measured under, and how thoroughly.

    Attributes:
        dtype: Format of parameters and activations.
        optimizer: Whose step is measured.
        device: `cpu` or `cuda:N`.
        num_threads: Of one process on a CPU; restored afterwards.
        repeats: Rounds, at least 3; each gives several passes of every layer.
        layer_limit_s: A window stops earlier, after 3 rounds, when its rounds have taken this long
            for each distinct layer in it.
    """

    dtype: Dtype = "float32"
    optimizer: Optimizer = "adamw"
    device: str = "cpu"
    num_threads: int = 1
    repeats: int = 15
    layer_limit_s: float = 3.0


USUAL = Conditions()


def measure(
    profile: ModelProfile,
    device_type: str,
    micro_batch_sizes: Sequence[int],
    conditions: Conditions = USUAL,
    *,
    partial: Path | None = None,
    progress: Progress | None = None,
) -> ModelProfile:
    """Adds measurements to a profile; older ones of the same type, size and dtype are replaced.

    Args:
        profile: With its `source`.
        device_type: Name that plans and clusters know the device by.
        micro_batch_sizes: One measurement for each.
        conditions: Of the measuring.
        partial: File that gets the samples as they come; where it exists, the measuring goes on
            from it. Deleted when all is measured.
        progress: Called with (done, total, layers) before each visit of a window and at the end.

    Returns:
        The profile with one more `Measurement` for each micro-batch size.

    Raises:
        HeterpsError: The profile has no source, the device does not exist, or `partial` is of other
            settings.
    """
    if profile.source is None:
        raise HeterpsError(f"{profile.name}: has no source to build the model from")
    dtype, optimizer, device, num_threads, *_ = conditions
    check_device(device)
    settings = Settings(
        model=profile.name, layers=profile.layers_fingerprint(), device=device,
        device_type=device_type, dtype=dtype, optimizer=optimizer, num_threads=num_threads,
        host=host_text(device, num_threads),
    )  # fmt: skip
    samples = ProfileSamples.resumed(partial, settings)
    run = _Measuring(profile, micro_batch_sizes, samples, conditions, partial, progress)
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    keep_freed_memory()
    try:
        run.run()
    finally:
        torch.set_num_threads(threads)
    added = [
        measurement_of(samples.sizes[size], size, dtype, settings) for size in micro_batch_sizes
    ]
    if partial is not None:
        partial.unlink(missing_ok=True)
    replaced = {(entry.device_type, entry.micro_batch_size, entry.dtype) for entry in added}
    kept = [
        entry
        for entry in profile.measurements
        if (entry.device_type, entry.micro_batch_size, entry.dtype) not in replaced
    ]
    return profile.changed(measurements=(*kept, *added))


class _Measuring:
    """All visits of a profile, in their order."""

    def __init__(
        self,
        profile: ModelProfile,
        sizes: Sequence[int],
        samples: ProfileSamples,
        conditions: Conditions,
        partial: Path | None,
        progress: Progress | None,
    ) -> None:
        self._profile, self._sizes, self._conditions = profile, tuple(sizes), conditions
        self._samples, self._partial = samples, partial
        self._repeats = max(conditions.repeats, MIN_REPEATS)
        self._limit_s = conditions.layer_limit_s
        self._progress = progress or (lambda done, total, text: None)
        self._distinct = profile.first_equal_layers()
        for size in sizes:
            samples.sizes.setdefault(size, SizeSamples(distinct=self._distinct))
        self._spent_s: dict[str, float] = {}
        self._num_done = 0

    def run(self) -> None:
        """Measures what is missing."""
        dtype, device = self._conditions.dtype, self._conditions.device
        profile, largest = self._profile, max(self._sizes)
        limits = WindowLimits.of(device)
        windows = choose_windows(profile, largest, dtype, limits)
        bytes_of = [
            sum(layer_bytes(profile, i, largest, dtype) for i in range(first, last + 1))
            for first, last in windows
        ]
        budget = MEMORY_SHARE * free_bytes(device)
        stages = overhead_stages(profile, largest, dtype, limits)
        self._total = len(self._sizes) * (len(windows) * (self._repeats + 1) + len(stages))
        model = ObservedModel.of(profile, self._sizes[0], dtype, device)
        for size in self._sizes:
            crossing = tuple(len(layer.crossing) for layer in model.layers)
            self._samples.sizes[size].crossing = crossing
        for group in grouped(windows, bytes_of, budget):
            self._visit_group(model, group)
        for size in self._sizes:
            for first, last in stages:
                name = f"{size} stage {first}-{last}"
                if self._begin(name, f"{self._text((first, last))}, beside the layers"):
                    measure_overhead(
                        model, first, last, size, self._samples.sizes[size], self._limit_s
                    )
                    self._finish(name)
        self._progress(self._total, self._total, "")

    def _visit_group(self, model: ObservedModel, group: Sequence[Range]) -> None:
        """Rounds over all windows and sizes, in random order."""
        turns = [(window, size) for window in group for size in self._sizes]
        rounds = range(self._repeats)
        names = [_name(size, window, part) for window, size in turns for part in ("bytes", *rounds)]
        if self._samples.done.issuperset(names):
            self._num_done += len(names)
            return
        optimizer = self._conditions.optimizer
        built = {window: Window(model, *window, optimizer) for window in group}
        order = random.Random(0)
        for _ in range(NUM_WARM_UPS):
            for window, size in order.sample(turns, len(turns)):
                self._progress(self._num_done, self._total, f"{self._text(window)}, warm-up")
                built[window].visit(size, None)
        for window, size in turns:
            name = _name(size, window, "bytes")
            if self._begin(name, self._text(window)):
                built[window].weigh(size, self._samples.sizes[size])
                built[window].visit(size, None)
                self._finish(name)
        for number in rounds:
            for window, size in order.sample(turns, len(turns)):
                self._visit(built[window], window, size, number)

    def _visit(self, built: Window, window: Range, size: int, number: int) -> None:
        name, turn = _name(size, window, number), _name(size, window, "")
        if not self._begin(name, self._text(window)):
            return
        limit_s = self._limit_s * len(set(self._distinct[window[0] : window[1] + 1]))
        spent_s = self._spent_s.get(turn, 0.0)
        if number < MIN_REPEATS or spent_s < limit_s:
            started = time.perf_counter()
            built.visit(size, self._samples.sizes[size])
            self._spent_s[turn] = spent_s + time.perf_counter() - started
        self._finish(name)

    def _begin(self, name: str, text: str) -> bool:
        """Shows the progress; whether this is still to be measured."""
        self._progress(self._num_done, self._total, text)
        if name in self._samples.done:
            self._num_done += 1
            return False
        return True

    def _finish(self, name: str) -> None:
        self._samples.done.add(name)
        self._num_done += 1
        self._samples.write(self._partial)

    def _text(self, window: Range) -> str:
        first, last = (self._profile.layers[index].name for index in window)
        return first if first == last else f"{first} .. {last}"


def _name(size: int, window: Range, part: int | str) -> str:
    return f"{size} layers {window[0]}-{window[1]} {part}"


def check_device(device: str) -> None:
    """Refuses a device that is not here.

    Raises:
        HeterpsError: With PyTorch's reason.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise HeterpsError(f"device {device!r} cannot be used here: {reason}") from None


def host_text(device: str, num_threads: int) -> str:
    """What was measured on, without the name of the machine."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {num_threads} thread(s), torch {torch.__version__}"
