"""Arrays of a set of stages: where each is, and the least seconds on the way to it and on.

Stages stand in the order of their first layers, so that all that is in front of one comes earlier.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import uncounted, uncounted_helper
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.ways import unit_messages
from heterps_envs.step_bounds.whole_plans.again import Again
from heterps_envs.step_bounds.whole_plans.replicas import Replicas
from heterps_envs.step_bounds.whole_plans.tied import Tied

# Columns of a stage: its kind of group, its first layer and the one after its last.
OPTION, FIRST, STOP = 0, 1, 2


class Staged(NamedTuple):
    """Of up to D stages; rows beyond are not read.

    Attributes:
        message_s: (L + 1, T, T) a message of the smallest micro-batch over the cut in front of a
            layer, from class to class.
        waits: 1, or 0 where nobody waits for the whole backward pass.
        spans: (D, 3) the columns above.
        in_s: (D,) the least from the front to the stage.
        out_s: (D,) the least from the stage's last backward pass to the end, by stages in front.
        optimizer_s: (D,) its optimizer step.
        after_s: (D,) the least from the begin of its last backward pass to the end of the step; 0
            as long as it is not known who else has its layers.
        state_bytes: (D,) its weights and optimizer state.
        around_s: (D,) the least from the end of a forward to its backward pass.
        last_s: (D,) the least from its last forward to its first backward pass: 0 unless all
            forward passes of a device come first.
        return_s: (D,) the least until its first backward pass, and
        tail_s: (D,) after its last forward pass, as far as turns say more.
        in_at, out_at: (D, D) the same as `in_s` and `out_s`, after so many other replicas.
        done_s: (D, D) the least until so many forward passes are done, less one.
        left_s: (D, D) the least from the begin of a backward pass that so many others follow.
        most: (D,) micro-batches that it can do, in full ones.
        used: (D,) of `flows`.
        replicas: (D,) stages whose turns are looked at.
        owners: (L,) stages that have a layer.
        on_node: (L,) the node of one of them.
        is_far: (L,) 1 where they are not all on one node.
        degree: (L,) devices of each of them; below 0 where these are unlike: no plan that can be
            run divides the state of such a layer.
        node_of: (T,) the node of a class; below 0: it is on several.
        reached: (L + 1,) of `flows`.
        again: What may be computed again.
        tied: Parameters of other layers.
        known: Replicas whose sums are known to the last digit.
    """

    message_s: Floats
    waits: float
    spans: Integers
    in_s: Floats
    out_s: Floats
    optimizer_s: Floats
    after_s: Floats
    state_bytes: Floats
    around_s: Floats
    last_s: Floats
    return_s: Floats
    tail_s: Floats
    in_at: Floats
    out_at: Floats
    done_s: Floats
    left_s: Floats
    most: Floats
    used: Floats
    replicas: Integers
    owners: Integers
    on_node: Integers
    is_far: Integers
    degree: Integers
    node_of: Integers
    reached: Integers
    again: Again
    tied: Tied
    known: Replicas

    @classmethod
    def of(cls, problem: Problem, needs: Needs) -> Staged:
        """Room for as many stages as there are devices."""
        size, num_layers = len(problem.cluster.devices) + 1, problem.profile.num_layers
        return cls(
            message_s=np.ascontiguousarray(unit_messages(problem, needs.unit)),
            waits=0.0 if problem.job.schedule == "zero-bubble" else 1.0,
            spans=np.zeros((size, 3), np.int64),
            in_s=np.zeros(size),
            out_s=np.zeros(size),
            optimizer_s=np.zeros(size),
            after_s=np.zeros(size),
            state_bytes=np.zeros(size),
            around_s=np.zeros(size),
            last_s=np.zeros(size),
            return_s=np.zeros(size),
            tail_s=np.zeros(size),
            in_at=np.zeros((size, size)),
            out_at=np.zeros((size, size)),
            done_s=np.zeros((size, size)),
            left_s=np.zeros((size, size)),
            most=np.zeros(size),
            used=np.zeros(size),
            replicas=np.zeros(size, np.int64),
            owners=np.zeros(num_layers, np.int64),
            on_node=np.zeros(num_layers, np.int64),
            is_far=np.zeros(num_layers, np.int64),
            degree=np.zeros(num_layers, np.int64),
            node_of=_nodes(problem),
            reached=np.zeros(num_layers + 1, np.int64),
            again=Again.of(problem, needs),
            tied=Tied.of(problem),
            known=Replicas.of(needs),
        )


def _nodes(problem: Problem) -> Integers:
    numbers = {node.name: number for number, node in enumerate(problem.cluster.nodes)}
    found = [{device.node for device in entry.devices} for entry in problem.classes]
    return np.array([numbers[min(own)] if len(own) == 1 else -1 for own in found], np.int64)


@uncounted_helper
def find_owners(n: Any, staged: Any, count: int) -> None:
    """Writes how many of so many stages have each layer, and whether they are alike."""
    for layer in range(len(staged.owners)):
        staged.owners[layer], staged.on_node[layer], staged.is_far[layer] = 0, -1, 0
    for stage in range(count):
        option = staged.spans[stage, OPTION]
        node, degree = staged.node_of[n.class_of[option]], n.degree[option]
        for layer in range(staged.spans[stage, FIRST], staged.spans[stage, STOP]):
            is_first = staged.owners[layer] == 0
            staged.degree[layer] = degree if is_first or staged.degree[layer] == degree else -1
            staged.owners[layer] += 1
            if node >= 0:
                is_other = staged.on_node[layer] >= 0 and staged.on_node[layer] != node
                staged.is_far[layer] = max(staged.is_far[layer], 1 if is_other else 0)
                staged.on_node[layer] = node


@uncounted
def find_ways_in(n: Any, staged: Any, stage: int) -> None:
    """Writes the least seconds to a stage and back, through those in front of it."""
    own, first = staged.spans[stage, OPTION], staged.spans[stage, FIRST]
    if first == 0:
        staged.in_s[stage] = staged.out_s[stage] = 0.0
        return
    staged.in_s[stage] = staged.out_s[stage] = np.inf
    for front in range(stage):
        if staged.spans[front, STOP] == first:
            kind = n.class_of[staged.spans[front, OPTION]]
            across_s = staged.message_s[first, kind, n.class_of[own]]
            forward_s, backward_s = unit_seconds(n, staged, front)
            in_s = staged.in_s[front] + forward_s + across_s
            # A stage in front steps when the last of its own backward passes is over, which may
            # be one of a small micro-batch.
            out_s = backward_s + max(staged.out_s[front], staged.optimizer_s[front])
            full_s = backward_s / n.unit
            out_s = max(out_s, staged.after_s[front] - (full_s - backward_s))
            out_s = staged.waits * (across_s + out_s)
            staged.in_s[stage] = min(staged.in_s[stage], in_s)
            staged.out_s[stage] = min(staged.out_s[stage], out_s)


@uncounted_helper
def find_ways_around(n: Any, staged: Any, count: int) -> None:
    """Writes the least seconds from each of so many stages to the end, and back to it."""
    num_layers = len(staged.owners)
    for stage in range(count - 1, -1, -1):
        own, stop = staged.spans[stage, OPTION], staged.spans[stage, STOP]
        staged.around_s[stage] = 0.0 if stop == num_layers else np.inf
        last_s, num_behind = 0.0, 0
        for behind in range(stage + 1, count):
            if staged.spans[behind, FIRST] == stop:
                kind = n.class_of[staged.spans[behind, OPTION]]
                across_s = staged.message_s[stop, n.class_of[own], kind]
                forward_s, backward_s = unit_seconds(n, staged, behind)
                own_s = forward_s + staged.waits * backward_s + (1 + staged.waits) * across_s
                around_s = own_s + staged.around_s[behind]
                staged.around_s[stage] = min(staged.around_s[stage], around_s)
                last_s, num_behind = own_s + staged.last_s[behind], num_behind + 1
        # One stage behind it has all of its forward passes, before any backward pass.
        is_sure = staged.again.is_at_once and num_behind == 1
        staged.last_s[stage] = last_s if is_sure else 0.0


@uncounted_helper
def unit_seconds(n: Any, staged: Any, stage: int) -> tuple[float, float]:
    """Forward and backward pass of the smallest micro-batch."""
    option, first, stop = staged.spans[stage]
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    return n.unit * forward, n.unit * backward
