"""The earliest-finish rule for graphs: the field's list scheduling heuristic, and every start."""

from __future__ import annotations

import numpy as np

from heterps_agents.planner import Budget
from heterps_envs.graph_earliest_finish import earliest_finish_placements
from heterps_envs.graph_problem import GraphTables, Placement, pack_graphs


def earliest_finish(
    tables: GraphTables, budget: Budget | None = None, by_rank: bool = False
) -> Placement | None:
    """Each node on the device that ends its forward pass first, as HEFT does.

    The nodes come in their own order, in which the simulator runs them, or in that of HEFT's upward
    ranks (Topcuoglu, Hariri and Wu, 2002). See `heterps_envs.graph_earliest_finish`.

    Args:
        tables: The problem.
        budget: Charged with one evaluation.
        by_rank: In the order of upward ranks.

    Returns:
        (V,) int16; None if no placement was found that fits.

    Raises:
        HeterpsError: A node can run on no device.
    """
    if budget is not None:
        budget.spend()
    step_time_s, devices = earliest_finish_placements(pack_graphs([tables]), by_rank)
    return devices[0] if np.isfinite(step_time_s[0]) else None
