"""What a change of devices costs in the replay of a spot trace: seconds of each part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import NamedTuple

from heterps_configs.documents.numbers import (
    LEAST_BYTES_PER_S,
    MOST_BYTES_PER_S,
    MOST_SECONDS,
)
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.online.state_moves import MOVE_OVERHEAD_S, Move, move_s, moved_bytes, state_moves
from heterps_envs.problem import Problem


@dataclass(frozen=True)
class SpotSettings:
    """Seconds and rates that a replay assumes; docs/spot-traces.md says where they come from.

    Attributes:
        detection_s: From a loss until it is known. A device that is taken away sends no last
            word: what is missing is its heartbeat.
        restart_s: Of all processes together, until they could load a checkpoint.
        planning_s: Of a plan that was not made before, while nothing is trained.
        overhead_s: Of a change of plans without a restart, beside its bytes.
        storage_bytes_per_s: Between remote storage and one node.
        checkpoint_every_s: Between the begins of two checkpoints. One is of use when all of it
            has arrived at the storage.
        horizon_s: Devices that come back are taken in where that pays back within this time.
    """

    detection_s: float = 1.5
    restart_s: float = 9.0
    planning_s: float = 0.5
    overhead_s: float = MOVE_OVERHEAD_S
    storage_bytes_per_s: float = 1e9
    checkpoint_every_s: float = 600.0
    horizon_s: float = 1800.0

    def __post_init__(self) -> None:
        positive = ("storage_bytes_per_s", "checkpoint_every_s", "horizon_s")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not value >= 0 or (value == 0 and entry.name in positive):
                least = "above 0" if entry.name in positive else "at least 0"
                raise HeterpsError(f"{entry.name} must be {least}, got {value:g}")
            is_speed = entry.name.endswith("bytes_per_s")
            if is_speed and value < LEAST_BYTES_PER_S:
                least = f"at least {LEAST_BYTES_PER_S:g}"
                raise HeterpsError(f"{entry.name} must be {least}, got {value:g}")
            most = MOST_BYTES_PER_S if is_speed else MOST_SECONDS
            if value > most:
                raise HeterpsError(f"{entry.name} must be at most {most:g}, got {value:g}")


class Pause(NamedTuple):
    """Seconds in which nothing is trained, and why."""

    cause: str
    seconds: float


# In the order in which tables show them.
REPEATED, TOO_FEW = "repeated steps", "too few devices"
DETECTION, PLANNING, RESTART, STATE = "detection", "re-planning", "restart", "state"
CAUSES = (DETECTION, PLANNING, RESTART, STATE, REPEATED, TOO_FEW)


class StatePauses(NamedTuple):
    """How state gets to a new plan.

    Attributes:
        pauses: What it takes.
        is_rolled_back: Training goes on after the newest checkpoint.
        live_bytes: Come from devices that hold them.
        storage_bytes: Come from storage.
    """

    pauses: tuple[Pause, ...]
    is_rolled_back: bool
    live_bytes: int = 0
    storage_bytes: int = 0


def restarted(problem: Problem, plan: Plan, settings: SpotSettings) -> StatePauses:
    """All processes start again, and every device downloads all that it needs."""
    moves = state_moves(problem, plan, plan, plan.devices)
    seconds = download_s(problem, moves, settings)
    pauses = Pause(RESTART, settings.restart_s), Pause(STATE, seconds)
    return StatePauses(pauses, True, storage_bytes=moved_bytes(moves))


def moved_in_place(
    problem: Problem, holder: Plan, plan: Plan, lost: Collection[str], settings: SpotSettings
) -> StatePauses:
    """Survivors keep what they hold; only what nobody holds any more comes from storage.

    Args:
        problem: With all devices.
        holder: Who held what.
        plan: Who needs what.
        lost: Devices that have lost what they held.
        settings: What it costs.
    """
    moves = state_moves(problem, holder, plan, lost)
    live = [move for move in moves if move.source is not None]
    missing = [move for move in moves if move.source is None]
    seconds = move_s(problem, live, overhead_s=settings.overhead_s)
    return StatePauses(
        (Pause(STATE, seconds + download_s(problem, missing, settings)),),
        bool(missing),
        moved_bytes(live),
        moved_bytes(missing),
    )


def download_s(problem: Problem, moves: Collection[Move], settings: SpotSettings) -> float:
    """Seconds until every node has what its devices need from storage."""
    by_node: dict[str, int] = defaultdict(int)
    for move in moves:
        by_node[problem.device_named[move.destination].node] += move.num_bytes
    return max(by_node.values(), default=0) / settings.storage_bytes_per_s


def upload_s(problem: Problem, plan: Plan, settings: SpotSettings) -> float:
    """Seconds of one checkpoint, which all nodes of a plan write together."""
    moves = state_moves(problem, plan, plan, plan.devices)
    nodes = {problem.device_named[name].node for name in plan.devices}
    once = {move.layer: move.num_bytes for move in moves}
    return sum(once.values()) / (settings.storage_bytes_per_s * len(nodes))
