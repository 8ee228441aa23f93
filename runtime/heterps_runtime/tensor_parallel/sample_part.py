"""Calls of a stage's units for a rank's own samples; what enters and leaves them is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from heterps_configs.errors import HeterpsError
from heterps_envs.layer_costs.group_slice import GroupSlice, unit_ranges
from heterps_runtime.tensor_parallel.batch_call import BatchCall, gathered
from heterps_runtime.tensor_parallel.draws import sliced_draws
from heterps_runtime.tensor_parallel.parameter_split import SplitDraw
from heterps_runtime.tensor_parallel.sums import GroupPass
from heterps_runtime.tracing.operation_log import tensors_of

Forward = Callable[..., Any]
# Of the largest number, by which others may differ: in 16 bits, in more. Products of other sizes
# are rounded in other ways, and an expert may be chosen by that.
_ROUNDING = (0.05, 1e-3)
_MOST_DIFFERING = 0.01


class _Own(NamedTuple):
    """Samples of a rank: the first, the one behind the last, and of how many."""

    of: int
    start: int
    stop: int


class SamplePart:
    """What one rank does of the calls that its group splits by samples.

    Between two such calls samples stay apart, where nothing else reads them. The first time that a
    call is met, all samples come together behind it, and it is carried out for all of them, too:
    what it returns for a sample must not depend on others.

    Args:
        calls: Of the model.
        own: Numbers of those that the stage splits by samples.
        group: The rank's place.
        group_pass: Sums over the group.
    """

    def __init__(
        self,
        calls: Collection[BatchCall],
        own: Collection[int],
        group: GroupSlice,
        group_pass: GroupPass,
    ) -> None:
        self._calls: Mapping[int, BatchCall] = {c.number: c for c in calls if c.number in own}
        self._gathered = gathered(calls, own)
        self._group, self._group_pass = group, group_pass
        self._num_samples = 0
        self._checked: set[int] = set()

    def begin(self, num_samples: int) -> None:
        """A pass of a micro-batch begins."""
        self._num_samples = num_samples

    def around(self, number: int, unit: nn.Module, forward: Forward) -> Forward:
        """A call of a unit, for own samples; of fewer samples than ranks, each computes all.

        Args:
            number: Of the call.
            unit: The unit.
            forward: Its forward pass.
        """
        num_samples = self._num_samples  # a second pass may come when others have begun
        if number not in self._calls or num_samples < self._group.degree:
            return forward
        call, group, inner = self._calls[number], self._group, forward
        is_new = number not in self._checked
        self._checked.add(number)
        if any(call.draws):
            draws = [_draw(rows, num_samples) for rows in call.draws]
            forward = sliced_draws(forward, draws, group)
        own = _Own(num_samples, *unit_ranges(num_samples, group.shares)[group.rank])

        def for_own_samples(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree_flatten((args, kwargs))
            rows = iter(call.taken)
            taken = [
                self._take(leaf, next(rows), own) if isinstance(leaf, Tensor) else leaf
                for leaf in leaves
            ]
            expected = _for_all(inner, args, kwargs) if is_new else None
            args, kwargs = tree_unflatten(taken, structure)
            with self._entered(unit):
                output = forward(*args, **kwargs)
            if expected is not None:
                _check(call, own, output, expected)
            return self._returned(call, output, own, comes_together=is_new)

        return for_own_samples

    def _take(self, tensor: Tensor, rows: int, own: _Own) -> Tensor:
        if not rows:
            return self._group_pass.enter(tensor) if tensor.is_floating_point() else tensor
        if tensor.shape[0] != rows * own.of:
            return tensor  # of a call in front of this one, whose samples stay apart
        return self._group_pass.narrow(tensor, rows * own.start, rows * (own.stop - own.start))

    def _returned(self, call: BatchCall, output: Any, own: _Own, *, comes_together: bool) -> Any:
        leaves, structure = tree_flatten(output)
        numbers = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for number, (index, rows) in enumerate(zip(numbers, call.made, strict=True)):
            if not rows:
                is_first = self._group.rank == 0
                leaves[index] = self._group_pass.made_by_all(leaves[index], is_first)
            elif comes_together or number in self._gathered[call.number]:
                leaves[index] = self._group_pass.put_together(
                    leaves[index], rows * own.start, rows * own.of
                )
        return tree_unflatten(leaves, structure)

    @contextmanager
    def _entered(self, unit: nn.Module) -> Iterator[None]:
        """All ranks' samples have a part in the gradients of its parameters."""
        places = [
            (part, attribute, parameter)
            for part in unit.modules()
            for attribute, parameter in part._parameters.items()
            if parameter is not None
        ]
        parameters = list({id(parameter): parameter for *_, parameter in places}.values())
        entered = dict(
            zip(map(id, parameters), self._group_pass.enter_all(parameters), strict=True)
        )
        for part, attribute, parameter in places:
            # What lies in the module itself is found before its parameter of that name.
            part.__dict__[attribute] = entered[id(parameter)]
        try:
            yield
        finally:
            for part, attribute, _ in places:
                del part.__dict__[attribute]


def _draw(rows: int, num_samples: int) -> SplitDraw | None:
    return SplitDraw(dim=0, size=rows * num_samples, num_units=num_samples) if rows else None


def _for_all(forward: Forward, args: Any, kwargs: Any) -> Any:
    """What a call returns for all samples; random numbers go on as if it had not been."""
    with torch.no_grad(), torch.random.fork_rng():
        return forward(*args, **kwargs)


def _check(call: BatchCall, own: _Own, output: Any, expected: Any) -> None:
    """Own samples must be as they are among all others.

    Raises:
        HeterpsError: They are not.
    """
    pairs = zip(tensors_of(output), tensors_of(expected), strict=True)
    for rows, (found, whole) in zip(call.made, pairs, strict=True):
        if not rows or not found.is_floating_point():
            continue
        part = whole.narrow(0, rows * own.start, rows * (own.stop - own.start))
        allowed = _ROUNDING[found.element_size() > 2] * part.abs().max()
        differing = ((found - part).abs() > allowed).double().mean()
        if float(differing) > _MOST_DIFFERING:
            raise HeterpsError(
                f"{call.path}: what it returns for a sample depends on the other samples of its "
                "micro-batch; take its layer out of the stage's batch_layers"
            )
