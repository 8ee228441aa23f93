"""One decision of layer placement, compiled: the classes for the next layer, and the step.

The process itself is described in `heterps_envs.environments.layer.state`, the features in
`heterps_envs.environments.layer.env`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.closed_form.formula import CUT_BIT
from heterps_envs.closed_form.objective import Goal, read_stages, write_code
from heterps_envs.closed_form.replicas import provision_stages
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.compiled import checked_helper, compiled, helper, kernel
from heterps_envs.environments.base.state import (
    COMPLETE,
    LARGEST_RATIO,
    RUNNING,
    STUCK,
    ratio,
    take_candidates,
)
from heterps_envs.environments.layer.state import MISSES_FLOOR, OUT_OF_MEMORY
from heterps_envs.environments.stage.packed import kernel_of


@kernel
def observe_layers(p: Any, rows: Any, view: Any, which: Any) -> None:
    """Writes the candidates of episodes that place layers; one without any becomes STUCK.

    Args:
        p: `LayerProblems`.
        rows: `LayerRows`.
        view: `LayerView`, written to.
        which: (K,) row indices.
    """
    for row in which:
        if rows.status[row] != RUNNING:
            continue
        _observe_state(p, rows, view, row)
        if not _observe_classes(p, rows, view, row):
            rows.status[row] = STUCK


@kernel
def advance_layers(p: Any, rows: Any, view: Any, actions: Any) -> None:
    """Gives the next layer of every episode its class; after the last one stages get replicas.

    A class that is not allowed ends the episode as STUCK.

    Args:
        p: `LayerProblems`.
        rows: `LayerRows`.
        view: `LayerView`; that of a finished episode is cleared.
        actions: (B,) candidates.
    """
    chains = p.chains
    for row in range(len(rows.problem)):
        if rows.status[row] != RUNNING:
            continue
        z, layer = rows.problem[row], rows.position[row]
        kind = actions[row] % rows.begun.shape[1]
        if not view.allowed[row, actions[row]]:
            rows.status[row] = STUCK
            take_candidates(view, row)
            continue
        is_cut = actions[row] != kind
        if is_cut:
            rows.kinds[row, layer - 1] |= CUT_BIT
        if is_cut or layer == 0 or rows.kinds[row, layer - 1] != kind:
            rows.begun[row, kind] += 1
            rows.num_stages[row] += 1
            rows.first_layer[row] = layer
        rows.kinds[row, layer] = kind
        rows.seconds[row, kind] += (
            chains.compute_prefix_s[z, layer + 1, kind] - chains.compute_prefix_s[z, layer, kind]
        )
        rows.position[row] = layer + 1
        if layer + 1 == chains.num_layers[z]:
            _finish(p, rows, row)
            _observe_state(p, rows, view, row)
            take_candidates(view, row)


@checked_helper
def _finish(p: Any, rows: Any, row: int) -> None:
    """Provisions the stages and says what became of the episode."""
    k = kernel_of(p.chains, rows.problem[row])
    stages = np.empty((k.num_layers, 3), np.int64)
    count = read_stages(rows.kinds[row, : k.num_layers], stages)
    goal = Goal(p.is_price[0], rows.floor_s[row])
    step_time_s, price, excess = provision_stages(k, stages, count, goal)
    write_code(stages, count, rows.code[row])
    rows.step_time_s[row], rows.price_usd_per_hour[row] = step_time_s, price
    rows.excess[row] = excess
    if excess > 0.0:
        rows.status[row] = OUT_OF_MEMORY
    elif step_time_s > rows.floor_s[row]:
        rows.status[row] = MISSES_FLOOR
    else:
        rows.status[row] = COMPLETE


@helper
def _observe_state(p: Any, rows: Any, view: Any, row: int) -> None:
    """Writes what does not depend on the class; after the last layer its own numbers are zero."""
    c, z, layer = p.chains, rows.problem[row], rows.position[row]
    layers, micro_batches = c.num_layers[z], c.num_micro_batches[z]
    out = view.state[row]
    out[:] = 0.0
    out[0] = layer / layers
    out[1] = min(np.log2(layers) / 8.0, LARGEST_RATIO)
    if layer < layers:
        # Times the number of layers: a layer like all others has 1.
        value, state = c.value_prefix_s[z], c.state_prefix_bytes[z, :, 0]
        kept = c.activation_prefix_bytes[z, :, 0]
        out[2] = ratio(layers * (value[layer + 1] - value[layer]), value[layers])
        out[3] = ratio(layers * (state[layer + 1] - state[layer]), state[layers])
        out[4] = ratio(layers * (kept[layer + 1] - kept[layer]), kept[layers])
        largest, total = 0.0, 0.0
        for each in range(layers):
            largest, total = max(largest, c.output_bytes[z, each]), total + c.output_bytes[z, each]
        out[5] = ratio(layers * c.output_bytes[z, layer], total)
        if layer > 0:
            out[6] = ratio(c.output_bytes[z, layer - 1], largest)
        out[7] = ratio(value[layer], value[layers])
    out[8] = min(rows.num_stages[row] / 8.0, LARGEST_RATIO)
    out[9] = c.num_classes[z] / 8.0
    out[10] = min(np.log2(micro_batches) / 8.0, LARGEST_RATIO)
    out[11] = 1.0 if c.is_gpipe[z] else 0.0
    out[12] = 1.0 if p.is_price[0] else 0.0
    out[13] = ratio(c.lower_bound_s[z], rows.floor_s[row])


@helper
def _observe_classes(p: Any, rows: Any, view: Any, row: int) -> bool:
    """Writes the candidates; returns whether there is one."""
    c, z, layer = p.chains, rows.problem[row], rows.position[row]
    fastest_s, dearest, found = np.inf, 0.0, False
    for kind in range(c.num_classes[z]):
        own_s = c.compute_prefix_s[z, layer + 1, kind] - c.compute_prefix_s[z, layer, kind]
        fastest_s = min(fastest_s, own_s)
        dearest = max(dearest, c.price_usd_per_hour[z, kind])
    take_candidates(view, row)
    for action in range(view.allowed.shape[1]):
        if action % rows.begun.shape[1] < c.num_classes[z] and _observe_class(
            p, rows, view, row, action, fastest_s, dearest
        ):
            found = True
    return found


@compiled(error_model="numpy", inline="always")
def _observe_class(
    p: Any, rows: Any, view: Any, row: int, action: int, fastest_s: float, dearest: float
) -> bool:
    """Writes one candidate, if it is allowed."""
    c, z, layer = p.chains, rows.problem[row], rows.position[row]
    kind = action % rows.begun.shape[1]
    count, micro_batches = c.device_count[z, kind], c.num_micro_batches[z]
    previous = rows.kinds[row, layer - 1] if layer > 0 else -1
    is_cut, free = action != kind, count - rows.begun[row, kind]
    if is_cut and previous != kind:
        return False
    goes_on = previous == kind and not is_cut
    if not goes_on and free <= 0:
        return False
    start = rows.first_layer[row] if goes_on else layer
    # The most replicas, and nothing behind them: the fewest micro-batches that they ever hold.
    most = max(1, min(free + 1 if goes_on else free, micro_batches))
    held = in_flight(micro_batches, c.is_gpipe[z], most, 0)
    state, kept = c.state_prefix_bytes[z, :, kind], c.activation_prefix_bytes[z, :, kind]
    stage_bytes = state[layer + 1] - state[start] + held * (kept[layer + 1] - kept[start])
    if stage_bytes > c.memory_bytes[z, kind]:
        return False
    compute = c.compute_prefix_s[z]
    bound_s, own_s = c.lower_bound_s[z], compute[layer + 1, kind] - compute[layer, kind]
    stage_s = compute[layer + 1, kind] - compute[start, kind]
    rest_s = compute[c.num_layers[z], kind] - compute[layer, kind]
    view.allowed[row, action] = True
    out = view.candidates[row, action]
    out[0] = 1.0
    out[1] = 1.0 if goes_on else 0.0
    out[2] = ratio(fastest_s, own_s)
    out[3] = ratio(micro_batches * own_s, bound_s)
    out[4] = ratio(micro_batches * stage_s, bound_s * most)
    out[5] = ratio(micro_batches * (rows.seconds[row, kind] + own_s), bound_s * count)
    out[6] = ratio(micro_batches * rest_s, bound_s * max(1, free))
    out[7] = free / count
    out[8] = min(np.log1p(count) / 3.0, LARGEST_RATIO)
    out[9] = ratio(stage_bytes, c.memory_bytes[z, kind])
    own_bytes = state[layer + 1] - state[layer] + held * (kept[layer + 1] - kept[layer])
    out[10] = ratio(own_bytes, c.memory_bytes[z, kind])
    if layer > 0 and not goes_on:
        transfer = c.output_bytes[z, layer - 1] * c.inverse_bandwidth_s_per_byte[z, previous, kind]
        out[11] = ratio(micro_batches * transfer, bound_s)
        out[12] = ratio(2.0 * (c.latency_s[z, previous, kind] + transfer), bound_s)
    out[13] = ratio(c.price_usd_per_hour[z, kind], dearest)
    return True
