"""Section `passes`: whole passes that nobody observes, beside the layer times of a profile.

    python -m benchmarks.gpu.passes

One stage that holds the whole model. `observed`: layer by layer, as a profile does; `alone`: passes
with the device at rest before and after; `in a row`: forward and backward passes one after another,
as a step has them; `host`: until all is launched; `busy`: what the GPU's kernels take. A profile is
right where its sum is what a pass in a row takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cases import Rows, is_wanted, run_section
from heterps_configs.documents.base import Dtype
from heterps_configs.library import load_profile
from heterps_runtime.models.data import make_batch
from heterps_runtime.profiling.observed_stage import ObservedModel, ObservedStage, Pass

CASES: tuple[tuple[str, Dtype, int], ...] = (("gpt2", "bfloat16", 4), ("gpt2", "bfloat16", 16))
QUICK_CASES: tuple[tuple[str, Dtype, int], ...] = (("llama-tiny", "float32", 4),)
ROUNDS, IN_A_ROW = 8, 8


def passes(options: argparse.Namespace) -> Rows:
    """One row for each model and size."""
    rows: Rows = []
    for name, dtype, size in QUICK_CASES if options.quick else CASES:
        if not is_wanted(f"{name}-{size}", options):
            continue
        stage = _Whole(name, dtype, size, options.device)
        times = [stage.round() for _ in range(2 + ROUNDS)][2:]
        rows.append(
            {
                "model": name,
                "micro_batch_size": size,
                **{key: statistics.median(t[key] for t in times) for key in times[0]},
                **({"busy_s": stage.busy_s()} if stage.stage.is_cuda else {}),
            }
        )
    return rows


class _Whole:
    """The whole model as one stage."""

    def __init__(self, name: str, dtype: Dtype, size: int, device: str) -> None:
        profile = load_profile(name)
        model = ObservedModel.of(profile, size, dtype, device)
        self.stage = ObservedStage(model, 0, profile.num_layers - 1)
        self._watch, self._size = self.stage.watch, size
        inputs, target = make_batch(model.source, 0, size, seed=0)
        self._inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        self._target = target.to(device)

    def round(self) -> dict[str, float]:
        """Seconds of each kind of pass."""
        self.stage.is_observed = True
        self._watch.synchronize()
        observed = self._backward(self._forward())
        self._watch.synchronize()
        self.stage.is_observed = False
        began_s = time.perf_counter()
        alone = self._forward()
        forward_host_s = time.perf_counter() - began_s
        self._watch.synchronize()
        began_s = time.perf_counter()
        self._backward(alone)
        backward_host_s = time.perf_counter() - began_s
        self._watch.synchronize()
        began_s = time.perf_counter()
        for _ in range(IN_A_ROW):
            self._backward(self._forward())
        self._watch.synchronize()
        row_s = (time.perf_counter() - began_s) / IN_A_ROW
        began_s = time.perf_counter()
        for made in [self._forward() for _ in range(IN_A_ROW // 2)]:
            self._backward(made)
        self._watch.synchronize()
        return {
            "observed_forward_s": sum(observed.forward.layer_seconds(self._watch).values()),
            "observed_backward_s": sum(observed.backward.layer_seconds(self._watch).values()),
            "alone_forward_s": alone.forward.total_s(self._watch),
            "alone_backward_s": alone.backward.total_s(self._watch),
            "forward_host_s": forward_host_s,
            "backward_host_s": backward_host_s,
            "in_a_row_s": row_s,
            "forwards_first_s": (time.perf_counter() - began_s) / (IN_A_ROW // 2),
        }

    def busy_s(self) -> float:
        """Of the kernels of one forward and one backward pass."""
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            self._backward(self._forward())
            self._watch.synchronize()
        # The operations that launch kernels have their time, too: each would count twice.
        kernel = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]
        kernels = [event for event in trace.key_averages() if event.device_type == kernel]
        total: Any = sum(event.self_device_time_total for event in kernels)
        return float(total) / 1e6

    def _forward(self) -> Pass:
        return self.stage.run_forward(self._inputs, self._target, ())

    def _backward(self, made: Pass) -> Pass:
        gradients = [torch.ones_like(root) for root in made.roots]
        self.stage.run_backward(made, gradients, all_of_it=True)
        return made


if __name__ == "__main__":
    run_section(__doc__ or "", [passes])
