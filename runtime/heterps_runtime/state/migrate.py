"""Migration: parameters and optimizer state go from the old plan's owners to those of the new one.

A tensor comes once to each rank that needs it and does not hold it, in pieces from all ranks that
hold it (`transfer`). What stays on its rank is handed over by reference: not a byte of it
moves. Running statistics (persistent buffers) travel like parameters, from the first replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.state.layout import (
    VALUE,
    Layouts,
    State,
    layouts_of,
    state_bytes,
    without_value,
)
from heterps_runtime.state.transfer import Peers, Transfer, arriving_layouts, balanced_pieces
from heterps_runtime.transport.communication import Communicator


@dataclass
class Migration:
    """What a rank holds after a migration.

    Attributes:
        optimizer_state: Of each parameter of the new stages, by its name in the whole model.
        bytes_received: From other ranks.
    """

    optimizer_state: State = field(default_factory=dict)
    bytes_received: int = 0


class Wanted(NamedTuple):
    """Names of what the stages of a rank consist of."""

    parameters: frozenset[str]
    buffers: frozenset[str]

    @classmethod
    def of(cls, modules: Iterable[StageModule]) -> Wanted:
        """All names of some stages."""
        stages = list(modules)
        return cls(
            frozenset(name for stage in stages for name in stage.parameters_by_name()),
            frozenset(name for stage in stages for name in stage.buffers_by_name()),
        )

    @property
    def names(self) -> frozenset[str]:
        """Names of parameters and buffers."""
        return self.parameters | self.buffers


def migrate(
    old: OwnedStages, modules: Mapping[str, StageModule], communicator: Communicator
) -> Migration:
    """Brings the state of the new stages to this rank, and puts parameters and buffers into them.

    Args:
        old: What this rank holds.
        modules: The new stages, freshly built.
        communicator: All ranks call this together.
    """
    return migrate_among(Peers.of(communicator), old, modules)


def migrate_among(peers: Peers, old: OwnedStages, modules: Mapping[str, StageModule]) -> Migration:
    """`migrate` for any kind of ranks."""
    held, own = state_of(old), Wanted.of(modules.values())
    gathered = peers.gatherer.gather((layouts_of(held), own), tuple[Layouts, Wanted])
    layouts = [layout for layout, _ in gathered]
    missing = [wanted.names - layout.keys() for layout, wanted in gathered]
    buffers = {name for _, wanted in gathered for name in wanted.buffers}
    pieces = balanced_pieces(layouts, missing, buffers)
    arriving = arriving_layouts(layouts, missing[peers.gatherer.rank])
    arrived = Transfer(peers, pieces, held, arriving).finish()
    state = {**held, **arrived}
    install(modules.values(), state, old.parameters)
    return Migration(
        optimizer_state={name: without_value(state[name]) for name in own.names},
        bytes_received=state_bytes(arrived),
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


def install(
    modules: Iterable[StageModule],
    state: Mapping[str, Mapping[str, Tensor]],
    parameters: Mapping[str, nn.Parameter] | None = None,
) -> None:
    """Puts values into stages: parameters by reference where they compute, buffers as copies.

    Args:
        modules: Freshly built. Two of them that use one parameter share it afterwards.
        state: Of all their parameters and buffers.
        parameters: Of the rank as it was; they are used again.
    """
    shared = dict(parameters or {})
    for module in modules:
        for name, fresh in module.parameters_by_name().items():
            if name not in shared:
                value = state[name][VALUE].to(fresh.device)
                shared[name] = nn.Parameter(value, fresh.requires_grad)
        module.use(shared)
        for name, buffer in module.buffers_by_name().items():
            buffer.copy_(state[name][VALUE])
