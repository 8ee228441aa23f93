"""Section `profiles`: layer times and bytes of shipped models on the GPU, as `heterps profile`.

    python -m benchmarks.gpu.profiles

The profiles are written beside the --json file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.gpu.cases import Rows, device_type, is_wanted, run_section
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.library import load_profile
from heterps_runtime.profiling.profiler import Conditions, measure

SIZES = (1, 4, 16)
CASES: tuple[tuple[str, Dtype], ...] = (
    ("gpt2", "bfloat16"),
    ("llama-7b", "bfloat16"),
    ("resnet-50", "float32"),
    ("bert-large", "bfloat16"),
    ("vit-large", "bfloat16"),
    ("ctr", "float32"),
    ("gpt2", "float32"),
    ("llama-7b", "mixed-bfloat16"),
)
QUICK_CASES: tuple[tuple[str, Dtype], ...] = (("llama-tiny", "float32"),)


def all_profiles(options: argparse.Namespace) -> Rows:
    """One row for each model, format and size of micro-batches."""
    rows: Rows = []
    for name, dtype in QUICK_CASES if options.quick else CASES:
        if not is_wanted(f"{name}-{dtype}", options):
            continue
        began_s = time.perf_counter()
        conditions = Conditions(dtype=dtype, device=options.device, repeats=5, layer_limit_s=0.5)
        profile = measure(load_profile(name), device_type(options).name, SIZES, conditions)
        seconds = time.perf_counter() - began_s
        if options.json:
            folder = Path(options.json).parent
            profile.to_file(folder / f"profile-{name}-{dtype}.yaml")
        found = [
            _row(name, entry, seconds) for entry in profile.measurements if entry.dtype == dtype
        ]
        print(*found, sep="\n", flush=True)
        rows += found
    return rows


def _row(name: str, entry: Measurement, seconds: float) -> dict[str, object]:
    return {
        "model": name,
        "dtype": entry.dtype,
        "micro_batch_size": entry.micro_batch_size,
        "forward_s": sum(entry.forward_s),
        "backward_s": sum(entry.backward_s),
        "optimizer_s": sum(entry.optimizer_s),
        "activation_bytes": sum(entry.activation_bytes),
        "largest_peak_bytes": max(entry.peak_bytes),
        "seconds": seconds,
    }


if __name__ == "__main__":
    run_section(__doc__ or "", [all_profiles])
