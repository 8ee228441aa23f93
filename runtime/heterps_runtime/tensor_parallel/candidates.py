"""Parameters that the cost model splits, as a rank would hold them; what is known not to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.models.layers import Layer
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from heterps_runtime.tracing.split_layouts import Section
from heterps_runtime.tracing.tensor_plan import Piece
from heterps_runtime.tracing.trace import TracedSplit

# Products of all experts at once want rows of whole 16 bytes, whatever the format.
_EXPERT_COLUMNS = 8
# Path, module, attribute.
_Holder = tuple[str, nn.Module, str]


def candidates(
    module: nn.Module, traced: TracedSplit
) -> tuple[dict[str, ParameterSplit], dict[str, str]]:
    """What could be split, by parameter, and by layer why something cannot.

    Args:
        module: The model; its parameters are on the meta device.
        traced: What the cost model splits of it.
    """
    names = canonical_names(module)
    holders: dict[str, list[_Holder]] = {}
    for path, part in module.named_modules():
        for attribute, parameter in part._parameters.items():
            if parameter is not None and names[id(parameter)] in traced.parameters:
                holders.setdefault(names[id(parameter)], []).append((path, part, attribute))
    found: dict[str, ParameterSplit] = {}
    reasons: dict[str, str] = {}
    for layer in traced.layers:
        for name in sorted(layer.parameters & traced.parameters.keys()):
            try:
                found[name] = _split(name, traced, holders[name])
            except ValueError as error:
                reasons.setdefault(layer.name, f"{name} {error}")
    return found, reasons


def without_layers(
    layers: Sequence[Layer], found: Mapping[str, ParameterSplit], reasons: dict[str, str]
) -> dict[str, ParameterSplit]:
    """What is left where some layers stay whole: all their parameters do, in other layers, too.

    Args:
        layers: Of the model.
        found: What could be split.
        reasons: By layer; those of layers that share a parameter with them are added.
    """
    own = {layer.name: {name for name in layer.parameters if name in found} for layer in layers}
    while True:
        kept = {
            name: split
            for name, split in found.items()
            if not any(name in own[layer] for layer in reasons if layer in own)
        }
        more = [
            layer
            for layer, names in own.items()
            if layer not in reasons and any(name not in kept for name in names)
        ]
        if not more:
            break
        for layer in more:
            (name, *_) = sorted(own[layer] - kept.keys())
            reasons[layer] = f"{name} is whole in another layer that uses it"
    return {
        name: split.changed(least_units=_least(name, kept, own)) for name, split in kept.items()
    }


def _least(name: str, kept: Mapping[str, ParameterSplit], own: Mapping[str, set[str]]) -> int:
    """The fewest units of what is split together: in one layer, or by a shared parameter."""
    together, before = {name}, set[str]()
    while together != before:
        before = together
        together = together.union(*(names for names in own.values() if names & together))
    return min(kept[other].num_units for other in together)


def _split(
    name: str,
    traced: TracedSplit,
    holders: Sequence[_Holder],
) -> ParameterSplit:
    """How a parameter is split.

    Raises:
        ValueError: It cannot be.
    """
    piece, (path, part, attribute) = traced.parameters[name].piece, holders[0]
    parameter = part._parameters[attribute]
    assert parameter is not None
    shape = tuple(parameter.shape)
    num_units, dim = piece.num_units, 0
    sections: tuple[Section, ...] | None = None
    if piece.unit == "vocabulary":
        num_units = shape[0]
        for _, other, _ in holders:
            _check_table(other)
    elif piece.of_experts:
        dim, sections = _of_experts(part, shape, piece)
        if num_units % _EXPERT_COLUMNS == 0:
            num_units //= _EXPERT_COLUMNS
    elif is_linear_layer(part):
        if attribute == "weight":
            dim = int((piece.role == "row") != (type(part).__name__ == "Conv1D"))
        if piece.role != "row" and len(part.weight.shape) == 2:  # type: ignore[arg-type]
            weight = traced.parameters.get(f"{path}.weight")
            sections = weight.sections if weight is not None else None
            if sections is None:
                raise ValueError("has outputs that are not read in whole units")
    elif not isinstance(part, nn.modules.batchnorm._BatchNorm):
        raise ValueError(f"belongs to a {type(part).__name__}, which is not known to be split")
    sections = sections or ((0, shape[dim]),)
    num_parts = piece.num_parts if piece.is_key_value else num_units
    if any(length % num_parts for _, length in sections):
        raise ValueError(f"has {shape[dim]} numbers, which do not divide into {num_parts}")
    return ParameterSplit(
        role=piece.role, unit=piece.unit, num_units=num_units, dim=dim, sections=sections,
        least_units=num_units, of_experts=piece.of_experts,
        key_value_heads=piece.key_value_heads, is_key_value=piece.is_key_value,
    )  # fmt: skip


def _check_table(part: nn.Module) -> None:
    """A table or head of a vocabulary must be a plain one.

    Raises:
        ValueError: It is not.
    """
    if isinstance(part, nn.Embedding):
        if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
            raise ValueError("is a table with max_norm, scale_grad_by_freq or sparse gradients")
    elif type(part) is not nn.Linear and part._parameters.keys() & {"weight"}:
        raise ValueError(f"is the head of a {type(part).__name__}, which is not known to be split")


def _of_experts(
    part: nn.Module, shape: Sequence[int], piece: Piece
) -> tuple[int, tuple[Section, ...]]:
    """Dimension and sections of a parameter with a place for each expert.

    Raises:
        ValueError: The experts have another layout than (experts, outputs, inputs), or biases.
    """
    own = {name: entry for name, entry in part._parameters.items() if entry is not None}
    if getattr(part, "is_transposed", False) or any(entry.dim() != 3 for entry in own.values()):
        raise ValueError("belongs to experts with biases or transposed weights")
    dim = 2 if piece.role == "row" else 1
    if shape[dim] == piece.num_units:
        return dim, ((0, shape[dim]),)
    if piece.role == "column" and shape[dim] == 2 * piece.num_units:
        return dim, ((0, piece.num_units), (piece.num_units, piece.num_units))
    raise ValueError("belongs to experts of an unknown layout")
