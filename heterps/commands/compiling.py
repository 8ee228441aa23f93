"""`heterps compile`: compiles beforehand what would make the first use slow."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from heterps.planning.warm_up import PARTS, compile_part
from heterps.reports.console import remarks, seconds_text


def run_compile() -> None:
    """Compiles in two processes; what is compiled already is only read."""
    started = time.perf_counter()
    with (
        remarks.status("compiling kernels, some minutes"),
        ProcessPoolExecutor(2, get_context("spawn"), _collect_rarely) as pool,
    ):
        list(pool.map(compile_part, PARTS))
    remarks.print(f"kernels are compiled ({seconds_text(time.perf_counter() - started)})")


def _collect_rarely() -> None:
    """A compiler's many small objects live on: looking for garbage takes a tenth of it."""
    gc.set_threshold(50_000, 20, 20)
