"""A planner's first, unmeasured run: what it imports and compiles is no part of its planning."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from heterps.planning.frontier import frontier
from heterps.planning.place import place
from heterps.planning.place_graph import load_compiled_code
from heterps.planning.strategies import OPEN
from heterps_agents.auto.device_walk import plan_as_clocked
from heterps_agents.auto.others import SLOWER, quick_plan, quick_ways
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.finishing.clock_walk import best_by_clock
from heterps_agents.finishing.simulated_walk import neighbours
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import SECONDS_PER_LAYER, planner_named, system_names
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import with_effort
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.search.greedy import greedy_code
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Objective
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import least_executable_s

# Of all compiled code, two at a time. What the last ones share with the first is there by then.
PARTS = ("policies", "graphs", "training", "systems", "searches")
# Planners whose searches `auto` uses beside the policy.
_OF_AUTO = ("annealing", "genetic", "cross-entropy", "random")
# Enough for greedy, which every search starts from, and for an update of every network.
_EVALUATIONS = 600
# So many kinds of devices that the policy's search goes through all of its parts; and what for.
_LARGER, _LARGER_EFFORT, _LARGER_EVALUATIONS = 8, "fast", 100_000
# Who was warmed up in this process: kind of planner, name, effort, objective.
_WARM: set[tuple[type[Planner], str, str | None, Objective]] = set()
# Of a training: an update of each kind.
_SMALL_NETWORK = {"hidden": 8, "minibatch_size": 32, "evaluation_problems": 2}


def warm_up(planner: Planner, objective: Objective) -> None:
    """Lets one of the planners of this package answer problems of a few layers, once in a process.

    Planners of others are left alone: they may count their calls.

    Args:
        planner: Any planner.
        objective: Of the problem that it is warmed up for; the other one may use other kernels.
    """
    if not type(planner).__module__.startswith("heterps_agents."):
        return
    key = type(planner), planner.name, getattr(planner, "effort", None), objective
    if key in _WARM:
        return
    _WARM.add(key)
    if isinstance(planner, AutoPlanner):
        apart = _tiny_problem(objective, 2, is_apart=True)
        _warm_up_going_on(replace(apart, strategy=OPEN))
        _warm_up_bound(apart)
    for each, problem in _answered(planner, objective):
        # A refusal comes again where it matters.
        with suppress(HeterpsError):
            # Moves on the simulator come after all else that `auto` does.
            is_longer = len(problem.classes) == _LARGER or isinstance(each, AutoPlanner)
            place(problem, each, budget=Budget(_LARGER_EVALUATIONS if is_longer else _EVALUATIONS))


def compile_part(part: str) -> None:
    """Compiles what the commands use first: all that one of `PARTS` needs.

    Args:
        part: One of `PARTS`; each is the work of one process.
    """
    {
        "searches": _warm_up_searches,
        "policies": _warm_up_policies,
        "graphs": _warm_up_graphs,
        "training": _warm_up_training,
        "systems": _warm_up_systems,
    }[part]()


def _warm_up_policies() -> None:
    warm_up(PolicyPlanner(), "throughput")


def _warm_up_graphs() -> None:
    load_compiled_code(None)


def _warm_up_searches() -> None:
    problem = _tiny_problem("throughput", 2)
    for name in ("exact", "auto", *_OF_AUTO):
        place(problem, name, budget=Budget(_LARGER_EVALUATIONS))
    for is_apart in (False, True):
        opened = replace(_tiny_problem("throughput", 2, is_apart=is_apart), strategy=OPEN)
        place(opened, "auto", budget=Budget(_LARGER_EVALUATIONS))
    _warm_up_going_on(problem)
    _warm_up_bound(_tiny_problem("throughput", 2, is_apart=True))
    warm_up_frontier()
    # Why there is no plan is found out by kernels, too.
    job = problem.job.changed(min_throughput_samples_per_s=1e9)
    with suppress(HeterpsError):
        place(replace(problem, job=job), "auto")


def _warm_up_going_on(problem: Problem) -> None:
    """What `auto` needs where it has a limit in time: others that it asks, and walks."""
    for way in quick_ways(problem):
        quick_plan(problem, Budget(_EVALUATIONS), 0, way)
    for name in SLOWER:
        with suppress(HeterpsError):
            planner_named(name).plan(problem, Budget(_EVALUATIONS))
    question = Question.of(problem, Budget())
    code = greedy_code(question)
    if code is not None:
        neighbours(code, question, np.random.default_rng(0))
        best_by_clock(problem, question, [code], 1)
        plan_as_clocked(problem, question, code)


def _warm_up_bound(problem: Problem) -> None:
    """All of the bound: of a plan that is proven at once some of it is never asked."""
    if problem.job.objective != "price":
        least_executable_s(problem)


def _warm_up_systems() -> None:
    for name in system_names():
        warm_up(planner_named(name), "throughput")


def _warm_up_training() -> None:
    # torch and stable-baselines3 take seconds to load, and only this part needs them.
    from heterps_agents.training.train import train

    chains = ChainTrainingConfig(
        total_steps=64,
        layers=(6, 8),
        classes=(2, 3),
        pool_size=8,
        refreshed_per_update=2,
        imitation_passes=1,
        imitation_problems=8,
        imitation_refreshed=2,
        num_environments=4,
        steps_per_update=8,
        curve_problems=1,
        **_SMALL_NETWORK,
    )
    graphs = GraphTrainingConfig(
        problems="graphs",
        total_steps=100,
        nodes=(8, 12),
        devices=(2, 3),
        first_nodes=10,
        node_width=8,
        message_rounds=1,
        problems_per_update=2,
        rollouts=2,
        polish_evaluations=20,
        **_SMALL_NETWORK,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(chains, Path(folder) / "chains")
        train(graphs, Path(folder) / "graphs")
    for name in SECONDS_PER_LAYER:
        warm_up(planner_named(name), "throughput")


def warm_up_frontier() -> None:
    """Lets the exact solver find the frontier of a problem of a few layers."""
    frontier(_tiny_problem("throughput", 2))


def _answered(planner: Planner, objective: Objective) -> Iterator[tuple[Planner, Problem]]:
    """Who answers what, so that all compiled parts of a planner are used."""
    problem = _tiny_problem(objective, 2)
    if isinstance(planner, System) and planner.why_not(problem) is not None:
        problem = _tiny_problem(objective, 1)
    yield planner, problem
    if isinstance(planner, System):
        # Some search only where links are unlike.
        yield planner, _tiny_problem(objective, 2, is_apart=True)
    if isinstance(planner, AutoPlanner):
        # Bounds of sizes of micro-batches, of ways to carry out stages, and of nodes.
        yield planner, replace(problem, strategy=OPEN)
        yield planner, _tiny_problem(objective, 2, is_apart=True)
        for name in _OF_AUTO:
            yield planner_named(name), problem
        # Of the larger problem, too; the rest of `auto` has nothing more to load there.
        yield from _answered(PolicyPlanner(), objective)
    if isinstance(planner, PolicyPlanner):
        yield with_effort(planner, _LARGER_EFFORT), _tiny_problem(objective, _LARGER)


def _tiny_problem(objective: Objective, num_kinds: int, *, is_apart: bool = False) -> Problem:
    """Two layers for each kind of device and one more; four devices, or one of each.

    Args:
        objective: Of the job.
        num_kinds: Of devices.
        is_apart: Whether each kind has a node of its own.
    """
    kinds = [f"kind{index}" for index in range(num_kinds)]
    count = 4 // num_kinds or 1
    layer = {
        "kind": "layer",
        # Of the larger problem a device holds three layers: there are many stages.
        "num_parameters": 20_000_000 if num_kinds == _LARGER else 1000,
        "forward_flops": 1e9,
        "backward_flops": 2e9,
        "activation_bytes": 1000.0,
        "output_bytes": 1000.0,
    }
    types = [
        {
            "name": name,
            "memory_bytes": 10**9,
            "peak_flops_per_s": {"float32": 1e12 * (1 + index)},
            "memory_bandwidth_bytes_per_s": 1e11,
            "price_usd_per_hour": 1.0,
        }
        for index, name in enumerate(kinds)
    ]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
    devices = [
        {"name": f"group{index}", "type": kind, "count": count} for index, kind in enumerate(kinds)
    ]
    cluster = {
        "name": "warm-up",
        "device_types": types,
        "nodes": [
            {"name": f"node{index}", "devices": each, "link": link}
            for index, each in enumerate([[d] for d in devices] if is_apart else [devices])
        ],
        "inter_node_link": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e8} if is_apart else None,
    }
    return Problem(
        ModelProfile(
            name="warm-up",
            layers=tuple(
                LayerProfile.model_validate({"name": f"layer{i}", **layer})
                for i in range(1 + 2 * num_kinds)
            ),
        ),
        Cluster.from_mapping(cluster),
        Job(global_batch_size=4, micro_batch_size=1, dtype="float32", objective=objective),
    )
