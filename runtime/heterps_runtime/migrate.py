"""Migration: parameters and optimizer state go from the old plan's owners to those of the new one.

Each tensor is sent once to each rank that needs it and does not hold it, by the smallest rank that
holds it. What stays on its rank is handed over by reference: not a byte of it moves. Running
statistics (persistent buffers) travel like parameters; replicas keep the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_runtime.communication import Communicator
from heterps_runtime.owned_stages import OwnedStages, owners_by_name
from heterps_runtime.stage import StageModule

VALUE = "value"  # key of the parameter or buffer itself, beside the keys of the optimizer state

State = dict[str, dict[str, Tensor]]  # name in the whole model -> key -> tensor


class TensorLayout(NamedTuple):
    """One tensor of a parameter or buffer: `VALUE` or a key of the optimizer's state."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Migration:
    """What a rank holds after a migration.

    Attributes:
        optimizer_state: Of each parameter of the new stages, by its name in the whole model.
        bytes_received: From other ranks.
    """

    optimizer_state: State = field(default_factory=dict)
    bytes_received: int = 0


def migrate(
    old: OwnedStages, modules: Mapping[str, StageModule], communicator: Communicator
) -> Migration:
    """Brings the state of the new stages to this rank, and puts parameters and buffers into them.

    Args:
        old: What this rank holds.
        modules: The new stages, freshly built.
        communicator: All ranks call this together.
    """
    held = state_of(old)
    layouts = communicator.gather({name: _layout(tensors) for name, tensors in held.items()})
    holders = owners_by_name(layouts)
    wanted = {
        name
        for module in modules.values()
        for name in (*module.parameters_by_name(), *module.buffers_by_name())
    }
    arriving: State = {}
    works: list[tuple[dist.Work | None, Tensor]] = []
    group, tag = communicator.directions["forward"], 0
    for name, ranks in owners_by_name(communicator.gather(sorted(wanted))).items():
        source = holders[name][0]
        for destination in (rank for rank in ranks if rank not in holders[name]):
            for key, shape, dtype in layouts[source][name]:
                tag += 1
                if communicator.rank == source:
                    # Through host memory, whatever either rank computes on.
                    tensor = held[name][key].cpu().contiguous()
                    works.append((dist.isend(tensor, destination, group, tag), tensor))
                elif communicator.rank == destination:
                    tensor = torch.empty(shape, dtype=dtype)
                    works.append((dist.irecv(tensor, source, group, tag), tensor))
                    arriving.setdefault(name, {})[key] = tensor
    for work, _ in works:
        assert work is not None
        work.wait()
    for module in modules.values():
        _install(module, old, held, arriving)
    moved = [tensor for tensors in arriving.values() for tensor in tensors.values()]
    return Migration(
        optimizer_state={
            name: {k: v for k, v in {**held, **arriving}[name].items() if k != VALUE}
            for name in wanted
        },
        bytes_received=sum(tensor.numel() * tensor.element_size() for tensor in moved),
    )


def state_of(owned: OwnedStages) -> State:
    """All that belongs to the stages of a rank: parameters, buffers, optimizer state."""
    state: State = {}
    for name, parameter in owned.parameters.items():
        state[name] = {VALUE: parameter.detach()}
        if owned.optimizer is not None:
            for key, value in owned.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    state[name][key] = value
    for module in owned.modules.values():
        state.update((name, {VALUE: buffer}) for name, buffer in module.buffers_by_name().items())
    return state


def load_optimizer_state(owned: OwnedStages, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Gives a fresh optimizer the state that its parameters had."""
    for name, parameter in owned.parameters.items():
        if state[name]:
            assert owned.optimizer is not None
            # Counts of steps stay on the CPU, as optimizers keep them.
            owned.optimizer.state[parameter] = {
                key: tensor.to(parameter.device) if tensor.shape == parameter.shape else tensor
                for key, tensor in state[name].items()
            }


def _layout(tensors: Mapping[str, Tensor]) -> list[TensorLayout]:
    return [TensorLayout(key, tuple(t.shape), t.dtype) for key, t in tensors.items()]


def _install(module: StageModule, old: OwnedStages, held: State, arriving: State) -> None:
    parameters = {}
    for name, fresh in module.parameters_by_name().items():
        if name in old.parameters:
            parameters[name] = old.parameters[name]
        else:
            value = arriving[name][VALUE].to(fresh.device)
            parameters[name] = nn.Parameter(value, fresh.requires_grad)
            # The same object for the next stage of this rank that uses it.
            old.parameters[name] = parameters[name]
    module.use(parameters)
    for name, buffer in module.buffers_by_name().items():
        buffer.copy_({**held, **arriving}[name][VALUE])
