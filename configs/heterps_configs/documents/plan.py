"""Plans: a placement bound to concrete devices. What is simulated is what runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.job import Job
from heterps_configs.documents.numbers import (
    Count,
    LayerCount,
    LayerIndex,
    Name,
    Number,
    PositiveCount,
    Seed,
)
from heterps_configs.problems import InconsistentError, repeated

# A step of many micro-batches takes longer than what each of its passes may.
StepSeconds = Annotated[Number, Field(ge=0)]
BoundStatus = Literal["proven", "bounded", "unknown"]
TensorShare = Annotated[Number, Field(gt=0, le=1)]
# By so much may shares miss 1: they are written with a few digits.
_SHARE_ROUNDING = 1e-6


class Stage(Document):
    """A range of layers on one device group (one device, or a tensor-parallel group).

    Attributes:
        first_layer: Index of its first layer.
        last_layer: Index of its last layer (inclusive).
        devices: Names of the group's devices.
        tensor_shares: For each of them, its share of what is split of each layer; empty: all have
            the same.
        whole_layers: Layers that the group does not split: each of its devices holds and computes
            all of them.
        batch_layers: Layers whose samples the group splits: each of its devices holds all of them,
            and computes them for its share of each micro-batch.
        recompute_layers: Layers whose activations are dropped after the forward pass and computed
            again for the backward pass; only what enters such a layer is kept.
        offloaded_layers: Layers whose activations go to host memory after the forward pass and come
            back for the backward pass.
        in_flight: Micro-batches that it may hold between their forward and backward passes; None:
            as many as 1F1B needs for the devices behind it. More of them hide slow links.
    """

    name: Name
    first_layer: LayerIndex
    last_layer: LayerIndex
    devices: tuple[Name, ...] = Field(min_length=1)
    tensor_shares: tuple[TensorShare, ...] = ()
    whole_layers: tuple[LayerIndex, ...] = ()
    batch_layers: tuple[LayerIndex, ...] = ()
    recompute_layers: tuple[LayerIndex, ...] = ()
    offloaded_layers: tuple[LayerIndex, ...] = ()
    in_flight: PositiveCount | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems, layers = list(self._share_problems()), self.layers
        if self.last_layer < self.first_layer:
            problems.append(
                f"last_layer: {self.last_layer} lies before first_layer {self.first_layer}"
            )
        for field in ("whole_layers", "batch_layers"):
            if getattr(self, field) and len(self.devices) == 1:
                problems.append(f"{field}: one device has all of its layers whole; leave them out")
        for field in ("whole_layers", "batch_layers", "recompute_layers", "offloaded_layers"):
            outside = [layer for layer in getattr(self, field) if layer not in layers]
            if outside and not problems:
                problems.append(
                    f"{field}: {', '.join(map(str, outside))} not among the stage's "
                    f"layers {self.first_layer}..{self.last_layer}"
                )
        twofold = sorted(set(self.whole_layers).intersection(self.batch_layers))
        if twofold:
            problems.append(
                f"batch_layers: {', '.join(map(str, twofold))} in whole_layers, too; each device "
                "computes such a layer for its samples, or for all"
            )
        both = sorted(set(self.recompute_layers).intersection(self.offloaded_layers))
        if both:
            problems.append(
                f"offloaded_layers: {', '.join(map(str, both))} in recompute_layers, too; a layer "
                "is computed again or offloaded"
            )
        twice = [name for name, count in Counter(self.devices).items() if count > 1]
        if twice:
            problems.append(f"devices: {', '.join(map(repr, twice))} stands there twice")
        if problems:
            raise InconsistentError(problems)
        return self

    def _share_problems(self) -> Iterator[str]:
        shares, total = self.tensor_shares, math.fsum(self.tensor_shares)
        if shares and len(shares) != len(self.devices):
            yield f"tensor_shares: {len(shares)} of them for {len(self.devices)} devices"
        elif shares and abs(total - 1) > _SHARE_ROUNDING:
            yield f"tensor_shares: they sum to {total:g}; must sum to 1"

    @property
    def layers(self) -> range:
        """The layer indices."""
        return range(self.first_layer, self.last_layer + 1)

    @property
    def split(self) -> tuple[int, tuple[float, ...], frozenset[int]]:
        """What devices hold of its layers: equal for stages that split equal layers alike."""
        return self.degree, self.uneven_shares, frozenset(self.unsplit_layers)

    @property
    def unsplit_layers(self) -> tuple[int, ...]:
        """Layers that each device of the group holds all of: `whole_layers`, `batch_layers`."""
        return tuple(sorted((*self.whole_layers, *self.batch_layers)))

    @property
    def degree(self) -> int:
        """Devices that split its layers (tensor parallel)."""
        return len(self.devices)

    @property
    def uneven_shares(self) -> tuple[float, ...]:
        """`tensor_shares` where they are not all the same, else empty."""
        return self.tensor_shares if len(set(self.tensor_shares)) > 1 else ()


class LayerRange(Document):
    """The layers `first_layer .. last_layer` (inclusive)."""

    first_layer: LayerIndex
    last_layer: LayerIndex

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.last_layer < self.first_layer:
            raise InconsistentError(
                [f"last_layer: {self.last_layer} lies before first_layer {self.first_layer}"]
            )
        return self

    @property
    def layers(self) -> range:
        """The layer indices."""
        return range(self.first_layer, self.last_layer + 1)

    @classmethod
    def all_of(cls, layers: AbstractSet[int]) -> tuple[Self, ...]:
        """Layers as the fewest ranges, the first ones in front."""
        firsts = sorted(layer for layer in layers if layer - 1 not in layers)
        lasts = sorted(layer for layer in layers if layer + 1 not in layers)
        return tuple(
            cls.unchecked(first_layer=first, last_layer=last)
            for first, last in zip(firsts, lasts, strict=True)
        )


class Pipeline(Document):
    """A chain of stages that covers every layer once, and the micro-batches on this route."""

    stages: tuple[Name, ...] = Field(min_length=1)
    micro_batches: tuple[Count, ...] = Field(min_length=1)


class Bound(Document):
    """How good the plan can still become.

    Attributes:
        step_time_s: No plan has a step time below this.
        gap: Step time of the plan over `step_time_s`, minus 1.
        status: `proven`: no plan is better. `bounded`: within `gap`. `unknown`: no bound.
    """

    step_time_s: StepSeconds | None = None
    gap: Number | None = Field(default=None, ge=0)
    status: BoundStatus = "unknown"


class Plan(Document):
    """A set of pipelines over shared or private stages.

    Attributes:
        model: Name of the model profile, and how to find it again (`model_reference`).
        model_fingerprint: `ModelProfile.layers_fingerprint()` of the profile it was made for.
        cluster: Name of the cluster; `cluster_reference` is what `--cluster` was given.
        planner: Name of the planner that made it, with its seed.
        predicted_step_time_s: What the simulator said when the plan was made.
        overlaps_reduce: Whether gradient sums overlap backward passes, where the job leaves it
            open; None: they do.
        sharded_state: Layers whose optimizer state is divided among all stages that hold them,
            which then step a part of the parameters each and gather the rest (ZeRO-1).
        bound: About step times by the closed form; proven where an exact solver finished.
        executable_bound: About simulated step times, of all plans that can be run.
    """

    model: Name
    model_reference: str = ""
    model_fingerprint: str
    num_layers: LayerCount
    cluster: Name
    cluster_reference: str = ""
    job: Job
    stages: tuple[Stage, ...] = Field(min_length=1)
    pipelines: tuple[Pipeline, ...] = Field(min_length=1)
    planner: str = ""
    seed: Seed = 0
    predicted_step_time_s: StepSeconds | None = None
    overlaps_reduce: bool | None = None
    sharded_state: tuple[LayerRange, ...] = ()
    bound: Bound = Bound()
    executable_bound: Bound = Bound()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = list(repeated("stages", "name", [stage.name for stage in self.stages]))
        layers = {stage.name: stage.layers for stage in self.stages}
        for index, pipeline in enumerate(self.pipelines):
            unknown = [name for name in pipeline.stages if name not in layers]
            ranges = [layers[name] for name in pipeline.stages if name in layers]
            starts = [0, *(covered.stop for covered in ranges)]
            if unknown:
                named = ", ".join(map(repr, unknown))
                problems.append(f"pipelines.{index}.stages: no stage is called {named}")
            elif starts != [*(covered.start for covered in ranges), self.num_layers]:
                problems.append(
                    f"pipelines.{index}.stages: must cover the layers 0..{self.num_layers - 1} "
                    "exactly once, in order"
                )
        routed = sorted(m for pipeline in self.pipelines for m in pipeline.micro_batches)
        if routed != list(range(self.job.num_micro_batches)):
            problems.append(
                f"pipelines: each of the micro-batches 0..{self.job.num_micro_batches - 1} "
                "must take exactly one route"
            )
        fixed = self.job.overlaps_reduce
        if fixed is not None and self.overlaps_reduce not in (None, fixed):
            problems.append(
                f"overlaps_reduce: {self.overlaps_reduce} in the plan, and {fixed} in its job"
            )
        problems += self._device_problems()
        problems += self._sharding_problems()
        problems += self._in_flight_problems()
        unused = set(layers) - {name for pipeline in self.pipelines for name in pipeline.stages}
        if unused:
            problems.append(f"stages: no pipeline uses {', '.join(sorted(unused))}")
        if problems:
            raise InconsistentError(problems)
        return self

    def _device_problems(self) -> Iterator[str]:
        """A group of devices is one resource: its devices have all their stages in common."""
        group_of: dict[str, Stage] = {}
        for index, stage in enumerate(self.stages):
            for device in stage.devices:
                other = group_of.setdefault(device, stage)
                if other.devices != stage.devices:
                    yield (
                        f"stages.{index}.devices: {device!r} is in a group with other devices in "
                        f"stage {other.name!r}; stages that share a device must have the same "
                        "devices, in the same order"
                    )
                    break

    def _sharding_problems(self) -> Iterator[str]:
        ranges = sorted(self.sharded_state, key=lambda each: each.first_layer)
        for each in ranges:
            if each.last_layer >= self.num_layers:
                yield (
                    f"sharded_state: the layers {each.first_layer}..{each.last_layer} are not all "
                    f"among 0..{self.num_layers - 1}"
                )
        if any(behind.first_layer <= front.last_layer for front, behind in pairwise(ranges)):
            yield "sharded_state: a layer stands there twice"

    def _in_flight_problems(self) -> Iterator[str]:
        """Only 1F1B counts what is in flight, and only with a device for each stage."""
        chosen = [stage for stage in self.stages if stage.in_flight is not None]
        if chosen and self.job.schedule != "1f1b":
            yield (
                f"stages: {chosen[0].name!r} has in_flight, and the job's schedule is "
                f"{self.job.schedule}; only 1f1b can have it"
            )
        on = Counter(stage.devices[0] for stage in self.stages)
        shared = [stage for stage in chosen if on[stage.devices[0]] > 1]
        if shared:
            yield (
                f"stages: {shared[0].name!r} has in_flight, and shares {shared[0].devices[0]!r} "
                "with other stages; only a stage that has its devices for itself can have it"
            )

    def to_mapping(self) -> dict[str, Any]:
        """As of any document, but with every field of the job: a plan says what it is for."""
        return {**super().to_mapping(), "job": self.job.model_dump(mode="json")}

    def stage(self, name: str) -> Stage:
        """The stage called `name`."""
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def sums_overlap(self) -> bool:
        """Whether gradient sums overlap backward passes: the job's word, else the plan's."""
        for chosen in (self.job.overlaps_reduce, self.overlaps_reduce):
            if chosen is not None:
                return chosen
        return True

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the plan uses, in the order of its stages, each once."""
        return tuple(dict.fromkeys([name for stage in self.stages for name in stage.devices]))

    @property
    def device_groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of devices that stages are on, in the order of its stages, each once."""
        return tuple(dict.fromkeys([stage.devices for stage in self.stages]))

    def unsplit_layers_on(self, devices: Sequence[str]) -> tuple[int, ...]:
        """Of all stages of a group, the layers that each of its devices holds all of."""
        found = (stage.unsplit_layers for stage in self.stages if stage.devices == devices)
        return tuple(sorted({layer for own in found for layer in own}))

    @property
    def sharded_layers(self) -> frozenset[int]:
        """The layers of `sharded_state`."""
        return frozenset(layer for each in self.sharded_state for layer in each.layers)

    def groups(self) -> list[list[Pipeline]]:
        """Pipelines that share a stage, directly or through others, by the last one of each group.

        Where a pipeline joins several groups, what was a later group stands first in theirs.
        """
        group_of: dict[str, list[int]] = {}
        for number, pipeline in enumerate(self.pipelines):
            met = {
                group_of[name][-1]: group_of[name] for name in pipeline.stages if name in group_of
            }
            *others, joined = [met[last] for last in sorted(met)] or [[]]
            for index in (index for other in reversed(others) for index in other):
                joined.append(index)
                group_of.update(dict.fromkeys(self.pipelines[index].stages, joined))
            joined.append(number)
            group_of.update(dict.fromkeys(pipeline.stages, joined))
        found = {group[-1]: group for group in group_of.values()}
        return [[self.pipelines[index] for index in found[last]] for last in sorted(found)]

    def runs_like(self, other: Plan) -> bool:
        """Whether both have the same stages on the same devices, and the same routes."""
        mine = self.stages, self.pipelines, self.sharded_layers
        return mine == (other.stages, other.pipelines, other.sharded_layers)

    def route(self, micro_batch: int) -> tuple[Stage, ...]:
        """The stages that a micro-batch passes, in order."""
        pipeline = next(p for p in self.pipelines if micro_batch in p.micro_batches)
        return tuple(self.stage(name) for name in pipeline.stages)
