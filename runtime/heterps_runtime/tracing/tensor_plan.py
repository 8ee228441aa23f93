"""Which parameters of a model a tensor-parallel group splits, and how.

Hugging Face models say it themselves (`_tp_plan`, that of the whole model); what a plan leaves out,
and models without one, get what `linear_pairs` finds. Embeddings and heads are split by vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd
from typing import Any, Literal, NamedTuple

from torch import nn

from heterps_configs.documents.model.tensor_split import TensorUnit
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tracing.linear_pairs import Flow, heads_of, linear_sizes, regions

# Rows of a vocabulary are padded to a multiple of this, so that groups can share any.
VOCABULARY_MULTIPLE = 64

# What of a parameter a device has: some outputs, some inputs, or of one that lies between the two
# and has a number for each output, some of these.
Role = Literal["column", "row", "inside"]
_STYLES: dict[str, Role] = {
    "colwise": "column",
    "packed_colwise": "column",
    "rowwise": "row",
}


class Piece(NamedTuple):
    """How one parameter is split.

    Attributes:
        num_units: Into how many parts it can be.
        of_experts: Whether it has a place for each expert.
        key_value_heads: Where its units are query heads that share heads of keys and values, how
            many of these there are; else 0.
        is_key_value: Whether it belongs to these, and comes in as many parts.
    """

    role: Role
    unit: TensorUnit
    num_units: int
    of_experts: bool = False
    key_value_heads: int = 0
    is_key_value: bool = False

    @property
    def num_parts(self) -> int:
        """How many parts there are of the parameter itself."""
        return self.key_value_heads if self.is_key_value else self.num_units


def tensor_plan(module: nn.Module, flow: Flow) -> dict[str, Piece]:
    """Every parameter that is split, by its canonical name."""
    plan = _own_plan(module, flow)
    sizes = linear_sizes(module)
    taken = {path for path in sizes if f"{path}.weight" in plan}
    for region in regions(flow, sizes, taken, _key_value_heads(module)):
        unit: TensorUnit = "heads" if region.has_attention else "columns"
        if any(_is_convolution(module, path) for path in region.rows):
            unit = "channels"
        most = max(region.heads.values(), default=region.num_units)
        for path in region.columns:
            num_units = region.heads.get(path, region.num_units)
            for name in ("weight", "bias"):
                role: Role = "column" if name == "weight" else "inside"
                plan[f"{path}.{name}"] = Piece(role, unit, num_units)
        for path in region.rows:
            plan[f"{path}.weight"] = Piece("row", unit, most)
        for name in region.inside:
            plan[name] = Piece("inside", unit, region.num_units)
    plan |= _vocabulary(module)
    names = canonical_names(module)
    known = {name: names[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    return {known[name]: piece for name, piece in plan.items() if name in known}


def parameter_owners(module: nn.Module) -> dict[str, str]:
    """Canonical names of the parameters of linear layers -> paths of the layers."""
    names = canonical_names(module)
    return {
        names[id(parameter)]: path
        for path in linear_sizes(module)
        for parameter in module.get_submodule(path).parameters()
    }


def _own_plan(module: nn.Module, flow: Flow) -> dict[str, Piece]:
    """What the model's class says, where it is one of Hugging Face."""
    styles = getattr(module, "_tp_plan", None) or {}
    if not styles or not hasattr(module, "config"):
        return {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    plan: dict[str, Piece] = {}
    sizes = linear_sizes(module)
    for pattern, style in styles.items():
        role = _STYLES.get(style)
        if role is None:
            continue
        expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        for name, parameter in parameters.items():
            path, _, last = name.rpartition(".")
            if expression.fullmatch(name) and parameter.dim() == 3:
                num_units = _expert_columns(module, parameter, style)
                plan[name] = Piece(role, "columns", num_units, of_experts=True)
            elif expression.fullmatch(path) and path in sizes:
                piece = _piece(module, flow, sizes, path, role)
                if last == "weight":
                    plan[name] = piece
                elif role == "column":
                    plan[name] = piece._replace(role="inside")
    return _without_single_heads(plan)


def _piece(
    module: nn.Module, flow: Flow, sizes: Mapping[str, tuple[int, int]], path: str, role: Role
) -> Piece:
    """How a linear layer is split that the model's plan names."""
    config, (width_in, width_out) = _text_config(module), sizes[path]
    own = width_out if role == "column" else width_in
    heads = heads_of(flow, sizes, path, None)
    if heads:
        return Piece(role, "heads", heads)
    count = getattr(config, "num_attention_heads", None)
    if re.search("attn|attention", path) and isinstance(count, int):
        # What an attention makes, or of one that no operation names as such.
        width = getattr(config, "head_dim", None) or config.hidden_size // count
        return Piece(role, "heads", gcd(count, own // width) if own % width == 0 else 1)
    return Piece(role, "columns", own)


def _without_single_heads(plan: dict[str, Piece]) -> dict[str, Piece]:
    """Keys and values of a single head are whole on every device."""
    return {name: piece for name, piece in plan.items() if piece.num_units > 1}


def _expert_columns(module: nn.Module, parameter: nn.Parameter, style: str) -> int:
    """Columns inside of each expert."""
    hidden = _text_config(module).hidden_size
    columns = parameter.numel() // (parameter.shape[0] * hidden)
    return int(columns // 2 if style.startswith("packed") else columns)


def _vocabulary(module: nn.Module) -> dict[str, Piece]:
    """Embeddings that are looked up by the sample, and what makes logits of as many classes."""
    tables: list[tuple[str, Any]]
    if not hasattr(module, "get_input_embeddings"):
        tables = [(p, part) for p, part in module.named_modules() if isinstance(part, nn.Embedding)]
    else:
        ends = [_asked(module, "get_input_embeddings"), _asked(module, "get_output_embeddings")]
        tables = [
            (path, part)
            for path, part in module.named_modules(remove_duplicate=False)
            if any(part is end for end in ends) and isinstance(part, nn.Embedding | nn.Linear)
        ]
    plan = {}
    for path, part in tables:
        rows = part.weight.shape[0]
        padded = -(-rows // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        num_units = padded if rows >= VOCABULARY_MULTIPLE else rows
        is_table = isinstance(part, nn.Embedding)
        role: Role = "row" if is_table else "column"
        plan[f"{path}.weight"] = Piece(role, "vocabulary", num_units)
        if getattr(part, "bias", None) is not None:
            plan[f"{path}.bias"] = Piece("inside", "vocabulary", num_units)
    return plan


def _asked(module: nn.Module, name: str) -> Any:
    """What a model of transformers answers; None where its class has no such table or head."""
    try:
        return getattr(module, name)()
    except (AttributeError, NotImplementedError):
        return None


def _text_config(module: nn.Module) -> Any:
    config: Any = module.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _key_value_heads(module: nn.Module) -> int | None:
    if not hasattr(module, "config"):
        return None
    config = _text_config(module)
    if getattr(config, "multi_query", False):
        return 1
    found = getattr(config, "num_key_value_heads", None)
    return found if isinstance(found, int) else None


def _is_convolution(module: nn.Module, path: str) -> bool:
    return module.get_submodule(path).weight.dim() == 4  # type: ignore[operator]
