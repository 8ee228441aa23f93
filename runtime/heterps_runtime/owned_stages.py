"""The stages of one rank: parameters by full-model name, gradient reduction, optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_runtime.communication import Communicator
from heterps_runtime.model_source import build_module
from heterps_runtime.optimizer import build_optimizer
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.stage import StageModule, build_stage


def build_stages(specification: RunSpecification, device: str) -> dict[str, StageModule]:
    """Builds the stages of one device, and nothing else of the model.

    Stages of one device that use the same parameter (tied weights, overlapping replicas) share it.
    """
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    modules: dict[str, StageModule] = {}
    shared: dict[str, nn.Parameter] = {}
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
        communicator: Communicator,
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
        groups = communicator.groups([ranks for ranks, _ in self._buckets if len(ranks) > 1])
        self._groups = {ranks: group for ranks, group in groups.items()}
        self._num_scheduled = len(specification.buckets)
        self._rank = communicator.rank

    def reduce_bucket(self, index: int) -> None:
        """Sums the gradients of one bucket over its owners; all of them call it."""
        ranks, names = self._buckets[index]
        if not names or self._rank not in ranks:
            return
        sum_gradients([self.parameters[name] for name in names], self._groups[ranks])

    def update(self) -> None:
        """One optimizer step with the gradients of this step, which are dropped afterwards.

        Owner sets without a bucket in the schedule (replicas of one half of a tie) are summed here.
        """
        for index in range(self._num_scheduled, len(self._buckets)):
            self.reduce_bucket(index)
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


def sum_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """One all-reduce of all gradients, and of who has one: what nobody used keeps none."""
    owned = list(parameters)
    has_gradient = torch.tensor(
        [parameter.grad is not None for parameter in owned], dtype=owned[0].dtype
    )
    pieces = [_gradient_or_zeros(parameter).reshape(-1) for parameter in owned]
    flat = torch.cat([*pieces, has_gradient])
    dist.all_reduce(flat, group=group)
    sums = torch.split(flat, [*(piece.numel() for piece in pieces), len(owned)])
    for parameter, total, count in zip(owned, sums[:-1], sums[-1].tolist(), strict=True):
        parameter.grad = total.view_as(parameter) if count else None


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
