"""One level of a beam, compiled: the candidates of all partial placements, and which of them stay.

Partial placements are rows of `StageRows`, beam by beam, the likeliest first. What led to each is a
`Nodes` entry, so that a placement is written only when it is the best one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_agents.learned.policy_kernels import score
from heterps_envs.closed_form.formula import CUT_BIT, REPLICA_SHIFT
from heterps_envs.compiled import (
    ZERO,
    allocating_helper,
    checked,
    helper,
    kernel,
    uncounted,
    uncounted_helper,
)
from heterps_envs.environments.base.state import RUNNING
from heterps_envs.environments.stage.kernels import observe_row
from heterps_envs.environments.stage.state import NUM_CUTS, NUM_RUNGS, option_of


@kernel
def front_delays(p: Any, out: Any) -> None:
    """Least fill that the layers before a cut add, the message over the cut included.

    Args:
        p: `StageProblems`.
        out: (N, L + 1, C) seconds by the cut and the option behind it; written.
    """
    classes = out.shape[2]
    before, following = np.empty(classes), np.empty(classes)
    for z in range(out.shape[0]):
        out[z, 0] = 0.0
        before[:] = 0.0  # By the class of the layer before the cut.
        for cut in range(1, p.num_layers[z] + 1):
            for kind in range(p.num_options[z]):
                least = before[kind] if cut > 1 else 0.0
                if cut > 1:
                    least = min(least, out[z, cut - 1, kind])
                compute = p.compute_prefix_s[z, cut, kind] - p.compute_prefix_s[z, cut - 1, kind]
                following[kind] = least + compute
            before[:] = following
            for behind in range(p.num_options[z]):
                least = np.inf
                for kind in range(p.num_options[z]):
                    transfer = (
                        p.output_bytes[z, cut - 1] * p.inverse_bandwidth_s_per_byte[z, kind, behind]
                    )
                    message = 2.0 * (p.latency_s[z, kind, behind] + transfer)
                    least = min(least, before[kind] + message)
                out[z, cut, behind] = least


@uncounted
def expand(terms: Any, level: Any, count: int, room: Any) -> tuple[int, int]:
    """Lists the candidates of all rows; complete placements are recorded.

    Args:
        terms: `Terms`.
        level: `Level`.
        count: Rows in use.
        room: `Room`; `candidates` and `nodes` are written.

    Returns:
        Candidates, and partial placements that have some.
    """
    p, rows, view, out = terms.problems, level.rows, room.seen, room.candidates
    found, parents = 0, 0
    for row in range(count):
        if not observe_row(p, rows, row, view, np.int64(0), room.scratch):
            continue
        first, useful = found, 0
        for action in range(view.allowed.shape[1]):
            if not view.allowed[0, action]:
                continue
            start = view.first_layer[0, action]
            if start == 0:
                _finish(terms, level, row, view, action, room.nodes)
                start = -1
            elif not _is_useful(terms, level, row, view, action, start):
                start = -1
            else:
                useful += 1
            for feature in range(out.features.shape[1]):
                out.features[found, feature] = view.candidates[0, action, feature]
            out.row[found], out.parent[found], out.action[found] = parents, row, action
            out.first_layer[found] = start
            out.replicas[found] = view.replicas[0, action]
            out.fill_s[found] = view.fill_s[0, action]
            out.behind_s[found] = view.behind_s[0, action]
            found += 1
        if useful == 0:
            found = first
            continue
        for feature in range(out.state.shape[1]):
            out.state[parents, feature] = view.state[0, feature]
        parents += 1
    return found, parents


@helper
def _copy_row(rows: Any, row: int, out: Any, to: int) -> None:
    out.problem[to], out.target_s[to] = rows.problem[row], rows.target_s[row]
    out.fill_limit_s[to], out.position[to] = rows.fill_limit_s[row], rows.position[row]
    out.price_limit_usd_per_hour[to] = rows.price_limit_usd_per_hour[row]
    out.front_class[to], out.num_stages[to] = rows.front_class[row], rows.num_stages[row]
    out.replicas_behind[to], out.fill_s[to] = rows.replicas_behind[row], rows.fill_s[row]
    out.behind_s[to], out.status[to] = rows.behind_s[row], RUNNING
    out.used[to] = rows.used[row]


@allocating_helper
def _finish(terms: Any, level: Any, row: int, view: Any, action: int, nodes: Any) -> None:
    """Records a candidate that covers the rest, if it is among the best of its beam.

    Under a price limit the best are those of the least price times step time.
    """
    rows, beams = level.rows, level.beams
    group = beams.group[row]
    reached_s, found_s = view.behind_s[0, action], beams.found_s[group]
    kind = option_of(action, view.allowed.shape[1] // (NUM_CUTS * NUM_RUNGS))
    replicas = view.replicas[0, action]
    cost = reached_s
    if rows.price_limit_usd_per_hour[row] < np.inf:
        p, z = terms.problems, rows.problem[row]
        used_usd = np.dot(rows.used[row].astype(np.float64), p.class_usd_per_hour[z])
        cost *= used_usd + replicas * p.price_usd_per_hour[z, kind]
    place = len(found_s) - 1
    if reached_s >= beams.limit_s[group] or cost >= found_s[place]:
        return
    beams.limit_s[group] = min(beams.limit_s[group], terms.slack * reached_s)
    node = beams.found_node[group, place]  # Of the one that it drives out.
    while place > 0 and cost < found_s[place - 1]:
        found_s[place] = found_s[place - 1]
        beams.found_node[group, place] = beams.found_node[group, place - 1]
        place -= 1
    found_s[place], beams.found_node[group, place] = cost, node
    _put_node(nodes, node, beams.node[row], ZERO, kind, replicas)


@helper
def _put_node(nodes: Any, node: int, behind: int, start: int, kind: int, replicas: int) -> None:
    nodes.behind[node], nodes.first_layer[node] = behind, start
    nodes.device_class[node], nodes.replicas[node] = kind, replicas


@uncounted_helper
def _is_useful(terms: Any, level: Any, row: int, view: Any, action: int, start: int) -> bool:
    """Whether a completion may still beat the best: by its delay, and by the work that is left."""
    p, rows, beams = terms.problems, level.rows, level.beams
    z, best_s = rows.problem[row], beams.limit_s[beams.group[row]]
    kind, replicas = option_of(action, rows.used.shape[1]), view.replicas[0, action]
    delay = terms.delay_s[z, start, kind]
    if view.behind_s[0, action] + delay >= best_s:
        return False
    if view.fill_s[0, action] + delay > rows.fill_limit_s[row]:
        return False
    device_class = p.class_of_option[z, kind]
    taken = replicas * p.devices_of_option[z, kind]
    free_price = -taken * p.class_price[z, device_class]
    for other in range(p.num_classes[z]):
        left = p.device_count[z, other] - rows.used[row, other]
        free_price += left * p.class_price[z, other]
    return p.value_prefix_s[z, start] < free_price * best_s  # type: ignore[no-any-return]


@kernel
def select(
    terms: Any, level: Any, room: Any, found: int, total: Any, following: Any, nodes: int
) -> int:
    """Keeps the best candidates of every beam as the rows of the next level.

    Args:
        terms: `Terms`.
        level: This one.
        room: `Room`; `nodes` is written.
        found: Candidates.
        total: (N,) their scores.
        following: The next level, written.
        nodes: Nodes in use; each row of the next level gets one more.

    Returns:
        Rows of the next level.
    """
    c, delay_s, width = room.candidates, terms.delay_s, terms.width
    rows, beams, next_rows, next_beams = level.rows, level.beams, following.rows, following.beams
    classes = rows.used.shape[1]
    kept, begin = 0, 0
    while begin < found:
        group = beams.group[c.parent[begin]]
        end = begin
        while end < found and beams.group[c.parent[end]] == group:
            end += 1
        first = kept
        for offset in np.argsort(-total[begin:end]):
            index = begin + offset
            start, row, action = c.first_layer[index], c.parent[index], c.action[index]
            if start < 0:
                continue
            kind, replicas = option_of(action, classes), c.replicas[index]
            z = rows.problem[row]
            if c.behind_s[index] + delay_s[z, start, kind] >= beams.limit_s[group]:
                continue
            device_class = terms.problems.class_of_option[z, kind]
            taken = replicas * terms.problems.devices_of_option[z, kind]
            key = _state_key(rows, row, start * 256 + kind, device_class, taken)
            same = -1
            for slot in range(first, kept):
                if room.keys[slot - first] == key:
                    same = slot
                    break
            if same >= 0:
                if c.behind_s[index] >= next_rows.behind_s[same]:
                    continue
                target = same
            elif kept - first < width:
                target = kept
                kept += 1
                room.keys[target - first] = key
                next_beams.score[target] = total[index]
            else:
                continue
            next_beams.group[target], next_beams.node[target] = group, nodes + target
            _put_node(room.nodes, nodes + target, beams.node[row], start, kind, replicas)
            _copy_row(rows, row, next_rows, target)
            next_rows.position[target], next_rows.front_class[target] = start, kind
            next_rows.num_stages[target] += 1
            next_rows.replicas_behind[target] += replicas
            next_rows.fill_s[target] = c.fill_s[index]
            next_rows.behind_s[target] = c.behind_s[index]
            next_rows.used[target, device_class] += taken
        begin = end
    return kept


@helper
def _state_key(rows: Any, row: int, front: int, device_class: int, taken: int) -> int:
    """One number for (layers left, front option, devices used)."""
    key = front
    for other in range(rows.used.shape[1]):
        key = key * 1_000_003 + rows.used[row, other] + (taken if other == device_class else 0)
    return key


@kernel
def run_levels(
    terms: Any,
    weights: Any,
    level: Any,
    following: Any,
    room: Any,
    count: int,
    nodes: int,
    levels: int,
) -> tuple[int, int]:
    """Some levels of all beams under a policy; an even number, so that no one need swap.

    Args:
        terms: `Terms`.
        weights: `heterps_agents.learned.policy_kernels.ScorerWeights`.
        level: `Level`.
        following: The same, for every second level.
        room: `Room`.
        count: Rows in use.
        nodes: Nodes in use.
        levels: How many, even.

    Returns:
        Rows and nodes in use; 0 rows when all beams have ended.
    """
    c = room.candidates
    for _ in range(levels):
        found, parents = expand(terms, level, count, room)
        if found == 0:
            return 0, nodes
        scores = np.empty(found, np.float32)
        score(weights, c.features[:found], c.state[:parents], c.row[:found], scores)
        total = np.empty(found)
        for index in range(found):
            total[index] = level.beams.score[c.parent[index]] + scores[index]
        count = select(terms, level, room, found, total, following, nodes)
        nodes += count
        level, following = following, level
    return count, nodes


@checked
def write_found(beams: Any, nodes: Any, num_layers: Any, code: Any) -> None:
    """Writes the best placement of every beam.

    Args:
        beams: `Beams`.
        nodes: `Nodes`.
        num_layers: (G,).
        code: (G, L) int32, see `heterps_envs.closed_form.formula`.
    """
    for group in range(beams.found_s.shape[0]):
        for place in range(beams.found_s.shape[1]):
            if beams.found_s[group, place] < np.inf:
                # A cut that the change of class does not show gets its bit.
                node = beams.found_node[group, place]
                while node >= 0:
                    behind = nodes.behind[node]
                    stop = nodes.first_layer[behind] if behind >= 0 else num_layers[group]
                    kind = nodes.device_class[node]
                    for layer in range(nodes.first_layer[node], stop):
                        code[group, place, layer] = kind | (
                            (nodes.replicas[node] - 1) << REPLICA_SHIFT
                        )
                    if behind >= 0 and nodes.device_class[behind] == kind:
                        code[group, place, stop - 1] |= CUT_BIT
                    node = behind
