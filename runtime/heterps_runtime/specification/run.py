"""Run specifications: everything that a worker needs, in one JSON file of the run directory.

Workers read this instead of the problem, so that they import neither numba nor gymnasium, and
execute the very action lists that the simulator timed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, DeviceChoice, Engine
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.problems import describe_problems
from heterps_envs.schedule.actions import Action, ReduceBucket
from heterps_runtime.specification.groups import Membership, memberships
from heterps_runtime.tensor_parallel.batch_call import BatchCall
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from heterps_runtime.training.program_file import ProgramFile
from heterps_runtime.training.sample_order import BEGINNING, Position

SPECIFICATION_FILE = "run.json"


class EmulatedDevice(Document):
    """What one emulated device should take.

    Attributes:
        device: Name of the device.
        forward_s: For each of its stages, seconds of every micro-batch's forward pass.
        backward_s: The same for the backward pass.
        weight_gradient_s: Of the backward pass, the part that a zero-bubble schedule puts off.
        optimizer_s: Seconds of the optimizer step.
        memory_bytes: A run that needs more is ended; None for no limit.
        own_share: Of the passes of its tensor-parallel group, the part that its own slice takes; a
            group takes as long as its slowest device.
    """

    device: str
    forward_s: dict[str, tuple[float, ...]]
    backward_s: dict[str, tuple[float, ...]]
    weight_gradient_s: Mapping[str, tuple[float, ...]] = {}
    optimizer_s: float = Field(ge=0)
    memory_bytes: PositiveInt | None = None
    own_share: float = Field(default=1.0, gt=0, le=1)

    def seconds(self, kind: str, stage: str, micro_batch: int) -> float:
        """What one pass should take."""
        if kind == "forward":
            return self.forward_s[stage][micro_batch]
        if kind == "backward":
            return self.backward_s[stage][micro_batch]
        later_s = self.weight_gradient_s[stage][micro_batch]
        if kind == "backward-weight":
            return later_s
        return self.backward_s[stage][micro_batch] - later_s


class EmulatedLink(Document):
    """One direction of a link: a message of n bytes arrives `latency_s + n * s_per_byte` later."""

    source: str
    destination: str
    latency_s: float = Field(ge=0)
    s_per_byte: float = Field(ge=0)


class Emulation(Document):
    """Emulated devices and links.

    Attributes:
        devices: The emulated ones; a device that is missing runs at the host's own speed.
        links: Every ordered pair of the plan's devices.
        reduce_s: Seconds of the gradient all-reduce of every bucket.
    """

    devices: tuple[EmulatedDevice, ...]
    links: tuple[EmulatedLink, ...] = ()
    reduce_s: tuple[float, ...] = ()


class RunSpecification(Document):
    """One run, or from `from_step` on the continuation of one under a new plan.

    Attributes:
        generation: 0 for the plan that the run starts with, then one more for every re-plan.
        from_step: The first step that may run under this plan.
        devices: Names by rank. Devices without a stage stay idle and may join later.
        profile: The model: its source and its layers, without measurements.
        actions: What each device of the plan does in one step, in order.
        buckets: Gradient buckets in their global order.
        overlaps_reduce: `Schedule.overlaps_reduce`.
        learning_rate: None for the optimizer's usual one.
        max_gradient_norm: Gradients are clipped to it, over the whole model; None for no limit.
        emulation: Set where devices are emulated.
        slowdowns: Devices and links that get slower; no planner knows of it.
        is_online: Publish measurements and look for new plans at every step boundary.
        measure_every: Steps between two published measurements.
        num_threads: Threads of one worker's kernels.
        first_step: Of this run; above 0 where it goes on from a checkpoint.
        checkpoint: Where and how often to save; None for never.
        resume_from: The checkpoint that the run starts from.
        weights: Folder of safetensors files that the parameters are read from.
        device: What the user chose; a later plan asks it again.
        torch_devices: Where the ranks compute, by rank (`cpu`, `cuda:0`), as far as their hosts
            have such devices; none: all on the CPU.
        engine: What carries out the steps.
        num_timelines: Of how many steps, the last ones, the workers keep the actions; fewer where
            the last plan has run fewer.
        measures_links: Messages are timed in every step, as in online runs.
        splits: How tensor-parallel groups split the model's parameters, by name; empty where the
            plan has none.
        batch_calls: What of the model's calls belongs to samples, of layers that groups split by
            batch; empty where the plan has none.
        program: The user's training program; None: synthetic batches, all else as the plan says.
        data_origin: Where the run goes on in the program's data.
    """

    generation: int = Field(default=0, ge=0)
    from_step: int = Field(default=0, ge=0)
    devices: tuple[str, ...] = Field(min_length=1)
    profile: ModelProfile
    plan: Plan
    actions: dict[str, tuple[Action, ...]]
    buckets: tuple[ReduceBucket, ...]
    overlaps_reduce: bool = False
    num_steps: PositiveInt
    seed: int = 0
    learning_rate: PositiveFloat | None = None
    max_gradient_norm: PositiveFloat | None = None
    emulation: Emulation | None = None
    slowdowns: tuple[RunEvent, ...] = ()
    is_online: bool = False
    measure_every: PositiveInt = 5
    num_threads: PositiveInt = 1
    first_step: int = Field(default=0, ge=0)
    checkpoint: CheckpointSettings | None = None
    resume_from: str | None = None
    weights: str | None = None
    device: DeviceChoice = "auto"
    torch_devices: tuple[str, ...] = ()
    engine: Engine = "heterps"
    num_timelines: PositiveInt = 1
    measures_links: bool = False
    splits: Mapping[str, ParameterSplit] = {}
    batch_calls: tuple[BatchCall, ...] = ()
    program: ProgramFile | None = None
    data_origin: Position = BEGINNING

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        missing = set(self.plan.devices) - set(self.devices)
        if missing:
            raise ValueError(f"devices: no rank for {', '.join(sorted(missing))}")
        if set(self.actions) != set(self.plan.devices):
            raise ValueError("actions: one list for each device of the plan is needed")
        return self

    @cached_property
    def memberships(self) -> dict[str, Membership]:
        """The tensor-parallel group of every device of the plan."""
        return memberships(self.plan)

    @cached_property
    def group_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group of several devices, in the order of the plan."""
        return tuple(
            tuple(self.ranks[device] for device in group)
            for group in self.plan.device_groups
            if len(group) > 1
        )

    def position(self, device: str) -> int:
        """The place of a device in its group; 0 for one that is alone, or idle."""
        own = self.memberships.get(device)
        return own.position if own else 0

    @property
    def watches_links(self) -> bool:
        """Whether messages are timed; torch's schedules time none."""
        return self.engine == "heterps" and (self.is_online or self.measures_links)

    def torch_device(self, device: str) -> str:
        """Where `device` should compute."""
        return self.torch_devices[self.ranks[device]] if self.torch_devices else "cpu"

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each device, by name."""
        return {device: rank for rank, device in enumerate(self.devices)}

    @property
    def wanted_devices(self) -> dict[str, str]:
        """Where each device should compute, by its name, in the order of ranks."""
        return {name: self.torch_device(name) for name in self.devices}

    def layers_of(self, device: str) -> list[str]:
        """The stages of `device` with their layers, for people; none where it is idle."""
        return [
            f"{stage.name} (layers {stage.first_layer}-{stage.last_layer})"
            for stage in self.plan.stages
            if device in stage.devices
        ]

    def emulated_device(self, device: str) -> EmulatedDevice | None:
        """The emulation of `device`; None where it runs at the host's own speed."""
        entries = self.emulation.devices if self.emulation else ()
        return next((entry for entry in entries if entry.device == device), None)

    def slowdown(self, device: str, step: int) -> float:
        """Factor of the injected slowdowns of `device` at `step`."""
        return math.prod(entry.slows(device, step) for entry in self.slowdowns)

    def own_slowdown(self, device: str, step: int) -> float:
        """What an emulated device's own slice takes over what its group should take."""
        emulated = self.emulated_device(device)
        return self.slowdown(device, step) * (emulated.own_share if emulated else 1.0)

    def group_slowdown(self, device: str, step: int) -> float:
        """What the group of `device` takes over what it should: it waits for its slowest device."""
        own = self.memberships.get(device)
        return max(self.own_slowdown(each, step) for each in (own.devices if own else (device,)))

    def link_slowdowns(self, step: int) -> dict[tuple[str, str], float]:
        """Factor of each link that is slowed down at `step`."""
        links = {entry.link for entry in self.slowdowns if step >= (entry.step or 0)}
        return {
            link: math.prod(entry.slows(link, step) for entry in self.slowdowns)
            for link in links
            if link is not None
        }

    def to_json_file(self, path: str | os.PathLike[str]) -> None:
        """Writes the file in one move; JSON, because YAML is slow for long action lists."""
        write_text(path, self.model_dump_json())

    @classmethod
    def from_json(cls, text: str, source: str = "<memory>") -> Self:
        """Validates JSON text.

        Raises:
            DocumentError: With every problem.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise DocumentError(source, describe_problems(cls, error)) from None

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `to_json_file` wrote.

        Raises:
            HeterpsError: The file cannot be read, or is no run specification.
        """
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise HeterpsError(f"{path}: cannot be read: {error.strerror}") from None
        return cls.from_json(text, source=str(path))


def next_plan_path(directory: Path, generation: int) -> Path:
    """Where workers look for the plan of a generation above 0."""
    return directory / f"plan-{generation}.json"
