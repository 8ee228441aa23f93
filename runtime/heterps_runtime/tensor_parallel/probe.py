"""A pass of a split model on fake tensors: does it run, and is each gradient whole?

The modules compute with the parts of one rank. What follows from these parts is *split* until a sum
over the group makes it whole. A whole tensor that meets a split one without having entered
(`sums`) would get one rank's term of its gradient for all of it; so would a parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models.build import arguments, meta_inputs
from heterps_runtime.models.fake_tensors import call_fake
from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.models.mixed_precision import autocast
from heterps_runtime.models.random_numbers import draws_numbers
from heterps_runtime.models.recording import canonical_names, select_output
from heterps_runtime.tensor_parallel.sums import GroupPass
from heterps_runtime.tracing.operation_log import is_plain, memory_of, tensors_of
from heterps_runtime.tracing.scans import scans_at_once

Shape = tuple[int, ...]
# Of what they read, the numbers of the last dimension are added up, or belong to one head.
_PRODUCTS_OF_ACTIVATIONS = ("aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")


class ProbeError(Exception):
    """A pass cannot be split.

    Attributes:
        path: Of the module that ran.
        parameter: The whole one that would not get all of its gradient, if any.
        made_by: Of a whole tensor that would not, the linear layer that it follows from, if one.
    """

    def __init__(
        self, path: str, reason: str, parameter: str | None = None, made_by: str | None = None
    ) -> None:
        super().__init__(reason)
        self.path, self.parameter, self.made_by = path, parameter, made_by


@dataclass
class Seen:
    """What a pass did.

    Attributes:
        made: Shapes of what each module returned, by path, call after call.
        is_split: Whether any of it was split, or has entered.
        products: Path, and numbers that are added up, of each product of two activations.
        draws: By unit, the shapes of its random numbers.
        output: Shape of what the loss reads.
    """

    made: dict[str, list[list[Shape]]] = field(default_factory=dict)
    is_split: dict[str, list[bool]] = field(default_factory=dict)
    products: list[tuple[str, int]] = field(default_factory=list)
    draws: dict[str, list[Shape]] = field(default_factory=dict)
    output: Shape = ()


class ProbePass(GroupPass):
    """Sums of nothing, which tell the probe what enters and leaves."""

    def __init__(self) -> None:
        super().__init__(_NoSums())
        self.probe: Probe | None = None

    def enter(self, tensor: Tensor) -> Tensor:
        """See `GroupPass.enter`; a copy that may meet what is split."""
        made = tensor.clone()
        if self.probe is not None:
            self.probe.enter(tensor, made)
        return made

    def leave(self, tensor: Tensor) -> Tensor:
        """See `GroupPass.leave`."""
        return self._whole(tensor)

    def gather(self, part: Tensor, start: int, size: int) -> Tensor:
        """See `GroupPass.gather`."""
        return self._whole(part.new_zeros((*part.shape[:-1], size)) + 0 * part[..., :1])

    def _whole(self, tensor: Tensor) -> Tensor:
        made = tensor.clone()
        if self.probe is not None:
            self.probe.split.discard(memory_of(made))
        return made


class _NoSums:
    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        return tensor


class Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a model once.

    Args:
        module: Its parameters are on the meta device.
        units: Paths of the model's units.
        split: Names of parameters of which it has a part; none for a whole model.
        holders: Paths of modules that are known to handle what is split.

    Attributes:
        heads: Paths of modules whose outputs stay split until the loss; none usually.
        logits: Memory of what follows from those.
        split: Memory of what is split.
        entered: Memory of what may meet it.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[str],
        split: frozenset[str] = frozenset(),
        holders: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module, self._units, self._names, self._holders = module, set(units), split, holders
        self.heads: frozenset[str] = frozenset()
        self.logits: set[int] = set()
        self.split: set[int] = set()
        self.entered: set[int] = set()
        self.seen = Seen()
        self._stack: list[str] = []
        self._alive: list[Any] = []
        self._parameters: dict[int, str] = {}
        self._linear = {path for path, part in module.named_modules() if is_linear_layer(part)}
        self._made_by: dict[int, str] = {}

    def enter(self, tensor: Tensor, made: Tensor) -> None:
        """A copy of a tensor is for each rank's own use.

        Raises:
            ProbeError: So is the tensor already: its gradient would be summed twice.
        """
        if memory_of(tensor) in self.entered:
            path = self._stack[-1] if self._stack else ""
            raise ProbeError(path, "what each rank uses on its own would enter once more")
        self.entered.add(memory_of(made))

    def run(self, source: ModelSource, batch_size: int, dtype: Dtype) -> Seen:
        """One forward pass.

        Raises:
            ProbeError: It fails, or a gradient would be incomplete.
        """
        args, kwargs = arguments(source, meta_inputs(source, batch_size), dtype)
        with ExitStack() as stack:
            for path, part in self._module.named_modules():
                enter, leave = self._hooks(path)
                stack.callback(part.register_forward_pre_hook(enter, prepend=True).remove)
                stack.callback(part.register_forward_hook(leave).remove)
            stack.enter_context(_silent())
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            state = self._fake_state()
            args = tuple(_fake(tensor) for tensor in args)
            kwargs = {name: _fake(tensor) for name, tensor in kwargs.items()}
            stack.enter_context(scans_at_once())
            stack.enter_context(autocast(dtype, "cpu"))
            try:
                with self:
                    output = torch.func.functional_call(
                        self._module, state, args, kwargs, tie_weights=False
                    )
                chosen = select_output(output)
                self.seen.output = tuple(chosen.shape)
                if self.heads and memory_of(chosen) not in self.logits:
                    raise ProbeError("", "the output is not what the head makes")
            except ProbeError:
                raise
            except Exception as error:
                reason = (str(error).strip().splitlines() or ["no message"])[0]
                path = self._stack[-1] if self._stack else ""
                raise ProbeError(path, f"{type(error).__name__}: {reason}") from error
        return self.seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = call_fake(func, args, kwargs)
        if func.namespace == "prim":
            return result
        read, made = tensors_of(args, kwargs), tensors_of(result)
        self._alive += [result, *(tensor.untyped_storage() for tensor in made)]
        path = self._stack[-1] if self._stack else ""
        name = func._schema.name
        if draws_numbers(func, args, kwargs):
            unit = next((p for p in self._stack if p in self._units), "")
            self.seen.draws.setdefault(unit, []).append(tuple(made[0].shape))
        if name.startswith(_PRODUCTS_OF_ACTIVATIONS) and not self._holders.intersection(
            self._stack
        ):
            self.seen.products.append((path, read[0].shape[-1]))
        if any(memory_of(tensor) in self.logits for tensor in read):
            if not is_plain(func):
                raise ProbeError(path, "what is done with the logits needs all of them")
            self.logits.update(memory_of(tensor) for tensor in made)
        if any(memory_of(tensor) in self.split for tensor in read):
            self._check(path, read)
            self.split.update(memory_of(tensor) for tensor in made)
        elif any(memory_of(tensor) in self.entered for tensor in read):
            self._check(path, read)
            self.entered.update(memory_of(tensor) for tensor in made)
        else:
            self._note_maker(path, read, made)
        return result

    def _note_maker(self, path: str, read: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """What follows from one linear layer alone, but for parameters and what has no gradient."""
        memories = [memory_of(tensor) for tensor in read if tensor.requires_grad]
        found = {self._made_by.get(own) for own in memories if own not in self._parameters}
        maker = path if path in self._linear else found.pop() if len(found) == 1 else None
        if maker is not None:
            self._made_by.update((memory_of(tensor), maker) for tensor in made)

    def _check(self, path: str, read: Sequence[Tensor]) -> None:
        """A whole tensor or parameter gets no gradient from what is split."""
        if self._holders.intersection(self._stack):
            return
        for tensor in read:
            memory = memory_of(tensor)
            if memory in self.split or memory in self.entered or not tensor.requires_grad:
                continue
            what = self._parameters.get(memory)
            raise ProbeError(
                path,
                f"the whole parameter {what} is used on a part of each rank's own"
                if what
                else "a whole tensor meets a split one",
                what,
                None if what else self._made_by.get(memory),
            )

    def _hooks(self, path: str) -> tuple[Any, Any]:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(path)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            if path in self.heads:
                self.logits.update(memory_of(tensor) for tensor in tensors)
            shapes = [tuple(tensor.shape) for tensor in tensors]
            self.seen.made.setdefault(path, []).append(shapes)
            self.seen.is_split.setdefault(path, []).append(
                any(memory_of(tensor) in self.split | self.entered for tensor in tensors)
            )

        return enter, leave

    def _fake_state(self) -> dict[str, Tensor]:
        names, state, by_id = canonical_names(self._module), {}, dict[int, Tensor]()
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if id(parameter) not in by_id:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype)
                by_id[id(parameter)] = fake.requires_grad_(parameter.requires_grad)
                self._parameters[memory_of(fake)] = names[id(parameter)]
                if names[id(parameter)] in self._names:
                    self.split.add(memory_of(fake))
            state[name] = by_id[id(parameter)]
        for name, buffer in self._module.named_buffers(remove_duplicate=False):
            state[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        self._alive.append(state)
        return state


@contextmanager
def _silent() -> Iterator[None]:
    """Torch reports shapes that do not fit before it raises: here that is a question."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _fake(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)
