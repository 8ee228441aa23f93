"""The stages of one rank: parameters by full-model name, gradient reduction, optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from heterps_runtime.communication import Gatherer
from heterps_runtime.gradient_sums import flatten_gradients, sum_gradients
from heterps_runtime.messenger import Messenger
from heterps_runtime.model_source import build_module
from heterps_runtime.optimizer import build_optimizer
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.stage import StageModule, build_stage
from heterps_runtime.start_values import Sharing, StartValues, start_values


def build_stages(
    specification: RunSpecification, device: str, start: StartValues | None = None
) -> dict[str, StageModule]:
    """Builds the stages of one device, and nothing else of the model.

    Stages of one device that use the same parameter (tied weights, overlapping replicas) share it.

    Args:
        specification: Of the run.
        device: Its name.
        start: Where the values come from; by default as the specification says.
    """
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    modules: dict[str, StageModule] = {}
    shared: dict[str, nn.Parameter] = {}
    start = start or start_values(specification)
    for stage in specification.plan.stages:
        if device in stage.devices:
            module = build_stage(
                profile.source,
                profile,
                stage.first_layer,
                stage.last_layer,
                micro_batch_size=job.micro_batch_size,
                seed=specification.seed,
                dtype=job.dtype,
                recompute_layers=stage.recompute_layers,
                defers_weight_gradients=job.schedule == "zero-bubble"
                and specification.engine == "heterps",
                start=Sharing(start, shared),
            )
            module.train()
            for size in set(job.micro_batch_sizes):
                module.specs(size)
            module.use(shared)
            shared.update(module.parameters_by_name())
            modules[stage.name] = module
    if specification.is_online and not modules:
        # Imports the model's libraries now: a device that joins later must not keep all waiting.
        build_module(profile.source)
    return modules


class OwnedStages:
    """What one rank trains. All ranks build it at the same time, also those without a stage.

    Attributes:
        modules: Stages by name.
        parameters: By full-model name, each once.
        owners: For every parameter of the model, the ranks that hold it.
        optimizer: None on a rank without parameters.
    """

    def __init__(
        self,
        specification: RunSpecification,
        modules: dict[str, StageModule],
        communicator: Gatherer,
    ) -> None:
        self.modules = modules
        self.parameters: dict[str, nn.Parameter] = {}
        for module in modules.values():
            self.parameters.update(module.parameters_by_name())
        self.optimizer = build_optimizer(
            specification.plan.job.optimizer,
            self.parameters.values(),
            specification.learning_rate,
        )
        self.owners = owners_by_name(communicator.gather(sorted(self.parameters)))
        self._buckets = _assign_buckets(specification, self.owners)
        communicator.groups([ranks for ranks, _ in self._buckets if len(ranks) > 1])
        self._num_scheduled = len(specification.buckets)
        self._rank = communicator.rank

    def bucket_ranks(self, index: int) -> tuple[int, ...]:
        """The ranks that take part in the all-reduce of one bucket."""
        return self._buckets[index][0]

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

    def flat_gradients(self, index: int) -> Tensor | None:
        """The gradients of one bucket in one tensor, and who has one; None for no part in it."""
        parameters = self._bucket_parameters(index)
        return flatten_gradients(parameters) if parameters else None

    def reduce_bucket(self, index: int, messenger: Messenger) -> None:
        """Sums the gradients of one bucket over its owners; all of them call it."""
        parameters, ranks = self._bucket_parameters(index), self.bucket_ranks(index)
        if parameters:
            sum_gradients(parameters, lambda piece: messenger.start_sum(piece, ranks))

    def _bucket_parameters(self, index: int) -> list[nn.Parameter]:
        """None where this rank takes no part."""
        ranks, names = self._buckets[index]
        return [self.parameters[name] for name in names] if self._rank in ranks else []

    def update(self, messenger: Messenger) -> None:
        """One optimizer step with the gradients of this step, which are dropped afterwards.

        Owner sets without a bucket in the schedule are summed here.
        """
        for index in self.unscheduled_buckets:
            self.reduce_bucket(index, messenger)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def owners_by_name(names_by_rank: Iterable[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """For each name, the ranks that hold it in increasing order; names are sorted."""
    owners: dict[str, list[int]] = {}
    for rank, names in enumerate(names_by_rank):
        for name in names:
            owners.setdefault(name, []).append(rank)
    return {name: tuple(owners[name]) for name in sorted(owners)}


def _assign_buckets(
    specification: RunSpecification, owners: Mapping[str, tuple[int, ...]]
) -> list[tuple[tuple[int, ...], list[str]]]:
    """(ranks, parameter names): the schedule's buckets in order, then what they do not cover."""
    ranks = specification.ranks
    buckets: list[tuple[tuple[int, ...], list[str]]] = [
        (tuple(sorted(ranks[device] for device in bucket.devices)), [])
        for bucket in specification.buckets
    ]
    for name, holders in owners.items():
        if len(holders) > 1:
            names = next((names for group, names in buckets if group == holders), None)
            if names is None:
                names = []
                buckets.append((holders, names))
            names.append(name)
    return buckets
