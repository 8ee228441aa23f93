"""The cost tables that bounds are derived from: below every plan that a strategy allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables
from heterps_envs.options.allowed import options_of_any_node
from heterps_envs.options.option import StageOption
from heterps_envs.options.tables import option_tables
from heterps_envs.problem import Problem


def bounding_tables(problem: Problem) -> CostTables:
    """The tables that bounds are derived from: no plan that a strategy allows is below them.

    Where a strategy leaves options open, plans may come from elsewhere than placements: even ones
    that divide nodes otherwise, and those that fit by the simulator alone. So there is an option
    for every degree that some node has room for, links are the fastest, and a layer holds only what
    it holds in any stage: weights, optimizer state, what it saves beside the tensors at its cuts.

    Raises:
        HeterpsError: A strategy allows nothing: no layer is split at its degrees.
    """
    if problem.strategy.is_plain:
        return problem.bounding_tables
    view = problem.views[-1]
    options = options_of_any_node(view, problem.strategy)
    tables = option_tables(view, options)
    assert tables.options is not None
    state, sharded, kept = (
        np.stack(columns, axis=1)
        for columns in zip(*(_least_bytes(view, option) for option in options), strict=True)
    )
    usable = [view.usable_bytes(view.classes[o.device_class].devices[0].name) for o in options]
    held = replace(tables.options, state_bytes=state, sharded_bytes=sharded, activation_bytes=kept)
    return replace(tables, memory_bytes=np.array(usable, dtype=float), options=held)


def _least_bytes(problem: Problem, option: StageOption) -> tuple[Floats, Floats, Floats]:
    """(L,) each: what a layer holds in any stage, what its replicas share, what a pass leaves."""
    own, job = problem.at_degree(option.degree), problem.job
    tied = own.tied_parameters
    weights = (own.parameters - tied) * job.weight_bytes_per_parameter
    moments = np.maximum(own.trained_parameters - tied, 0.0) * job.optimizer_bytes_per_parameter
    saved = own.layer_memory.own_bytes[:, option.device_class] * (option.memory == "keep")
    if option.shards_state:
        return weights, moments, saved
    return weights + moments, np.zeros_like(moments), saved
