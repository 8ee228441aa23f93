"""A planner that was warmed up compiles and loads nothing more: its seconds are its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heterps.planning import warm_up as warm_up_module
from heterps_agents.interface.planner import Planner
from heterps_agents.interface.registry import planner_named
from heterps_envs.problem import Problem

# In a process of its own: others have loaded kernels. The exact solver gives up on eight types;
# on equal devices in islands, and with some seconds, others are asked that nothing else needs.
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
place(load_problem("gpt2", "a100-v100"), "auto", effort="fast")
limits = ("gpt2", "a100-v100", 0.5), ("resnet-50", "eight-types", 1), ("llama-7b", "h100-pod", 1.5)
for model, cluster, cpu_seconds in limits:
    place(load_problem(model, cluster), "auto", budget=Budget(cpu_seconds=cpu_seconds))
print({name for name, _ in loaded() - before})
"""


@pytest.mark.slow
def test_auto_loads_no_kernel_after_its_warm_up() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


def test_a_planner_is_warmed_up_once_for_each_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def placed(problem: Problem, planner: Planner, **options: object) -> None:
        asked.append((planner.name, problem.job.objective))

    monkeypatch.setattr(warm_up_module, "place", placed)
    monkeypatch.setattr(warm_up_module, "_WARM", set())
    for _ in range(2):
        warm_up_module.warm_up(planner_named("even"), "throughput")
    warm_up_module.warm_up(planner_named("greedy"), "throughput")
    warm_up_module.warm_up(planner_named("even"), "price")
    assert asked == [("even", "throughput"), ("greedy", "throughput"), ("even", "price")]


def test_of_all_that_auto_uses_the_policy_alone_is_asked_of_many_kinds_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There the rest of `auto` loads nothing more, and takes seconds."""
    asked: list[tuple[str, int]] = []

    def placed(problem: Problem, planner: Planner, **options: object) -> None:
        asked.append((planner.name, len(problem.classes)))

    monkeypatch.setattr(warm_up_module, "place", placed)
    monkeypatch.setattr(warm_up_module, "_WARM", set())
    warm_up_module.warm_up(planner_named("auto"), "throughput")
    assert [name for name, num_kinds in asked if num_kinds > 2] == ["ppo"]
    assert ("auto", 2) in asked
