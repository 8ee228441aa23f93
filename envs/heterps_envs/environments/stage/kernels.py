"""One decision, compiled: the candidates for the next stage with their features, and the step.

The process itself is described in `heterps_envs.environments.stage.state`. Which stages are
candidates says `candidates`, what is seen of them and of the state `features`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.closed_form.formula import CUT_BIT, REPLICA_SHIFT
from heterps_envs.compiled import kernel, uncounted, uncounted_helper
from heterps_envs.environments.base.state import COMPLETE, RUNNING, STUCK, take_candidates
from heterps_envs.environments.stage.candidates import Wanted, observe_rung
from heterps_envs.environments.stage.features import Left, observe_budget, observe_state
from heterps_envs.environments.stage.growth import WORTHWHILE
from heterps_envs.environments.stage.state import (
    NUM_GLOBAL_FEATURES,
    NUM_RUNGS,
    new_scratch,
    option_of,
    rung_of,
)


@kernel
def observe(p: Any, rows: Any, view: Any, which: Any) -> None:
    """Writes the candidates of running episodes; one without any becomes STUCK.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        view: `StageView`, written to.
        which: (K,) row indices.
    """
    scratch = new_scratch(rows.used.shape[1])
    for row in which:
        if rows.status[row] == RUNNING and not observe_row(p, rows, row, view, row, scratch):
            rows.status[row] = STUCK


@uncounted
def advance(p: Any, rows: Any, view: Any, actions: Any) -> None:
    """Appends the chosen stage in every running episode.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        view: What `observe` wrote for these rows.
        actions: (B,) allowed candidates.
    """
    for row in range(len(rows.problem)):
        if rows.status[row] != RUNNING:
            continue
        action = actions[row]
        kind, replicas = option_of(action, rows.used.shape[1]), view.replicas[row, action]
        start, stop = view.first_layer[row, action], rows.position[row]
        for layer in range(start, stop):
            rows.code[row, layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if rows.front_class[row] == kind:
            rows.code[row, stop - 1] |= CUT_BIT
        z = rows.problem[row]
        rows.used[row, p.class_of_option[z, kind]] += replicas * p.devices_of_option[z, kind]
        rows.replicas_behind[row] += replicas
        rows.num_stages[row] += 1
        rows.front_class[row] = kind
        rows.fill_s[row] = view.fill_s[row, action]
        rows.behind_s[row] = view.behind_s[row, action]
        rows.position[row] = start
        if start == 0:
            rows.status[row] = COMPLETE
            take_candidates(view, row)


@uncounted_helper
def observe_row(p: Any, rows: Any, row: int, view: Any, line: Any, scratch: Any) -> bool:
    """Writes the candidates of one running episode; returns whether there is one.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        row: The episode.
        view: `StageView`, written to.
        line: Which of its rows.
        scratch: From `new_scratch`.
    """
    z, stop = rows.problem[row], rows.position[row]
    allowance_s = rows.target_s[row] + rows.fill_s[row]
    free_price, free_bytes, dollars_left = 0.0, 0.0, rows.price_limit_usd_per_hour[row]
    for kind in range(p.num_classes[z]):
        free = p.device_count[z, kind] - rows.used[row, kind]
        free_price += free * p.class_price[z, kind]
        free_bytes += free * p.class_memory_bytes[z, kind]
        dollars_left -= rows.used[row, kind] * p.class_usd_per_hour[z, kind]
    left = Left(free_price, free_bytes, dollars_left, allowance_s)
    take_candidates(view, line)
    observe_state(p, rows, row, view, line, left)
    if view.state.shape[1] > NUM_GLOBAL_FEATURES:
        observe_budget(p, rows, row, view, line, left)
    found = False
    for kind in range(p.num_options[z]):
        device_class = p.class_of_option[z, kind]
        free = p.device_count[z, device_class] - rows.used[row, device_class]
        free //= p.devices_of_option[z, kind]
        # More replicas that neither reach further nor shorten the step time are a waste.
        reached, shortest_s, replicas = stop, np.inf, 0
        most = min(free, p.num_micro_batches[z])
        if dollars_left < most * p.price_usd_per_hour[z, kind]:
            most = int(dollars_left / p.price_usd_per_hour[z, kind])
        for rung in range(NUM_RUNGS):
            below, replicas = replicas, rung_of(most, rung, replicas)
            if replicas > most:
                break
            wanted = Wanted(kind, rung, replicas, below, reached, WORTHWHILE * shortest_s)
            start, behind_s = observe_rung(p, rows, row, view, line, wanted, left, scratch)
            if start >= 0:
                found = True
                reached, shortest_s = min(reached, start), min(shortest_s, behind_s)
    return found
