"""One stage of the closed form: its micro-batches in flight, seconds and memory (numba).

The formulas, and why they are bounds, are those of `heterps_envs.closed_form.formula`.
"""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import compiled


@compiled(inline="always")
def in_flight(num_micro_batches: int, is_gpipe: bool, replicas: int, replicas_behind: int) -> int:
    """Micro-batches whose activations one replica of a stage must have room for.

    1F1B with one replica everywhere: the stages behind it, plus one. With replicas the stage must
    keep all devices behind it busy: the same rule counted in devices, shared by its own replicas.

    Args:
        num_micro_batches: M.
        is_gpipe: GPipe holds all of its share.
        replicas: Replicas of this stage.
        replicas_behind: Sum of the replicas of all stages behind it.
    """
    share = (num_micro_batches + replicas - 1) // replicas
    if is_gpipe:
        return share
    return min(share, (replicas + replicas_behind + replicas - 1) // replicas)


@compiled(inline="always")
def most_held(share: int, room_bytes: float, kept_bytes: float) -> int:
    """Micro-batches of a replica for which there is room.

    Args:
        share: Those that it has.
        room_bytes: For activations; negative where even the state has none.
        kept_bytes: Of one micro-batch.
    """
    if share * kept_bytes <= room_bytes:
        return share
    return int(max(room_bytes, 0.0) / kept_bytes) if kept_bytes > 0.0 else 0


@compiled(inline="always")
def stage_after_s(
    gradient_bytes: float,
    optimizer_s: float,
    replicas: int,
    latency_s: float,
    inverse_bandwidth_s_per_byte: float,
) -> float:
    """Seconds that follow a stage's last backward pass: ring all-reduce, optimizer step."""
    if replicas == 1:
        return optimizer_s
    message = gradient_bytes * inverse_bandwidth_s_per_byte / replicas
    return optimizer_s + 2.0 * (replicas - 1) * (message + latency_s)


@compiled(inline="always")
def stage_work_s(
    forward_s: float, backward_s: float, round_trip_s: float, share: int, held: int
) -> float:
    """Seconds from the first forward to the last backward pass of the busiest replica.

    Args:
        forward_s: Of one micro-batch on one replica.
        backward_s: The same.
        round_trip_s: From the end of a forward pass to the start of its backward pass.
        share: Micro-batches of the replica.
        held: How many of them it has in flight at most, `in_flight`.
    """
    first_wait = max(0.0, round_trip_s - (held - 1) * forward_s)
    last_wait = max(0.0, round_trip_s - (held - 1) * backward_s)
    wait = first_wait + last_wait if share > held else max(first_wait, last_wait)
    compute = forward_s + backward_s
    rounds = (share + held - 1) // held
    return max(share * compute + wait, rounds * (compute + round_trip_s))


@compiled(inline="always")
def stage_after_option_s(k: Any, start: int, stop: int, option: int, replicas: int) -> float:
    """`stage_after_s` of layers `start .. stop - 1`; replicas that share state share its step."""
    optimizer_s = k.optimizer_prefix_s[stop, option] - k.optimizer_prefix_s[start, option]
    far = 1 if replicas > k.node_size[option] else 0
    return stage_after_s(
        k.gradient_prefix_bytes[stop, option] - k.gradient_prefix_bytes[start, option],
        optimizer_s / replicas if k.shards_state[option] else optimizer_s,
        replicas,
        k.ring_latency_s[option, far],
        k.ring_inverse_bandwidth[option, far],
    )


@compiled(inline="always")
def stage_state_bytes(k: Any, start: int, stop: int, option: int, replicas: int) -> float:
    """State of layers `start .. stop - 1` on a device: its own, and its share of the replicas'."""
    own = k.state_prefix_bytes[stop, option] - k.state_prefix_bytes[start, option]
    if k.shards_state[option]:
        shared = k.sharded_prefix_bytes[stop, option] - k.sharded_prefix_bytes[start, option]
        own += shared / replicas
    return own  # type: ignore[no-any-return]


@compiled(inline="always")
def stage_bytes(k: Any, start: int, stop: int, option: int, replicas: int, held: int) -> float:
    """Memory of layers `start .. stop - 1` on a device that holds `held` micro-batches."""
    kept = k.activation_prefix_bytes[stop, option] - k.activation_prefix_bytes[start, option]
    return stage_state_bytes(k, start, stop, option, replicas) + held * kept  # type: ignore[no-any-return]


@compiled(inline="always")
def most_in_flight(k: Any, start: int, stop: int, option: int, replicas: int, share: int) -> int:
    """Micro-batches that a replica may hold so that it waits less; 0 where the rule decides.

    Args:
        k: `KernelTables`.
        start: First layer of the stage.
        stop: The layer behind it.
        option: Its option.
        replicas: Its replicas.
        share: Micro-batches of the busiest replica.
    """
    if k.holds_by_rule:
        return 0
    kept = k.activation_prefix_bytes[stop, option] - k.activation_prefix_bytes[start, option]
    state = stage_state_bytes(k, start, stop, option, replicas)
    return most_held(share, k.memory_bytes[option] - state, kept)
