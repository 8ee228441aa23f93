"""Most that the passes of a stage hold of one micro-batch, and when: layer by layer, back first."""

from __future__ import annotations

import numpy as np

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.kept_memory import LayerMemory


def pass_bytes(
    memory: LayerMemory, stage: Stage, kind: int, gradients: Floats, freed: Floats, share: float
) -> tuple[float, ...]:
    """What `StageBytes` of `heterps_envs.simulator.stage_memory` says of the passes of one stage.

    Args:
        memory: Of all layers.
        stage: The stage.
        kind: Class of its devices.
        gradients: (n,) bytes that its layers add to those of the device.
        freed: (n + 1,) see `LayerMemory.freed_bytes`.
        share: The micro-batch of its first backward pass, as a share of a full one.

    Returns:
        Kept, later, turn and again bytes, two numbers of the first pass, early bytes, two of the
        first `backward-input`, and two of the first `backward-weight`.
    """
    first, last, recomputed = stage.first_layer, stage.last_layer, stage.recompute_layers
    back_first = np.arange(last, first - 1, -1)
    kept = memory.kept_bytes(first, last, kind, recomputed, stage.offloaded_layers)
    gone, new = _gone(memory, stage, kind, freed), gradients[::-1]
    first_pass = _worst_moment(
        summed(new),
        share * gone,
        _uneven(memory.backward_peaks.first_backward[back_first, kind], new, share),
    )
    return (kept, *_deferred(memory, stage, kind, kept, gone, new, share, first_pass))


def held_in_passes(
    memory: LayerMemory, stage: Stage, kind: int, gradients: Floats, schedule: Schedule
) -> tuple[float, float]:
    """What a stage holds of each micro-batch in flight, and at most beside these and all gradients.

    The second number is below 0 under GPipe, where gradients come as activations go. Micro-batches
    are taken as full, and all gradients of a layer as there before its activations go.

    Args:
        memory: Of all layers.
        stage: The stage.
        kind: Class of its devices.
        gradients: (n,) bytes of its layers.
        schedule: In which order its passes run.
    """
    part = stage.first_layer, stage.last_layer, kind
    freed = memory.freed_bytes(*part, stage.recompute_layers, stage.offloaded_layers)
    kept, later, turn, again, *_ = pass_bytes(memory, stage, kind, gradients, freed, 1.0)
    # A copy of what was sent in several tensors waits for its answer: at most until the gradient.
    copied = float(memory.packed_bytes[stage.last_layer])
    if schedule == "zero-bubble":
        most = max(kept, later)
        return most + copied, max(kept + max(turn, again), later) - most
    if schedule != "gpipe":
        return kept + copied, again
    # No forward pass follows the first backward pass, and the later ones have all gradients.
    new, gone = gradients[::-1], _gone(memory, stage, kind, freed)
    first = float((summed(new)[:-1] + gone[:-1] + new).max()) - float(gradients.sum())
    return kept + copied, max(first, again - kept)


def _gone(memory: LayerMemory, stage: Stage, kind: int, freed: Floats) -> Floats:
    """(n + 1,) what has come less what was freed when 0 .. n layers are done, back first.

    The layer that is under way may have been computed again.
    """
    gone = -freed
    for layer in stage.recompute_layers:
        own = memory.own_bytes[layer, kind] + memory.saved_out_bytes[layer]
        gone[stage.last_layer - layer] += own
    return gone


def _deferred(
    memory: LayerMemory,
    stage: Stage,
    kind: int,
    kept: float,
    gone: Floats,
    new: Floats,
    share: float,
    first_pass: tuple[float, float],
) -> tuple[float, ...]:
    """The columns from `later_bytes` to `first_weight`; layers are in the order of the pass."""
    layers = np.arange(stage.last_layer, stage.first_layer - 1, -1)
    peaks, again = memory.backward_peaks, float(max(gone.max(), 0.0))
    early = np.nan_to_num(np.minimum(peaks.early_gradient[layers, kind], new))
    late, deferred = new - early, memory.deferred_bytes[layers]
    if np.isnan(deferred).any():  # then all that is kept but for what crossed the cuts
        first, last = stage.first_layer, stage.last_layer
        later = kept - memory.out_bytes[last] - memory.in_bytes[first]
        later += memory.saved_in_bytes[first]
        nothing = np.zeros(len(layers) + 1)
        first_input = _worst_moment(summed(early), nothing, early)
        first_weight = _worst_moment(summed(late), nothing, late)
        return (later, again, again, *first_pass, early.sum(), *first_input, *first_weight)
    put_off = summed(deferred)
    turn = _or(peaks.later_input[layers, kind], deferred)
    later_input = _worst_moment(np.zeros(len(put_off)), put_off + gone, turn)
    at_once = np.minimum(
        _uneven(peaks.first_input[layers, kind], early + deferred, share, early),
        early + share * turn,
    )
    first_input = _worst_moment(summed(early), share * (put_off + gone), at_once)
    first_weight = _worst_moment(
        summed(late), -share * put_off, _uneven(peaks.first_weight[layers, kind], late, share)
    )
    return (
        float(put_off[-1]),
        max(sum(later_input), 0.0),
        again,
        *first_pass,
        float(early.sum()),
        *first_input,
        *first_weight,
    )


def _worst_moment(come: Floats, gone: Floats, beyond: Floats) -> tuple[float, float]:
    """Gradients, and what else is beyond that before the pass, where both together are most.

    Args:
        come: (n + 1,) gradients when 0 .. n layers are done.
        gone: (n + 1,) what else has come by then; negative where more has gone.
        beyond: (n,) most of both together in the course of a layer, above that at its start.
    """
    level = come + gone
    level[:-1] += beyond
    worst = int(np.argmax(level))
    return float(level[worst] - gone[worst]), float(gone[worst])


def _uneven(measured: Floats, most: Floats, share: float, at_zero: Floats | None = None) -> Floats:
    """(n,) of a micro-batch that is a share of a full one: a line from a micro-batch of nothing.

    Where nobody has measured it, all that comes may be there before anything goes: `most`.
    """
    start = most if at_zero is None else at_zero
    share = min(share, 1.0)
    return np.minimum(share * _or(measured, most) + (1 - share) * start, most)


def _or(measured: Floats, otherwise: Floats) -> Floats:
    return np.where(np.isnan(measured), otherwise, measured)


def summed(values: Floats) -> Floats:
    """(n + 1,) sums of the first 0 .. n."""
    return np.concatenate([[0.0], np.cumsum(values)])
