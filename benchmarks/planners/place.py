"""Wall-clock seconds of the whole process `heterps place` on a saved profile, with a warm cache.

    python benchmarks/planners/place.py
    python benchmarks/planners/place.py --quick --json place.json

Each case starts a new process. The bare interpreter and the import of numba alone run in between,
so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from benchmarks.shared.common import interleaved_medians, parse_options, report

CASES = (("llama-7b", "a100-v100-t4"), ("llama-7b", "eight-types"), ("resnet-152", "a100-v100"))
HEAVY = ("torch", "stable_baselines3", "sb3_contrib", "gymnasium", "matplotlib")


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    commands = {
        f"place {model} on {cluster}": ["-m", "heterps", "place", model, "-c", cluster, "--json"]
        for model, cluster in CASES
    }
    commands["import numba"] = ["-c", "import numba"]
    commands["bare interpreter"] = ["-c", "pass"]
    medians = interleaved_medians(
        {name: partial(run, arguments) for name, arguments in commands.items()},
        repeats=3 if options.quick else 11,
    )
    rows = [{"process": name, "wall_s": seconds} for name, seconds in medians.items()]
    summary = {
        "place_llama_7b_on_a100_v100_t4_wall_s": medians["place llama-7b on a100-v100-t4"],
        "heavy_modules_imported": ", ".join(heavy_imports()) or "none",
    }
    report("Start-up and planning, whole process", rows, summary, options)


def run(arguments: list[str]) -> None:
    """One process of this interpreter, its output thrown away."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def heavy_imports() -> list[str]:
    """Which heavy libraries a `place` has loaded at its end."""
    code = (
        "import sys, json, io, contextlib\n"
        "from heterps.cli.app import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main(['place', 'llama-7b', '-c', 'a100-v100-t4', '--json'])\n"
        "    except SystemExit: pass\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


if __name__ == "__main__":
    main()
