"""Linear layers and convolutions that a group of devices can split in pairs.

Of a pair, the first is split by its outputs and the second by its inputs, so that one sum behind
the second makes all whole again (Shoeybi et al., Megatron-LM, 2019). It is legal where all that the
first makes goes, through pointwise operations, views and attention, to the second alone. On either
side there may be several: query, key and value; gate and up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd

from torch import Tensor, nn

from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.tracing.operation_log import ATTENTION, Operation, OperationLog, memory_of


@dataclass(frozen=True)
class Region:
    """What lies between layers that are split by outputs and those behind them, by inputs.

    Attributes:
        columns: Paths of modules that are split by their outputs.
        rows: Paths of modules that are split by their inputs.
        inside: Names of parameters between them with a number for each output (batch norm).
        has_attention: Whether heads are split.
        num_units: Heads, columns or channels.
        heads: Where each layer split by outputs makes heads of one kind, how many of these: keys
            and values may have fewer than queries. By path; else empty.
    """

    columns: frozenset[str]
    rows: frozenset[str]
    inside: frozenset[str]
    has_attention: bool
    num_units: int
    heads: Mapping[str, int]


@dataclass
class Flow:
    """How what linear layers make goes on.

    Attributes:
        heads: Of each layer whose output reaches an attention, heads and numbers of each.
        feeds: Of each layer, those whose outputs it reads.
        broken: Those whose output goes elsewhere as well.
        widths: Of what follows from each, the numbers in its dimension of outputs or channels.
        inside: By layer, parameters that its output passes.
    """

    heads: dict[str, tuple[int, int]] = field(default_factory=dict)
    feeds: dict[str, frozenset[str]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    widths: dict[str, set[int]] = field(default_factory=dict)
    inside: dict[str, set[str]] = field(default_factory=dict)


def linear_sizes(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every linear layer and plain convolution, by path."""
    sizes = {}
    for path, part in module.named_modules():
        if is_linear_layer(part) and getattr(part, "groups", 1) == 1:
            shape = tuple(part.weight.shape)
            is_transposed = type(part).__name__ == "Conv1D"
            sizes[path] = (shape[0], shape[1]) if is_transposed else (shape[1], shape[0])
    return sizes


def flow_of(
    log: OperationLog,
    names: Mapping[int, str],
    owners: Mapping[str, str],
    layer_of_call: Mapping[int, int],
) -> Flow:
    """Follows what linear layers make through the forward pass.

    Args:
        log: Of the pass.
        names: Names of parameters, by memory.
        owners: Names of their parameters -> paths of the linear layers.
        layer_of_call: What goes to another layer of the profile is whole.
    """
    return _Walk(names, owners, layer_of_call).run(log)


class _Walk:
    """The state of one walk over the operations."""

    def __init__(
        self,
        names: Mapping[int, str],
        owners: Mapping[str, str],
        layer_of_call: Mapping[int, int],
    ) -> None:
        self._names, self._owners, self._layer_of_call = names, owners, layer_of_call
        self._flow = Flow()
        self._labels: dict[int, frozenset[str]] = {}
        self._layer: dict[str, int] = {}
        self._axis: dict[str, int] = {}

    def run(self, log: OperationLog) -> Flow:
        for operation in log.forward:
            self._step(operation)
        return self._flow

    def _step(self, operation: Operation) -> None:
        own = {self._names[m] for m in map(memory_of, operation.read) if m in self._names}
        passing = self._of(*operation.read)
        layer = self._layer_of_call[operation.call]
        flow = self._flow
        flow.broken |= {label for label in passing if self._layer[label] != layer}
        linear = {self._owners[name] for name in own if name in self._owners}
        if len(linear) == 1:
            (path,) = linear
            if any(memory_of(made) in self._names for made in operation.made):
                return  # a view of the parameter
            if path in passing:  # the bias, in an operation of its own
                passing -= {path}
            elif path in flow.feeds:
                flow.broken |= {path, *flow.feeds[path], *passing}  # called twice
            else:
                flow.feeds[path] = passing
            self._layer[path] = layer
            self._axis[path] = 1 if "convolution" in operation.name else -1
            self._set(operation, frozenset({path}))
            return
        if not passing:
            return
        if operation.name == ATTENTION:
            for label in passing:
                flow.heads[label] = operation.read[0].shape[-3], operation.read[0].shape[-1]
        elif operation.is_batch_norm:
            for label in passing:
                flow.inside.setdefault(label, set()).update(own)
        elif not operation.is_plain or own or self._meets_a_whole(operation):
            flow.broken |= passing
            return
        for label in passing:
            found = {
                tensor.shape[self._axis[label]] for tensor in operation.made if tensor.dim() > 1
            }
            flow.widths.setdefault(label, set()).update(found)
        self._set(operation, passing)

    def _meets_a_whole(self, operation: Operation) -> bool:
        """Whether a pointwise operation also reads what every device has whole."""
        return any(
            follows and tensor.numel() > 1 and not self._of(tensor)
            for tensor, follows in zip(operation.read, operation.follows, strict=True)
        )

    def _of(self, *tensors: Tensor) -> frozenset[str]:
        return frozenset().union(*(self._labels.get(memory_of(t), frozenset()) for t in tensors))

    def _set(self, operation: Operation, labels: frozenset[str]) -> None:
        for tensor in operation.made:
            self._labels[memory_of(tensor)] = labels


def regions(
    flow: Flow, sizes: Mapping[str, tuple[int, int]], taken: set[str], key_value_heads: int | None
) -> Iterator[Region]:
    """What can be split, in order of execution; no layer twice.

    Args:
        flow: How outputs go on.
        sizes: Inputs and outputs of the linear layers.
        taken: Layers that are not asked for; those that are found are added.
        key_value_heads: Where the model says it.
    """
    readers: dict[str, set[str]] = {}
    for row, feeding in flow.feeds.items():
        for column in feeding:
            readers.setdefault(column, set()).add(row)
    for first in flow.feeds:
        rows, columns = set(readers.get(first, ())), {first}
        while True:  # all that hangs together
            more = {column for row in rows for column in flow.feeds[row]}
            further = {row for column in more for row in readers[column]}
            if more <= columns and further <= rows:
                break
            columns, rows = columns | more, rows | further
        both = rows | columns
        if not rows or both & taken or rows & columns or columns & flow.broken:
            continue
        num_units = _num_units(flow, sizes, columns, rows, key_value_heads)
        if num_units < 2:
            continue
        taken.update(both)
        yield Region(
            frozenset(columns),
            frozenset(rows),
            frozenset().union(*(flow.inside.get(column, ()) for column in columns)),
            any(column in flow.heads for column in columns),
            num_units,
            _heads_of_one_kind(flow, sizes, columns),
        )


def _heads_of_one_kind(
    flow: Flow, sizes: Mapping[str, tuple[int, int]], columns: set[str]
) -> dict[str, int]:
    """Heads of each column; none where one has queries, keys and values packed, or no heads."""
    if not columns <= flow.heads.keys():
        return {}
    own = {column: divmod(sizes[column][1], flow.heads[column][1]) for column in columns}
    if any(rest or flow.heads[column][0] % heads for column, (heads, rest) in own.items()):
        return {}
    return {column: heads for column, (heads, _) in own.items()}


def _num_units(
    flow: Flow,
    sizes: Mapping[str, tuple[int, int]],
    columns: set[str],
    rows: set[str],
    key_value_heads: int | None,
) -> int:
    """Heads, or columns; 0 where they do not fit together."""
    attending = [column for column in columns if column in flow.heads]
    if attending:
        return gcd(*(heads_of(flow, sizes, column, key_value_heads) for column in columns))
    widths = {sizes[row][0] for row in rows}
    if len(widths) > 1:
        return 0
    (width,) = widths
    for column in columns:
        own = sizes[column][1]
        if own % width or not flow.widths.get(column, set()) <= {own, width}:
            return 0
    return width


def heads_of(
    flow: Flow, sizes: Mapping[str, tuple[int, int]], path: str, key_value_heads: int | None
) -> int:
    """Into how many parts the heads of one linear layer divide; 0 where it has none."""
    if path not in flow.heads:
        return 0
    heads, width = flow.heads[path]
    own = sizes[path][1]
    if own % width:
        return 0
    return gcd(heads, own // width, key_value_heads or heads)
