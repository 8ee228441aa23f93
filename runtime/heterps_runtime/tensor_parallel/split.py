"""Makes the modules of a stage compute with a rank's part of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.tensor_parallel.draws import sliced_draws
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.tensor_parallel.sums import GroupPass

Forward = Callable[..., Any]


def split_module(
    module: nn.Module,
    plan: Mapping[str, ParameterSplit],
    slices: Mapping[str, TensorSlice],
    group: GroupSlice,
    group_pass: GroupPass,
    own: Mapping[str, nn.Parameter],
    keeps_logits: bool = False,
) -> None:
    """Changes the forward passes of modules whose own parameters are split.

    Args:
        module: Holds `own`, which have their local shapes.
        plan: Of the whole model.
        slices: Of `own`, those that are split.
        group: The rank's place.
        group_pass: Sums over the group.
        own: The stage's parameters by canonical name.
        keeps_logits: A head whose logits the loss reads (`cross_entropy`) leaves them split.
    """
    names = {id(parameter): name for name, parameter in own.items()}
    for part in module.modules():
        found = {
            attribute: names[id(parameter)]
            for attribute, parameter in part._parameters.items()
            if parameter is not None and names.get(id(parameter)) in slices
        }
        # A bias alone is another module's, which does what is done with it.
        if found and (found.keys() != {"bias"}):
            part.__dict__["forward"] = _forward(part, found, plan, slices, group_pass, keeps_logits)
    entering = {other for name in slices for other in plan[name].entering}
    for part in module.modules():
        attributes = [
            attribute
            for attribute, parameter in part._parameters.items()
            if names.get(id(parameter)) in entering
        ]
        if attributes:
            part.__dict__["forward"] = _with_entered(part, attributes, group_pass)
    for path in {path for name in slices for path in plan[name].outputs}:
        maker = module.get_submodule(path)
        maker.__dict__["forward"] = _with_entering_output(_own_forward(maker), group_pass)
    for name in slices:
        for count in plan[name].counts:
            path, _, attribute = count.rpartition(".")
            holder = module.get_submodule(path)
            whole = getattr(holder, attribute)
            setattr(holder, attribute, plan[name].counted(attribute, whole, group))
        for path, draws in plan[name].draws.items():
            unit = module.get_submodule(path)
            unit.__dict__["forward"] = sliced_draws(unit.forward, draws, group)


def split_buffers(
    module: nn.Module, slices: Mapping[str, TensorSlice], own: Mapping[str, nn.Parameter]
) -> dict[str, TensorSlice]:
    """Statistics of normalised channels are split as what scales these; which, by name."""
    names = {id(parameter): name for name, parameter in own.items()}
    found: dict[str, TensorSlice] = {}
    for path, part in module.named_modules():
        name = names.get(id(part._parameters.get("weight")), "")
        if not isinstance(part, nn.modules.batchnorm._BatchNorm) or name not in slices:
            continue
        for attribute, buffer in part._buffers.items():
            if buffer is not None and tuple(buffer.shape) == slices[name].shape:
                part._buffers[attribute] = slices[name].of(buffer)
                found[f"{path}.{attribute}" if path else attribute] = slices[name]
    return found


def _forward(
    part: nn.Module,
    found: Mapping[str, str],
    plan: Mapping[str, ParameterSplit],
    slices: Mapping[str, TensorSlice],
    group_pass: GroupPass,
    keeps_logits: bool,
) -> Forward:
    """What a module with split parameters does in the place of its own forward pass."""
    if any(plan[name].of_experts for name in found.values()):
        return _experts(part.forward, group_pass)
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return part.forward
    split, piece = plan[found["weight"]], slices[found["weight"]]
    if isinstance(part, nn.Embedding):
        lookup = _lookup(part, piece, group_pass)
        if type(part).forward is nn.Embedding.forward:
            return lookup
        return _with_lookup(part, lookup)
    assert is_linear_layer(part)
    is_head = split.unit == "vocabulary"
    if is_head and not (keeps_logits and split.ends_in_loss):
        return _head(part.forward, piece, group_pass)
    if is_head or split.role == "column":
        inner = _own_forward(part)
        return lambda tensor: inner(group_pass.enter(tensor))
    return _row(part, group_pass)


def _own_forward(part: nn.Module) -> Forward:
    """What a linear layer does, whatever its sizes, with or without a bias."""
    # GPT-2's layer knows its number of outputs, and needs a bias; not where another forward pass
    # has been put in its place.
    if type(part).__name__ != "Conv1D" or "forward" in vars(part):
        return part.forward

    def forward(tensor: Tensor) -> Tensor:
        weight = part._parameters["weight"]
        assert weight is not None
        return F.linear(tensor, weight.t(), part._parameters["bias"])

    return forward


def _row(part: nn.Module, group_pass: GroupPass) -> Forward:
    """Each rank has some inputs: the products are summed, and the bias comes once, behind."""
    inner = _own_forward(part)

    def forward(tensor: Tensor) -> Tensor:
        bias = part._parameters.get("bias")
        if bias is None:
            return group_pass.leave(inner(tensor))
        part._parameters["bias"] = None
        try:
            product = inner(tensor)
        finally:
            part._parameters["bias"] = bias
        total = group_pass.leave(product)
        shape = (-1, 1, 1) if isinstance(part, nn.Conv2d) else (-1,)
        return total + bias.to(total.dtype).view(shape)

    return forward


def _lookup(part: nn.Embedding, piece: TensorSlice, group_pass: GroupPass) -> Forward:
    """Each rank has some rows; what it does not have is zero in its term."""
    ((start, stop),) = piece.ranges
    padding = part.padding_idx
    has_padding = padding is not None and start <= padding < stop
    own_padding = cast(int, padding) - start if has_padding else None

    def forward(numbers: Tensor) -> Tensor:
        is_foreign = (numbers < start) | (numbers >= stop)
        local = (numbers - start).masked_fill(is_foreign, 0)
        found = F.embedding(local, part.weight, own_padding)
        return group_pass.leave(found.masked_fill(is_foreign.unsqueeze(-1), 0.0))

    return forward


def _with_lookup(part: nn.Embedding, lookup: Forward) -> Forward:
    """The forward pass of a class of its own, which scales what it finds, say."""
    inner = part.forward

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is F.embedding and args[1] is part.weight:
                return lookup(args[0])
            return func(*args, **(kwargs or {}))

    def forward(*args: Any, **kwargs: Any) -> Any:
        with Mode():
            return inner(*args, **kwargs)

    return forward


def _with_entered(part: nn.Module, attributes: Sequence[str], group_pass: GroupPass) -> Forward:
    """A module whose whole parameters are used on a rank's part."""
    inner = part.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        for attribute in attributes:
            parameter = part._parameters[attribute]
            assert parameter is not None
            # What lies in the module itself is found before its parameter of that name.
            part.__dict__[attribute] = group_pass.enter(parameter)
        try:
            return inner(*args, **kwargs)
        finally:
            for attribute in attributes:
                del part.__dict__[attribute]

    return forward


def _with_entering_output(inner: Forward, group_pass: GroupPass) -> Forward:
    """A whole layer, of whose output each rank uses all on its own part of others."""
    return lambda tensor: group_pass.enter(inner(tensor))


def _head(inner: Forward, piece: TensorSlice, group_pass: GroupPass) -> Forward:
    """Each rank has the logits of some classes; all get all of them."""
    ((start, _),), size = piece.ranges, piece.shape[0]

    def forward(tensor: Tensor) -> Tensor:
        return group_pass.gather(inner(group_pass.enter(tensor)), start, size)

    return forward


def _experts(inner: Forward, group_pass: GroupPass) -> Forward:
    """Each rank has some columns of all experts; a token's terms of all its experts are one sum."""

    def enter(tensor: Tensor) -> Tensor:
        return group_pass.enter(tensor) if tensor.is_floating_point() else tensor

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, enter, (args, kwargs))
        return tree_map_only(Tensor, group_pass.leave, inner(*args, **kwargs))

    return forward
