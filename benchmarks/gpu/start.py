"""Section `start`: what a user types first, on a machine with a GPU.

python -m benchmarks.gpu.start
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.gpu.cases import Rows, device_type, run_section

# The first `place` compiles, the second does not.
COMMANDS = (
    ("--version",),
    ("doctor",),
    ("list", "models"),
    ("discover",),
    ("profile", "llama-tiny", "--device", "{device}", "--device-type", "{type}"),
    ("place", "llama-7b", "-c", "h100-pod"),
    ("place", "llama-7b", "-c", "h100-pod"),
)
LIMIT_S = 300.0


def commands(options: argparse.Namespace) -> Rows:
    """Each command with its seconds, exit code and the end of what it said."""
    rows: Rows = []
    for command in COMMANDS[: 4 if options.quick else None]:
        names = {"device": options.device, "type": device_type(options).name}
        words = [word.format(**names) for word in command]
        began_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "heterps", *words],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        rows.append(
            {
                "what": "heterps " + " ".join(words),
                "exit_code": done.returncode,
                "seconds": time.perf_counter() - began_s,
                "said": (done.stdout + done.stderr)[-1500:],
            }
        )
        print(rows[-1]["what"], done.returncode, done.stdout[-1500:], done.stderr[-1500:])
    return rows


if __name__ == "__main__":
    run_section(__doc__ or "", [commands])
