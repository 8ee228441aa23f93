"""Libraries get one thread each, in tests and in the processes that these start.

Two processes with tests, each with a thread for each core, wait for each other's threads most of
the time. What is set here is read when numpy and torch are loaded.
"""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
