"""A user's program with faults, as `torchrun` starts it; each rank writes what it raised.

torchrun --nproc-per-node 2 -m tests.runtime.faulty_script PLAN FOLDER FAULT...
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from heterps import PipelineTrainer, TrainingProgram
from heterps_configs.errors import HeterpsError
from heterps_runtime.process.without_compiler import keep_compiler_out
from tests.runtime.imitations import Imitation

keep_compiler_out()

BATCH = 16
# Longer than a test waits: a rank that learns of a fault only from another's end would be late.
LATE_S = 60.0


class _OnRank1(nn.Linear):
    """A layer that does something on real numbers only, and there on one rank."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__(16, 16)
        self._fault = fault

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        return self._fault(result) if type(x) is Tensor and not x.is_meta else result


def _fails(x: Tensor) -> Tensor:
    raise ValueError("this layer fails")


def _lacks_memory(x: Tensor) -> Tensor:
    return x + torch.empty(2**50)[0]


def _dies(x: Tensor) -> Tensor:
    os._exit(3)


class _Labelled(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:  # type: ignore[override]
        return super().forward(x), "a word"


class _Unlabelled(nn.Linear):
    def forward(self, pair: tuple[Tensor, str]) -> Tensor:  # type: ignore[override]
        return super().forward(pair[0])


class _Parcel:
    """What a pipeline cannot send: tensors inside an object that nobody knows."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class _Wrapped(nn.Linear):
    def forward(self, x: Tensor) -> _Parcel:  # type: ignore[override]
        return _Parcel(super().forward(x))


class _Unwrapped(nn.Linear):
    def forward(self, parcel: _Parcel) -> Tensor:  # type: ignore[override]
        return super().forward(parcel.x)


class _Transposed(nn.Linear):
    """Hands on a tensor that is not contiguous, and gets such a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).reshape(-1, 4, 4).transpose(1, 2)


class _Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2).reshape(-1, 16))


class _Words(nn.Linear):
    def forward(self, x: Tensor) -> str:  # type: ignore[override]
        super().forward(x)
        return "no tensor"


def _unpicklable() -> nn.Module:
    """A module that holds what cannot be pickled; ranks make their own, nothing is pickled."""
    module = _model(nn.Linear(16, 16))
    module.numbers = (number for number in range(3))  # type: ignore[assignment]
    return module


def _model(*inner: nn.Module, last: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), *inner, last or nn.Linear(16, 4))


FAULTS: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: _model(nn.Linear(16, 16)),
    "raises": lambda: _model(_OnRank1(_fails)),
    "lacks-memory": lambda: _model(_OnRank1(_lacks_memory)),
    "imitates": lambda: _model(_OnRank1(Imitation("forward"))),
    "dies": lambda: _model(_OnRank1(_dies)),
    "no-tensor-boundary": lambda: nn.Sequential(
        _Labelled(16, 16), _Unlabelled(16, 16), nn.Linear(16, 4)
    ),
    "opaque-boundary": lambda: nn.Sequential(
        _Wrapped(16, 16), _Unwrapped(16, 16), nn.Linear(16, 4)
    ),
    "not-contiguous": lambda: nn.Sequential(_Transposed(16, 16), _Flat(16, 16), nn.Linear(16, 4)),
    "unpicklable": _unpicklable,
    "no-tensor-output": lambda: _model(nn.Linear(16, 16), last=_Words(16, 4)),
    "wrong-output": lambda: _model(nn.Linear(16, 16), last=nn.Linear(16, 3)),
    "another-model": lambda: _model(nn.Tanh()),
}


def train(plan: str, fault: str) -> float:
    """Two steps."""
    trainer = PipelineTrainer(
        FAULTS[fault],
        plan,
        TrainingProgram(
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ),
    )
    generator = torch.Generator().manual_seed(1)
    # Four classes: an output of three numbers does not fit them.
    inputs = torch.randn(BATCH, 16, generator=generator)
    for _ in range(2):
        loss = trainer.step(inputs, torch.full((BATCH,), 3))
    return loss


def main(arguments: list[str]) -> int:
    """What a rank of our own launcher does: the plan is in the folder."""
    write_losses(str(Path(arguments[0], "plan.yaml")), *arguments)
    return 0


def write_losses(plan: str, folder: str, *faults: str) -> None:
    """Writes the losses and errors by fault; a rank that has failed lives on for a while."""
    path = Path(folder, f"rank-{os.environ['RANK']}.json")
    found = {}
    for fault in faults:
        try:
            found[fault] = repr(train(plan, fault))
        except HeterpsError as error:
            found[fault] = str(error)
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)
    deadline_s = time.monotonic() + LATE_S
    # What a notebook does; the others must not wait for its end.
    while len(list(Path(folder).glob("rank-*.json"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)


if __name__ == "__main__":
    write_losses(*sys.argv[1:])
