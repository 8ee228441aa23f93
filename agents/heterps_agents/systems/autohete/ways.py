"""What each way of each layer of a stage takes: seconds of a step, and bytes on the device.

What a layer saves for its backward pass is kept, computed again, or in host memory. Its state is on
the device; or its moments (and the float32 copy of its weights) are in host memory, or all of it. A
layer takes the longest of its work and of the copies beside it, over a link to the host that
carries both directions at a time:

    forward pass    activations go, weights come
    backward pass   activations and weights come, gradients go
    optimizer step  moments come and go; where weights and gradients are away, these too

Of what passes bring and take away, two layers' worth are on a GPU at a time. What an optimizer step
brings comes in pieces, and needs no room beside the activations, which are gone by then.

The paper's formulas for memory were not reachable. These are ours, and not those of
`heterps_envs.held_bytes`: an integer programme needs bytes of each layer in each way that add up,
and that count knows no state in host memory. Like it, they are never below what the simulator says;
with messages of the stage's own cuts they are nearer: 5 % above it on shipped models, where
`held_bytes` is 15 % above.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.layer_costs.memory_rule import REDUCE_COPY_BYTES, posted_ahead
from heterps_envs.problem import Problem
from heterps_envs.simulator.memory_timeline import LOSS_BYTES
from heterps_envs.simulator.stage_memory import SCALAR_BYTES_OF_LAYER, SCALAR_BYTES_OF_STAGE

Activations = Literal["keep", "recompute", "offload"]
Away = Literal["nothing", "moments", "all"]
_ACTIVATIONS: tuple[Activations, ...] = ("keep", "recompute", "offload")
_AWAY: tuple[Away, ...] = ("nothing", "moments", "all")


class Way(NamedTuple):
    """What is done with a layer.

    Attributes:
        activations: What it saves is kept, computed again, or in host memory.
        away: Of its state, what is in host memory.
    """

    activations: Activations = "keep"
    away: Away = "nothing"


# Those that plans say come first.
WAYS = tuple(Way(activations, away) for away in _AWAY for activations in _ACTIVATIONS)
WAYS_OF_PLANS = WAYS[: len(_ACTIVATIONS)]


class Part(NamedTuple):
    """A stage of one of the pipelines, on a device.

    Attributes:
        layers: Its layers.
        kind: Index of its device's class.
        stages_behind: Of its pipeline.
        num_stages: Of each pipeline.
        num_pipelines: Replicas of the model.
        micro_batches: Of its pipeline.
    """

    layers: range
    kind: int
    stages_behind: int = 0
    num_stages: int = 1
    num_pipelines: int = 1
    micro_batches: int = 1

    def held(self, problem: Problem) -> int:
        """Micro-batches between their forward and backward passes at most."""
        is_gpipe = problem.job.schedule == "gpipe"
        return in_flight(self.micro_batches, is_gpipe, 1, self.stages_behind)


class LayerWays(NamedTuple):
    """n layers, W ways.

    Attributes:
        seconds: (n, W) of a step; inf: the way is closed.
        held_bytes: (n, W) beside what the other fields say.
        front_bytes: (n - 1, W) of the cut behind a layer, what the layer in front of it keeps.
        back_bytes: (n - 1, W) of the same cut, what the layer behind it keeps.
        once_bytes: (K, n, W) of each of K things, what one layer at a time needs.
    """

    seconds: Floats
    held_bytes: Floats
    front_bytes: Floats
    back_bytes: Floats
    once_bytes: Floats

    def bytes_of(self, ways: Integers) -> float:
        """Bytes of one way for each layer, (n,) indices."""
        rows = np.arange(len(ways))
        front, back = self.front_bytes[rows[:-1], ways[:-1]], self.back_bytes[rows[:-1], ways[1:]]
        once = self.once_bytes[:, rows, ways].max(axis=1, initial=0.0)
        held = self.held_bytes[rows, ways].sum()
        return float(held + np.maximum(front, back).sum() + once.sum())


class StageWays(NamedTuple):
    """The ways of a stage.

    Attributes:
        pass_s: (n, W) of one micro-batch forward and backward.
        step_s: (n, W) of the optimizer step.
        layers: Both together for its micro-batches, and the bytes.
        room_bytes: What its device has for them.
    """

    pass_s: Floats
    step_s: Floats
    layers: LayerWays
    room_bytes: float


def stage_ways(problem: Problem, part: Part, ways: tuple[Way, ...] = WAYS) -> StageWays:
    """What some ways of the layers of a stage take.

    Args:
        problem: Where seconds and bytes come from.
        part: The stage.
        ways: Which.
    """
    seconds = [_seconds(problem, part, way) for way in ways]
    pass_s, step_s = (np.stack(column, axis=1) for column in zip(*seconds, strict=True))
    columns = zip(*(_bytes(problem, part, way) for way in ways), strict=True)
    held, front, back, once = (np.stack(column, axis=-1) for column in columns)
    layers = LayerWays(part.micro_batches * pass_s + step_s, held, front, back, once)
    return StageWays(pass_s, step_s, layers, room_bytes(problem, part))


class _State(NamedTuple):
    """(n,) bytes of the layers of a stage."""

    weights: Floats
    gradients: Floats
    moments: Floats


def _state(problem: Problem, layers: range) -> _State:
    part = slice(layers.start, layers.stop)
    gradients = problem.gradient_bytes[part]
    moments = problem.trained_parameters[part] * problem.job.optimizer_bytes_per_parameter
    # As planners count it, but for what they leave out of a layer's state under GPipe.
    whole = problem.tables.state_bytes[part] + problem.memory_rule.apart_bytes[part]
    return _State(whole - gradients - moments, gradients, moments)


def _seconds(problem: Problem, part: Part, way: Way) -> tuple[Floats, Floats]:
    """(n,), (n,) of a micro-batch's passes, and of the optimizer step."""
    own, kind = slice(part.layers.start, part.layers.stop), part.kind
    times, state = problem.layer_times, _state(problem, part.layers)
    forward_s, backward_s = times.forward_s[own, kind], times.backward_s[own, kind]
    step_s = times.optimizer_s[own, kind]
    nothing = np.zeros(len(part.layers))
    saved = problem.offload.moved_bytes[own, kind] if way.activations == "offload" else nothing
    weights, gradients, moments = state if way.away == "all" else (nothing, nothing, nothing)
    if way.away == "moments":
        moments = state.moments
    if way.activations == "recompute":
        backward_s = backward_s + forward_s
    rate = problem.classes[kind].type.host_bandwidth_bytes_per_s
    if rate is None and way not in (Way("keep"), Way("recompute")):
        # Of layers without bytes, too: no plan says it of a device without a link to its host.
        return np.full_like(step_s, np.inf), step_s

    def beside(work_s: Floats, *both_ways: Floats) -> Floats:
        """Work, and the copies beside it."""
        return np.maximum(work_s, np.maximum(*both_ways) / (rate or np.inf))

    passes_s = beside(forward_s, saved, weights) + beside(backward_s, saved + weights, gradients)
    return passes_s, beside(step_s, moments + weights + gradients, moments + weights)


def _bytes(problem: Problem, part: Part, way: Way) -> tuple[Floats, Floats, Floats, Floats]:
    """The fields of `LayerWays` for one way, from `held_bytes` on."""
    own, kind, held = slice(part.layers.start, part.layers.stop), part.kind, part.held(problem)
    memory, state = problem.layer_memory, _state(problem, part.layers)
    is_gpu = problem.classes[kind].type.kind != "cpu"
    keeps = float(way.activations == "keep")
    weights, gradients, moments = state
    here = {"nothing": weights + gradients + moments, "moments": weights + gradients}.get(
        way.away, np.zeros(len(part.layers))
    )
    saved_in = memory.in_bytes if way.activations == "recompute" else keeps * memory.saved_in_bytes
    nothing = np.zeros(len(part.layers))
    again, passing, moving = nothing, nothing, nothing
    if way.activations == "recompute":
        again = memory.own_bytes[own, kind] + memory.saved_out_bytes[own]
    if way.activations == "offload":
        passing = problem.offload.passing_bytes[own, kind]
    if is_gpu and way.away == "all":
        moving = 2 * (weights + gradients)
    return (
        here + held * keeps * memory.own_bytes[own, kind],
        held * keeps * memory.saved_out_bytes[own][:-1],
        held * saved_in[own][1:],
        np.stack([again, passing, moving]),
    )


def room_bytes(problem: Problem, part: Part) -> float:
    """What a stage's device has beside what no way of its layers changes."""
    memory, kind, layers = problem.layer_memory, part.kind, part.layers
    first, last = layers[0], layers[-1]
    kept_anyway = memory.kept_bytes(first, last, kind, offloaded=layers)
    fixed = part.held(problem) * kept_anyway
    fixed += part.micro_batches * (memory.input_bytes + LOSS_BYTES)
    fixed += float(memory.workspace_bytes[layers.start : layers.stop, kind].max())
    fixed += sum(problem.profile.layers[layer].buffer_bytes for layer in layers)
    fixed += SCALAR_BYTES_OF_STAGE + SCALAR_BYTES_OF_LAYER * len(layers)
    if part.num_stages > 1:
        # Receives ahead; on either side a message that leaves and one that has not arrived yet.
        largest = max(memory.in_bytes[first], memory.out_bytes[last])
        fixed += float((posted_ahead(largest) + 4) * largest)
    if part.num_pipelines > 1:
        fixed += REDUCE_COPY_BYTES
    return problem.usable_bytes(problem.classes[kind].devices[0].name) - fixed
