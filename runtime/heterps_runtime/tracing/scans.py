"""Selective scans of state-space models, all steps at once: the same costs in few operations.

Where the kernel is not installed, transformers loops over the positions of a sequence, nine
operations each. Traced one by one they take seconds for each layer; what they read, keep and
multiply is the same for all steps together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_NAME = "mamba_selective_scan"


@contextmanager
def scans_at_once() -> Iterator[None]:
    """Meanwhile the scans of transformers have the right shapes and costs, and no values."""
    found = {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and _NAME in vars(module)
    }
    before = {name: vars(module)[_NAME] for name, module in found.items()}
    for module in found.values():
        setattr(module, _NAME, _scan)
    try:
        yield
    finally:
        for name, module in found.items():
            setattr(module, _NAME, before[name])


def _scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    **options: Any,
) -> Any:
    """See `mamba_selective_scan` of transformers; inputs are (B, D, L) and (B, N, L)."""
    if options.get("delta_bias") is not None:
        dt = dt + options["delta_bias"].to(dt.dtype)[..., None]
    if options.get("delta_softplus"):
        dt = F.softplus(dt)
    weights = torch.exp(A[None, :, None, :] * dt[:, :, :, None])
    inner = dt[:, :, :, None] * B.transpose(1, 2)[:, None, :, :].float()
    added = inner * hidden_states[:, :, :, None].float()
    # In the place of the states of the step before, which have this size; they are kept once more
    # where the output is computed in another format.
    is_kept_twice = hidden_states.dtype != added.dtype
    states = weights * (added if is_kept_twice else inner).detach() + added
    outputs = torch.matmul(
        states.transpose(1, 2).to(hidden_states.dtype), C.transpose(1, 2).unsqueeze(-1)
    )
    result = outputs.squeeze(-1).transpose(1, 2)
    if options.get("D") is not None:
        result = result + hidden_states * options["D"][None, :, None]
    if options.get("z") is not None:
        result = result * F.silu(options["z"])
    return (result, states[:, :, -1]) if options.get("return_last_state") else result
