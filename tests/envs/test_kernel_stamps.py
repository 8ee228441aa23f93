"""Kernels are kept between processes, until something changes that they were compiled from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

INNER = """
from heterps_envs.compiled import checked

@checked
def inner(value: float) -> float:
    return value + {summand}
"""
LIMITS = "import numpy as np\n\nFACTORS = np.array([1.0, {factor}])\n"
OUTER = """
from inner import inner
from limits import FACTORS
from heterps_envs.compiled import checked

@checked
def outer(value: float) -> float:
    return middle(value) * 10.0

@checked
def middle(value: float) -> float:
    return inner(value) * sum([FACTORS[place] for place in (0, 1)])
"""
PROGRAM = """
import json
from numba.core import event
from outer import outer

with event.install_recorder("numba:compile") as recorder:
    value = outer(1.0)
print(json.dumps([value, len(recorder.buffer)]))
"""


def test_a_kept_kernel_is_compiled_anew_where_what_it_calls_or_reads_has_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(summand=1.0))
    (tmp_path / "limits.py").write_text(LIMITS.format(factor=1.0))
    assert _in_new_process(tmp_path) == (40.0, True)
    assert _in_new_process(tmp_path) == (40.0, False)
    (tmp_path / "inner.py").write_text(INNER.format(summand=2.0))
    assert _in_new_process(tmp_path) == (60.0, True)
    (tmp_path / "limits.py").write_text(LIMITS.format(factor=2.0))
    assert _in_new_process(tmp_path) == (90.0, True)
    assert _in_new_process(tmp_path) == (90.0, False)


def _in_new_process(folder: Path) -> tuple[float, bool]:
    """What the kernel returns there, and whether any was compiled."""
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder, env=variables, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    value, compiled = json.loads(done.stdout)
    return value, compiled > 0
