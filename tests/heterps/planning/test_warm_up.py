"""A planner that was warmed up compiles and loads nothing more: its seconds are its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: others have loaded kernels. The exact solver gives up on eight types.
CODE = """
import gc
from numba.core.dispatcher import Dispatcher
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
def loaded():
    kernels = [entry for entry in gc.get_objects() if isinstance(entry, Dispatcher)]
    return {(kernel.__name__, str(each)) for kernel in kernels for each in kernel.signatures}
warm_up(planner_named("auto"), "throughput")
before = loaded()
assert before
problems = (("llama-7b", "a100-v100-t4"), ("resnet-50", "eight-types"), ("llama-7b", "h100-pod"))
for model, cluster in problems:
    problem = load_problem(model, cluster)
    place(problem, "auto", effort="fast")
    place(problem, "auto", budget=Budget(cpu_seconds=3))
print({name for name, _ in loaded() - before})
"""


@pytest.mark.slow
def test_auto_loads_no_kernel_after_its_warm_up() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
