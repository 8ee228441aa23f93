"""Master weights: an optimizer over float32 copies of parameters that have a smaller format.

The update of a weight is often smaller than half the distance between two numbers in bfloat16, and
would be lost. So the optimizer updates float32 copies, with float32 moments, and the parameters are
rounded from these (Micikevicius et al., Mixed Precision Training, 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heterps_runtime.stages.loss_scale import LOSS_SCALE, LossScale

# The key of the float32 copy in `optimizer.state[parameter]`.
MASTER = "master"
# Gradients in float32 at one time, while a step goes through the parameters.
_CHUNK_BYTES = 64 * 2**20

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
State = dict[str, Any]


def with_master_weights(
    parameters: Sequence[nn.Parameter], make: OptimizerFactory
) -> torch.optim.Optimizer:
    """An optimizer over some parameters, through float32 copies where any is in a smaller format.

    Args:
        parameters: What it updates.
        make: Makes the optimizer over float32 parameters.
    """
    if all(parameter.dtype == torch.float32 for parameter in parameters):
        return make(list(parameters))
    return MasterWeights(parameters, make)


class MasterWeights(torch.optim.Optimizer):
    """Updates float32 copies of parameters, and rounds the parameters from them.

    To the outside it is an optimizer over the parameters: `param_groups` has the settings of the
    inner optimizer, for schedulers of the learning rate, and `state[parameter]` has the copy under
    `MASTER` beside the state of the inner one. Before its first step a copy is what the parameter
    is; parameters in float32 need none.

    Args:
        parameters: What it updates.
        make: Makes the inner optimizer over the copies.

    Attributes:
        gradient_factor: What the next step multiplies gradients by, in float32.
    """

    gradient_factor = 1.0

    def __init__(self, parameters: Sequence[nn.Parameter], make: OptimizerFactory) -> None:
        masters = {
            p: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for p in parameters
        }
        self._inner = make(list(masters.values()))
        owners = {id(master): parameter for parameter, master in masters.items()}
        groups = [
            {**group, "params": [owners[id(master)] for master in group["params"]]}
            for group in self._inner.param_groups
        ]
        super().__init__(groups, dict(self._inner.defaults))
        self._masters = masters
        self._states = _States(masters, self._inner)
        self.state = self._states  # type: ignore[assignment]
        self._chunks = list(_chunks(masters))

    def use(self, loss_scale: LossScale) -> None:
        """Makes it part of the state of each parameter."""
        self._states.loss_scale = loss_scale

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The optimizer over the copies."""
        return self._inner

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient, some of them at a time."""
        assert closure is None
        self._states.take_values()
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update({key: value for key, value in group.items() if key != "params"})
        gradients = {p: p.grad for p in self._masters}
        for master in self._masters.values():
            master.grad = None  # the inner optimizer updates what has a gradient
        for chunk in self._chunks:
            for parameter in chunk:
                gradient = gradients[parameter]
                if gradient is not None:
                    self._masters[parameter].grad = self._float32(gradient)
            self._inner.step()
            for parameter in chunk:
                master = self._masters[parameter]
                master.grad = None
                if master is not parameter:
                    parameter.copy_(master)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient

    def _float32(self, gradient: Tensor) -> Tensor:
        """A gradient as the inner optimizer takes it; the own one stays as it is."""
        if self.gradient_factor == 1.0:
            return gradient.float()
        return gradient.to(torch.float32, copy=True).mul_(self.gradient_factor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` returned, each tensor in its own format."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, state in state_dict["state"].items():
            self._states[parameters[index]] = dict(state)
        for own, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            own.update({key: value for key, value in loaded.items() if key != "params"})


class _States(MutableMapping[nn.Parameter, State]):
    """The state of each parameter, its float32 copy included; none before a first step.

    Attributes:
        loss_scale: Part of each, where there is one.
    """

    def __init__(
        self, masters: dict[nn.Parameter, nn.Parameter], inner: torch.optim.Optimizer
    ) -> None:
        self._masters, self._inner = masters, inner
        self._untouched = {p for p, master in masters.items() if master is not p}
        self.loss_scale: LossScale | None = None

    def take_values(self) -> None:
        """The copies that nobody has given a value get that of their parameters."""
        for parameter in self._untouched:
            self._masters[parameter].copy_(parameter)
        self._untouched.clear()

    def __getitem__(self, parameter: nn.Parameter) -> State:
        master = self._masters[parameter]
        state = dict(self._inner.state.get(master, {}))
        if master is not parameter and parameter not in self._untouched:
            state[MASTER] = master.detach()
        if self.loss_scale is not None and self.loss_scale.is_used:
            state[LOSS_SCALE] = self.loss_scale.state
        if not state:
            raise KeyError(parameter)
        return state

    def __setitem__(self, parameter: nn.Parameter, state: State) -> None:
        own, master = dict(state), self._masters[parameter]
        value: Tensor | None = own.pop(MASTER, None)
        if value is not None and master is not parameter:
            master.data = value
            self._untouched.discard(parameter)
        scale: Tensor | None = own.pop(LOSS_SCALE, None)
        if scale is not None and self.loss_scale is not None:
            self.loss_scale.load(scale)
        if own:
            self._inner.state[master] = own

    def __delitem__(self, parameter: nn.Parameter) -> None:
        raise TypeError("the state of a parameter stays as long as the optimizer")

    def __iter__(self) -> Iterator[nn.Parameter]:
        is_scaled = self.loss_scale is not None and self.loss_scale.is_used
        for parameter, master in self._masters.items():
            is_touched = master is not parameter and parameter not in self._untouched
            if is_touched or is_scaled or self._inner.state.get(master):
                yield parameter

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _chunks(masters: dict[nn.Parameter, nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of parameters whose gradients take no more than `_CHUNK_BYTES`, or single ones."""
    chunk: list[nn.Parameter] = []
    held = 0
    for parameter, master in masters.items():
        need = 4 * master.numel()
        if chunk and held + need > _CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
        chunk.append(parameter)
        held += need
    if chunk:
        yield chunk
