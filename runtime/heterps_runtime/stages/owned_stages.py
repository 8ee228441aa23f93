"""The stages of one rank: parameters by full-model name, gradient reduction, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.gradient_buckets import Held, Region, gradient_buckets
from heterps_runtime.stages.gradient_norm import clip_gradients, scale_gradients, squared_norm
from heterps_runtime.stages.loss_scale import LossScale
from heterps_runtime.stages.optimizer import program_optimizer, step_scaled, use_loss_scale
from heterps_runtime.stages.shared_heads import SharedHeads
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.stages.state_shards import ShardedState
from heterps_runtime.tensor_parallel.regions import view_of
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.updates import Updates
from heterps_runtime.transport.communication import Gatherer
from heterps_runtime.transport.gradient_sums import GradientSum, finish_sums
from heterps_runtime.transport.messenger import Messenger
from heterps_runtime.transport.region_sums import RegionRing, RegionSum

# Of each parameter the layers that use it, and its whole shape.
_Told = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]


class OwnedStages:
    """What one rank trains. All ranks build it at the same time, also those without a stage.

    Args:
        specification: Of the run.
        modules: Stages by name.
        communicator: The processes.
        program: Its optimizer, groups, schedule and average; None: the optimizer of the job.

    Attributes:
        modules: Stages by name.
        parameters: By full-model name, each once.
        group: The ranks of this rank's tensor-parallel group, itself where it is alone.
        position: Of this rank in its group.
        slices: The places of what is a slice of a parameter or buffer of the whole model, by name.
        stepped: What this rank's optimizer steps, by name: parameters, or its parts of those whose
            state replicas share.
        state_slices: The places of those that are parts of the whole model's, by name.
        optimizer: None on a rank without parameters.
        ranks: Those of the plan's devices.
        max_gradient_norm: Of all gradients of the model together; None for no limit.
        loss_scale: What the loss is multiplied by in float16; None in other formats.
    """

    def __init__(
        self,
        specification: RunSpecification,
        modules: dict[str, StageModule],
        communicator: Gatherer,
        program: TrainingProgram | None = None,
    ) -> None:
        self.modules = modules
        self._program = program or TrainingProgram()
        self.parameters: dict[str, nn.Parameter] = {}
        for module in modules.values():
            self.parameters.update(module.parameters_by_name())
        self._rank = communicator.rank
        self.position = specification.position(specification.devices[self._rank])
        self.slices = {
            name: piece for module in modules.values() for name, piece in module.slices.items()
        }
        gathered = communicator.gather(_told(modules), _Told)
        groups = _groups(specification)
        self.group = next((own for own in groups if self._rank in own), (self._rank,))
        self._held = _held(gathered, groups)
        self._buckets = gradient_buckets(specification, self._held)
        self._shared = SharedHeads(specification, self._held, self.group, self._rank)
        self._sums: dict[int, GradientSum | RegionSum | None] = {}
        self._sharded = ShardedState(
            self.parameters,
            self.slices,
            {
                index: (self.bucket_ranks(index), self._buckets[index].names_of(self._rank))
                for index, bucket in enumerate(specification.buckets)
                if bucket.is_sharded and self._takes_part(index)
            },
            self._rank,
        )
        alone = {n: p for n, p in self.parameters.items() if n not in self._sharded.names}
        self.stepped = {**alone, **self._sharded.stepped}
        self.state_slices = {**self.slices, **self._sharded.places}
        self.optimizer = program_optimizer(
            self._program,
            (specification.plan.job.optimizer, specification.learning_rate),
            self.stepped,
            {name: held.shape for name, held in self._held.items()},
        )
        self._updates = Updates(self._program, self.optimizer)
        self.loss_scale = LossScale.for_format(specification.plan.job.dtype)
        use_loss_scale(self.optimizer, self.loss_scale)
        self._gradient_factor: float | None = 1.0
        devices = specification.plan.devices
        self.ranks = tuple(sorted(specification.ranks[device] for device in devices))
        self.max_gradient_norm = specification.max_gradient_norm
        together = {ranks for bucket in self._buckets for ranks, _ in bucket.rings}
        together.update(*(bucket.meetings for bucket in self._buckets))
        together.update(self._shared.sums)
        if self.waits_for_norm:
            together.add(self.ranks)
        communicator.groups([ranks for ranks in together if len(ranks) > 1])
        self._num_scheduled = len(specification.buckets)

    def begin(self, step: int) -> None:
        """Goes to the place of the learning rate's schedule where `step` steps are done."""
        self._updates.begin(step)

    @property
    def not_handed_out(self) -> frozenset[str]:
        """Parameters whose state replicas share, after a step, until `gather_bucket`."""
        return self._sharded.not_handed_out

    def take_values(self, values: Mapping[str, Tensor]) -> None:
        """Gives parameters their values, by reference where they compute."""
        for name, parameter in self.parameters.items():
            parameter.data = values[name].to(parameter.device)
        self._sharded.look_anew()

    def stands_for(self, name: str) -> bool:
        """Whether this rank's part of a parameter is that which counts, of all that hold it."""
        return self._has_own_part(name) and min(self._held[name].groups, key=min) == self.group

    def saves_state_of(self, name: str) -> bool:
        """Whether this rank saves the optimizer's state of what it steps of a parameter."""
        if name in self._sharded.stepped:
            return self._has_own_part(name)
        return self.stands_for(name)

    def _has_own_part(self, name: str) -> bool:
        """Whether no rank in front of this one in its group has the same of a parameter."""
        return self._shared.is_first(name) if name in self.slices else self.position == 0

    def saves_counts_of(self, name: str) -> bool:
        """Whether it saves what of that state is no part of the whole: counts of steps."""
        if name in self._sharded.stepped:
            return self.position == 0 and self._sharded.is_first(name)
        return self.position == 0 and self.stands_for(name)

    @property
    def waits_for_norm(self) -> bool:
        """Whether all ranks of the plan add up a norm before they update."""
        return self.max_gradient_norm is not None or self.loss_scale is not None

    def begin_step(self, messenger: Messenger) -> float:
        """What the loss is multiplied by in this step; all ranks of the plan call it."""
        if self.loss_scale is None:
            return 1.0
        if self._rank in self.ranks:
            self.loss_scale.agree(lambda total: self._add_up(total, messenger))
        return self.loss_scale.value

    def bucket_ranks(self, index: int) -> tuple[int, ...]:
        """The ranks that begin the all-reduces of one bucket with this one."""
        return self._buckets[index].meeting(self._rank)

    def _takes_part(self, index: int) -> bool:
        return self.group in self._buckets[index].groups

    def optimizer_tensors(self) -> list[Tensor]:
        """All state of the optimizer; none before its first step."""
        if self.optimizer is None:
            return []
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    @property
    def unscheduled_buckets(self) -> range:
        """Owner sets without a bucket in the schedule: replicas of one half of a tie."""
        return range(self._num_scheduled, len(self._buckets))

    def bucket_parameters(self, index: int) -> list[nn.Parameter]:
        """The parameters of one bucket; none where this rank takes no part."""
        return [self.parameters[name] for name in self._buckets[index].names_of(self._rank)]

    def start_sum(self, index: int, messenger: Messenger) -> None:
        """Begins to sum the gradients of one bucket over its owners, where it has not begun.

        All owners call it, in one global order of buckets. Nothing may add to the gradients until
        `finish_sums`.
        """
        if index in self._sums:
            return
        rings = [
            RegionRing(
                partial(messenger.start_sum, ranks=ranks),
                listens,
                [(self.parameters[own.name], self._view(own)) for own in regions],
            )
            for ranks, listens, regions in self._buckets[index].regions_of(self._rank)
        ]
        if not rings:
            self._sums[index] = None
        elif self._buckets[index].is_alike:
            self._sums[index] = GradientSum([p for p, _ in rings[0].regions], rings[0].start)
        else:
            self._sums[index] = RegionSum(rings)

    def _view(self, region: Region) -> Callable[[Tensor], Tensor]:
        """What gives a region's view of a gradient of this rank's."""
        if region.box is None:
            return lambda gradient: gradient
        return partial(view_of, place=self.slices.get(region.name), box=region.box)

    def start_all_sums(self, messenger: Messenger) -> None:
        """The same for all buckets, where the action lists have not done so."""
        for index in range(len(self._buckets)):
            self.start_sum(index, messenger)

    def start_unscheduled_sums(self, messenger: Messenger) -> None:
        """The same for owner sets without a bucket in the schedule."""
        for index in self.unscheduled_buckets:
            self.start_sum(index, messenger)

    def finish_sums(self) -> None:
        """Waits for all sums that have begun; the gradients are sums then."""
        begun = [entry for entry in self._sums.values() if entry is not None]
        finish_sums([entry for entry in begun if isinstance(entry, GradientSum)])
        for entry in begun:
            if isinstance(entry, RegionSum):
                entry.finish()
        self._sums.clear()

    def reduce_bucket(self, index: int, messenger: Messenger) -> None:
        """Sums the gradients of one bucket over its owners, and waits; all of them call it."""
        self.start_sum(index, messenger)
        self.finish_sums()

    def update(self, messenger: Messenger) -> None:
        """One optimizer step with the gradients of this step, which are dropped afterwards."""
        self.complete_gradients(messenger)
        self.apply_gradients()

    def complete_gradients(self, messenger: Messenger, *, num_batches: int = 1) -> None:
        """Waits for all sums, and clips; all ranks of the plan call it.

        Owner sets without a bucket in the schedule are summed here.

        Args:
            messenger: Carries the sums.
            num_batches: Global batches that the gradients add up; they become the mean over these.
        """
        self.start_unscheduled_sums(messenger)
        self.finish_sums()
        self._shared.sum_terms(self.parameters, messenger)
        if self.loss_scale is not None:
            norm = self._squared_norm(messenger)
            self._gradient_factor = self.loss_scale.gradient_factor(
                norm, self.max_gradient_norm, num_batches
            )
            return
        scale_gradients(self.parameters.values(), 1 / num_batches)
        if self.max_gradient_norm is not None:
            norm = self._squared_norm(messenger)
            clip_gradients(self.parameters.values(), norm, self.max_gradient_norm)

    def apply_gradients(self) -> None:
        """One optimizer step; drops the gradients. In float16, overflown ones are dropped only."""
        if self.optimizer is not None:
            if self._gradient_factor is not None:
                self._sharded.take_gradients()
                step_scaled(self.optimizer, self.parameters.values(), self._gradient_factor)
            self._updates.after_step(self.stepped.values())
            self.optimizer.zero_grad(set_to_none=True)
        for name in self._sharded.names:
            self.parameters[name].grad = None
        if self.loss_scale is not None:
            self.loss_scale.update(is_skipped=self._gradient_factor is None)

    def gather_bucket(self, index: int, messenger: Messenger) -> None:
        """Hands out what each replica has stepped of a bucket; all of its ranks call it."""
        self._sharded.gather(index, messenger)

    def _squared_norm(self, messenger: Messenger) -> float:
        """Of all gradients of the model; all ranks of the plan call it."""
        own = [p for name, p in self.parameters.items() if self.stands_for(name)]
        device = next((p.device for p in self.parameters.values()), None)
        total = torch.tensor([squared_norm(own)], dtype=torch.float64, device=device)
        self._add_up(total, messenger)
        return float(total)

    def _add_up(self, tensor: Tensor, messenger: Messenger) -> None:
        """Replaces a tensor by its sum over the ranks of the plan."""
        if len(self.ranks) > 1:
            messenger.start_sum(tensor, self.ranks).wait()


def _told(modules: Mapping[str, StageModule]) -> _Told:
    """What a rank tells the others of its parameters."""
    found: _Told = {}
    for module in modules.values():
        for name, parameter in module.parameters_by_name().items():
            piece = module.slices.get(name)
            shape = tuple(parameter.shape) if piece is None else piece.shape
            found[name] = module.parameter_layers[name], shape
    return found


def _groups(specification: RunSpecification) -> list[tuple[int, ...]]:
    """The ranks of each group, and of each device that is alone."""
    groups = specification.plan.device_groups
    return [tuple(specification.ranks[name] for name in group) for group in groups]


def _held(gathered: Sequence[_Told], groups: Sequence[tuple[int, ...]]) -> dict[str, Held]:
    """Who holds which parameter, from what each rank told."""
    told = {name: own for each in gathered for name, own in each.items()}
    holders: dict[str, list[tuple[int, ...]]] = {name: [] for name in told}
    for group in groups:
        for name in gathered[group[0]]:
            holders[name].append(group)
    return {name: Held(*told[name], tuple(sorted(holders[name]))) for name in sorted(told)}
