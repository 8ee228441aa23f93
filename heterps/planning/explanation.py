"""What an explanation of a plan holds: its stages, their other choices, sizes, idle devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from heterps.micro_batches.place_result import TriedSize
from heterps_agents.finishing.idle_devices import IdleClass
from heterps_envs.options import StageOption
from heterps_envs.useful_options import DroppedOption


@dataclass(frozen=True)
class Alternative:
    """A stage with one other choice.

    Attributes:
        option: What it would be.
        num_sharded_layers: Whose optimizer state its replicas would divide.
        step_time_s: Simulated, of the whole plan; None where it cannot be bound to devices.
        over_bytes: That the fullest device would lack; 0 where all fits.
    """

    option: StageOption
    num_sharded_layers: int
    step_time_s: float | None
    over_bytes: int = 0


@dataclass(frozen=True)
class ExplainedStage:
    """Equal replicas of some layers, and what other choices would cost, the best first.

    Attributes:
        option: How they are carried out; it shards state where one of its layers does.
        num_sharded_layers: Whose optimizer state replicas divide: all, some or none.
    """

    first_layer: int
    last_layer: int
    device_type: str
    num_replicas: int
    option: StageOption
    num_sharded_layers: int
    alternatives: tuple[Alternative, ...]

    @property
    def num_layers(self) -> int:
        """How many it has."""
        return self.last_layer - self.first_layer + 1

    @property
    def runner_up(self) -> Alternative | None:
        """The fastest that fits, else the one that lacks least; None where there is none."""
        return self.alternatives[0] if self.alternatives else None


@dataclass(frozen=True)
class Explanation:
    """What `heterps place --explain` shows.

    Attributes:
        step_time_s: Of the plan.
        stages: Front to back; empty where there was nothing to choose.
        note: Why there are none, or not all.
        dropped: Options that planners did not try, and why.
        sizes: Of micro-batches, where several were looked at.
        micro_batch_size: Of the plan.
        idle: Why devices have nothing to do, by class.
    """

    step_time_s: float
    stages: tuple[ExplainedStage, ...] = ()
    note: str = ""
    dropped: tuple[DroppedOption, ...] = ()
    sizes: tuple[TriedSize, ...] = ()
    micro_batch_size: int = 1
    idle: tuple[IdleClass, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps place --explain --json`."""
        return {
            "note": self.note,
            "stages": [
                {
                    "first_layer": stage.first_layer,
                    "last_layer": stage.last_layer,
                    "device_type": stage.device_type,
                    "replicas": stage.num_replicas,
                    "option": _words(stage.option),
                    "num_sharded_layers": stage.num_sharded_layers,
                    "alternatives": [
                        {
                            "option": _words(each.option),
                            "num_sharded_layers": each.num_sharded_layers,
                            "step_time_s": each.step_time_s,
                            "over_bytes": each.over_bytes,
                        }
                        for each in stage.alternatives
                    ],
                }
                for stage in self.stages
            ],
            "left_out": [
                {
                    "option": _words(each.option),
                    "device_class": each.option.device_class,
                    "by": each.by and _words(each.by),
                    "why": each.why,
                }
                for each in self.dropped
            ],
            "micro_batch_sizes": [
                {name: _number(value) for name, value in each._asdict().items()}
                | {"is_chosen": each.size == self.micro_batch_size}
                for each in self.sizes
            ],
            "idle": [each.to_mapping() for each in self.idle],
        }


def _number(value: Any) -> Any:
    """As JSON has it: what is not finite is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _words(option: StageOption) -> dict[str, Any]:
    return {
        "tensor_parallel": option.degree,
        "memory": option.memory,
        "shards_state": option.shards_state,
    }
