"""A small Llama learns to write like a text, byte by byte: a training program.

    heterps place llama-tiny -c local-emulated --global-batch 16 -o plan.yaml
    heterps run plan.yaml --program heterps_runtime.examples.text_llama:make --steps 40 \
        --checkpoint saved
    heterps run plan.yaml --program heterps_runtime.examples.text_llama:make --steps 60 \
        --checkpoint saved --resume
    heterps export plan.yaml exported --to safetensors --checkpoint saved

Emulated devices are slow: a step takes two seconds. The text is the file that the variable `TEXT`
names; by default three plays by Shakespeare (Hamlet, Macbeth, A Midsummer Night's Dream), in the
public domain, as Project Gutenberg has them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.program import TrainingProgram

# As the shipped profile `llama-tiny` has them.
TOKENS = 64
SHIPPED = Path(__file__).with_name("three_plays.txt")
MOST_BYTES = 400_000
# Every fortieth window is for evaluation.
HELD_OUT = 40
RATE, WARM_UP_STEPS, DECAY_STEPS = 3e-3, 20, 1000


class Windows:
    """Runs of bytes of a text, one after the other; the target is the next byte.

    Args:
        text: As numbers.
        is_held_out: Only the windows for evaluation; else all others.
    """

    def __init__(self, text: Tensor, *, is_held_out: bool) -> None:
        self._text = text
        starts = range(0, len(text) - TOKENS, TOKENS)
        self._starts = [
            start for index, start in enumerate(starts) if (index % HELD_OUT == 0) == is_held_out
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.inputs_at(index), "labels": self.target_at(index)}

    def inputs_at(self, index: int) -> Tensor:
        """The bytes of a window; the first stage reads nothing else."""
        start = self._starts[index]
        return self._text[start : start + TOKENS]

    def target_at(self, index: int) -> Tensor:
        """The byte behind each of them, which the last stage reads."""
        start = self._starts[index] + 1
        return self._text[start : start + TOKENS]


def text_bytes() -> Tensor:
    """The text, at most `MOST_BYTES` of it."""
    path = Path(os.environ.get("TEXT", SHIPPED))
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as error:
        raise HeterpsError(f"TEXT: {path} cannot be read: {error.strerror}") from None
    if len(content) <= HELD_OUT * TOKENS:
        raise HeterpsError(
            f"TEXT: {path} has too little text: {len(content)} bytes, not above {HELD_OUT * TOKENS}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def rate(step: int) -> float:
    """A linear warm-up, then half a cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    share = min(1.0, (step - WARM_UP_STEPS) / DECAY_STEPS)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * share))


def make() -> TrainingProgram:
    """No weight decay on norms, a schedule, clipping, and an evaluation every 20 steps."""
    text = text_bytes()
    return TrainingProgram(
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
        parameter_groups=lambda name, shape: {"weight_decay": 0.1 if len(shape) > 1 else 0.0},
        schedule=lambda optimizer: LambdaLR(optimizer, rate),
        data=Windows(text, is_held_out=False),
        evaluation_data=Windows(text, is_held_out=True),
        evaluate_every=20,
        max_gradient_norm=1.0,
    )
