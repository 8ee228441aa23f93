"""What of a user's loop cannot run under a plan, told before the first update.

Ranks of a group compute one thing together: they need the same samples and the same loss. Who holds
a part of a parameter, or steps a part of it, needs an optimizer that treats each number alone.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from heterps_configs.errors import HeterpsError
from heterps_runtime.stages.master_weights import MasterWeights
from heterps_runtime.training.batches import Batch

LossFunction = Callable[[Tensor, Tensor], Tensor]
# Of torch's own, those whose update of a number depends on that number and its gradient alone.
_ELEMENTWISE = frozenset(
    {
        torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam,
        torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
        torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
    }
)  # fmt: skip
_TRIED_SHAPE, _TRIED_STEPS = (6, 4), 3


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer whose update of a part is not that part of its update.

    Those that are not torch's own are tried on a small parameter and on parts of it.

    Args:
        optimizer: Over parts of parameters.

    Raises:
        HeterpsError: It looks at whole parameters, or cannot be tried.
    """
    inner = optimizer.inner if isinstance(optimizer, MasterWeights) else optimizer
    kind = type(inner)
    if kind in _ELEMENTWISE:
        return
    try:
        whole, *parts = (_stepped(inner, dim) for dim in (None, 0, 1))
    except Exception as error:
        raise HeterpsError(
            f"optimizer: {kind.__name__} cannot be tried on a part of a parameter "
            f"({type(error).__name__}), and the plan's groups or shared state give it parts; "
            "use AdamW or SGD, say, or a plan without them"
        ) from error
    if not all(torch.allclose(whole, part, rtol=1e-5, atol=1e-7) for part in parts):
        raise HeterpsError(
            f"optimizer: {kind.__name__} computes with whole parameters, and the plan's groups or "
            "shared state give it parts; use AdamW or SGD, say, or a plan without them"
        )


def _stepped(optimizer: torch.optim.Optimizer, dim: int | None) -> Tensor:
    """A small parameter after some steps; in two parts along a dimension, where one is given."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(1 + _TRIED_STEPS, *_TRIED_SHAPE, generator=generator)

    def parts_of(tensor: Tensor) -> Sequence[Tensor]:
        return [tensor] if dim is None else tensor.chunk(2, dim)

    parameters = [nn.Parameter(part.clone()) for part in parts_of(start)]
    known = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.param_groups[0].items() if name in known}
    settings.pop("params", None)
    tried = type(optimizer)(parameters, **settings)
    for gradient in gradients:
        for parameter, part in zip(parameters, parts_of(gradient), strict=True):
            parameter.grad = part.clone()
        tried.step()
    found = [parameter.detach() for parameter in parameters]
    return found[0] if dim is None else torch.cat(found, dim)


def without_draws(loss: LossFunction) -> LossFunction:
    """A loss that ranks compute alike; refuses one that draws random numbers, when it first does.

    Raises:
        HeterpsError: From the first call.
    """
    is_known = False

    def checked(output: Tensor, target: Tensor) -> Tensor:
        nonlocal is_known
        if is_known:
            return loss(output, target)
        before = _random_state(output.device)
        total = loss(output, target)
        if not torch.equal(before, _random_state(output.device)):
            raise HeterpsError(
                "loss: draws random numbers, of which each rank of a group would draw its own; "
                "use a plan whose last stage is on one device"
            )
        is_known = True
        return total

    return checked


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def digests(batches: Mapping[int, Batch], *, with_target: bool) -> list[list[int]]:
    """Micro-batch, checksum of its inputs, and of its target, or -1 on a rank that reads none."""
    return [
        [
            number,
            zlib.crc32(b"".join(map(_bytes, inputs.values()))),
            zlib.crc32(_bytes(target)) if with_target else -1,
        ]
        for number, (inputs, target) in batches.items()
    ]


def check_same_samples(rows: Sequence[Sequence[Sequence[int]]], devices: Sequence[str]) -> None:
    """Refuses batches that differ between ranks that compute the same micro-batch.

    Args:
        rows: `digests` of each rank.
        devices: Names by rank.

    Raises:
        HeterpsError: They differ.
    """
    first: dict[tuple[int, str], tuple[int, int]] = {}
    for rank, own in enumerate(rows):
        for number, inputs, target in own:
            for what, found in (("inputs", inputs), ("target", target)):
                if found < 0:
                    continue
                other, expected = first.setdefault((number, what), (rank, found))
                if expected != found:
                    raise HeterpsError(
                        f"batch: the {what} of micro-batch {number} differ between ranks {other} "
                        f"({devices[other]}) and {rank} ({devices[rank]}); every rank needs the "
                        "same whole batch: one seed for all, no sampler that deals samples out"
                    )


def _bytes(tensor: Tensor) -> bytes:
    # As bytes: numpy knows no bfloat16.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
