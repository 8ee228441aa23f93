"""Plans: a placement bound to concrete devices. What is simulated is what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    Seed,
)
from heterps_configs.documents.stage import Stage
from heterps_configs.problems import InconsistentError, repeated

# A step of many micro-batches takes longer than what each of its passes may.
StepSeconds = Annotated[Number, Field(ge=0)]
BoundStatus = Literal["proven", "bounded", "unknown"]


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
        problems = self.inconsistencies()
        if problems:
            raise InconsistentError(problems)
        return self

    def inconsistencies(self) -> list[str]:
        """What its fields contradict each other in: nothing, unless it was changed unchecked."""
        layers = {stage.name: stage.layers for stage in self.stages}
        problems = list(repeated("stages", "name", [stage.name for stage in self.stages]))
        problems += self._route_problems(layers)
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
        return problems

    def _route_problems(self, layers: Mapping[str, range]) -> Iterator[str]:
        """Every pipeline passes all layers in order, and every micro-batch one pipeline."""
        for index, pipeline in enumerate(self.pipelines):
            unknown = [name for name in pipeline.stages if name not in layers]
            ranges = [layers[name] for name in pipeline.stages if name in layers]
            starts = [0, *(covered.stop for covered in ranges)]
            if unknown:
                named = ", ".join(map(repr, unknown))
                yield f"pipelines.{index}.stages: no stage is called {named}"
            elif starts != [*(covered.start for covered in ranges), self.num_layers]:
                yield (
                    f"pipelines.{index}.stages: must cover the layers 0..{self.num_layers - 1} "
                    "exactly once, in order"
                )
        routed = sorted(m for pipeline in self.pipelines for m in pipeline.micro_batches)
        if routed != list(range(self.job.num_micro_batches)):
            yield (
                f"pipelines: each of the micro-batches 0..{self.job.num_micro_batches - 1} "
                "must take exactly one route"
            )

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
