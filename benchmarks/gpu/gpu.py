"""What heterps does on a machine with one NVIDIA GPU: profiles, runs, messages, training.

    python benchmarks/gpu/gpu.py --folder gpu-results
    python benchmarks/gpu/gpu.py --folder gpu-results --only profiles,runs
    python benchmarks/gpu/gpu.py --folder gpu-results --device cpu --quick

Every section is a process of its own, so that one that fails costs the others nothing; its rows are
in FOLDER/SECTION.json, what it printed in FOLDER/SECTION.log. With `--device cpu` everything but
`messages` runs without a GPU, which checks the benchmark and measures nothing.

The kernels of planners are compiled for minutes; nothing here needs them, so the sections run with
numba switched off, but for `start`, which places a model as a user does.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report

# Sections and the seconds that each may take.
SECTIONS = {
    "host_time": 90,
    "passes": 120,
    "large": 150,
    "runs": 300,
    "profiles": 400,
    "training": 200,
    "parity": 200,
    "mixed": 200,
    "messages": 90,
    "start": 400,
}


def main() -> None:
    """Runs the sections and prints what they found."""
    options = parse_options(
        __doc__ or "",
        only="sections, with commas between: " + ", ".join(SECTIONS),
        folder="folder of the results; gpu-results by default",
        device="cuda:0 by default",
        beside="sections that run beside the others, such as start",
    )
    folder = Path(options.folder or "gpu-results")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    unknown = sorted(set(wanted) - set(SECTIONS))
    if unknown:
        sys.exit(f"error: unknown section {', '.join(unknown)}; known: {', '.join(SECTIONS)}")
    beside = options.beside.split(",") if options.beside else []
    running = {name: _begin(name, folder, options) for name in wanted if name in beside}
    rows = []
    for name in wanted:
        process = running.pop(name, None) or _begin(name, folder, options)
        rows.append(_end(name, process, folder))
    report("Sections", rows, {}, argparse.Namespace(json=folder / "sections.json"))


def _begin(name: str, folder: Path, options: argparse.Namespace) -> tuple[Any, float]:
    command = [
        sys.executable,
        "-m",
        f"benchmarks.gpu.{name}",
        "--json",
        str(folder / f"{name}.json"),
    ]
    command += ["--device", options.device or "cuda:0", *(["--quick"] if options.quick else [])]
    environment = dict(os.environ)
    if name != "start":
        environment["NUMBA_DISABLE_JIT"] = "1"
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    return process, time.perf_counter()


def _end(name: str, begun: tuple[Any, float], folder: Path) -> dict[str, Any]:
    process, began_s = begun
    try:
        code = process.wait(SECTIONS[name])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    seconds = time.perf_counter() - began_s
    lines = (folder / f"{name}.log").read_text().splitlines()
    print(f"--- {name}: exit code {code}, {seconds:.0f} s", flush=True)
    for line in lines[-60 if code else -25 :]:
        print(line[:300], flush=True)
    return {"section": name, "exit_code": code, "seconds": seconds}


if __name__ == "__main__":
    main()
