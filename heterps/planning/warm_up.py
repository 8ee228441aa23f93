"""A planner's first, unmeasured run: what it imports and compiles is no part of its planning."""

from __future__ import annotations

from contextlib import suppress

from heterps.planning.place import place
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Objective
from heterps_configs.documents.model_profile import LayerProfile, ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

# Enough for greedy, which every search starts from, and for an update of every network.
_EVALUATIONS = 600


def warm_up(planner: Planner, objective: Objective) -> None:
    """Lets one of the planners of this package answer a problem of three layers.

    Planners of others are left alone: they may count their calls.

    Args:
        planner: Any planner.
        objective: Of the problem that it is warmed up for; the other one may use other kernels.
    """
    if not type(planner).__module__.startswith("heterps_agents."):
        return
    problem = _tiny_problem(objective, ("fast", "slow"))
    if isinstance(planner, System) and planner.why_not(problem) is not None:
        problem = _tiny_problem(objective, ("fast", "fast"))
    # A refusal comes again where it matters.
    with suppress(HeterpsError):
        place(problem, planner, budget=Budget(_EVALUATIONS))


def _tiny_problem(objective: Objective, kinds: tuple[str, str]) -> Problem:
    layer = {
        "kind": "layer",
        "num_parameters": 1000,
        "forward_flops": 1e9,
        "backward_flops": 2e9,
        "activation_bytes": 1000.0,
        "output_bytes": 1000.0,
    }
    types = [
        {
            "name": name,
            "memory_bytes": 10**9,
            "peak_flops_per_s": {"float32": flops_per_s},
            "memory_bandwidth_bytes_per_s": 1e11,
            "price_usd_per_hour": 1.0,
        }
        for name, flops_per_s in (("fast", 2e12), ("slow", 1e12))
    ]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
    devices = [
        {"name": f"group{index}", "type": kind, "count": 2} for index, kind in enumerate(kinds)
    ]
    cluster = {
        "name": "warm-up",
        "device_types": types,
        "nodes": [{"name": "node", "devices": devices, "link": link}],
    }
    return Problem(
        ModelProfile(
            name="warm-up",
            layers=tuple(
                LayerProfile.model_validate({"name": f"layer{i}", **layer}) for i in range(3)
            ),
        ),
        Cluster.from_mapping(cluster),
        Job(global_batch_size=4, micro_batch_size=1, dtype="float32", objective=objective),
    )
