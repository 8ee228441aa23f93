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
PAIR = """
from typing import NamedTuple

class Pair(NamedTuple):
    {first}: float
    {second}: float
"""
READER = """
from pair import Pair
from heterps_envs.compiled import checked

@checked
def outer(pair: Pair) -> float:
    return pair.large - pair.small
"""
READING = "(__import__('pair').Pair(small=1.0, large=8.0),)"
PROGRAM = """
import json
import sys
from numba.core import event
from outer import outer

with event.install_recorder("numba:compile") as recorder:
    value = outer(*eval(sys.argv[1]))
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


def test_a_named_tuple_with_its_fields_in_another_order_is_read_by_their_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "outer.py").write_text(READER)
    (tmp_path / "pair.py").write_text(PAIR.format(first="large", second="small"))
    assert _in_new_process(tmp_path, READING) == (7.0, True)
    assert _in_new_process(tmp_path, READING) == (7.0, False)
    (tmp_path / "pair.py").write_text(PAIR.format(first="small", second="large"))
    assert _in_new_process(tmp_path, READING) == (7.0, True)


def _in_new_process(folder: Path, argument: str = "(1.0,)") -> tuple[float, bool]:
    """What the kernel returns there, and whether any was compiled."""
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument],
        cwd=folder, env=variables, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    value, compiled = json.loads(done.stdout)
    return value, compiled > 0
