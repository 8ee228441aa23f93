"""A training program around `small_runs.sequential`, and the same training as plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.optim.swa_utils import AveragedModel

from heterps_runtime.models.initialise import initial_values
from heterps_runtime.training.program import TrainingProgram
from tests.runtime.small_runs import sequential

PLACE = f"{__file__}:make"
# The third step of an epoch has half a batch, and two micro-batches without any sample.
NUM_SAMPLES, BATCH = 40, 16
# Evaluated samples fill one batch and a bit, training ends early.
NUM_EVALUATED, LAST_STEP = 21, 6
RATE, NORM, DECAY = 0.05, 0.5, 0.9


class PointData:
    """Points by index, and in which quarter of the plane they are."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        drawn = np.random.default_rng(1).standard_normal((num_samples, 8))
        self.x = torch.from_numpy(drawn).float()
        self.y = (self.x[:, 0] > 0).long() + 2 * (self.x[:, 1] > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class NoisyPoints(PointData):
    """The same, moved by random numbers when they are read."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + torch.rand(8), self.y[index]


class PointRow:
    """The same in a row, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = PointData()
        return (data[index] for index in range(len(data)))


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """Not the one that the plan's model names."""
    return nn.functional.cross_entropy(output, target, label_smoothing=0.1)


def groups(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """No decay on biases."""
    return {"weight_decay": 0.0} if len(shape) < 2 else {"weight_decay": 0.1}


def schedule(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """A warm-up for one group, decay for the other."""
    warm_up = [lambda step: min(1.0, (step + 1) / 4), lambda step: 1 / (1 + step)]
    return LambdaLR(optimizer, warm_up)


def make() -> TrainingProgram:
    """All features at once."""
    return TrainingProgram(
        loss=mean_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
        parameter_groups=groups,
        schedule=schedule,
        data=PointData(),
        max_gradient_norm=NORM,
        ema_decay=DECAY,
    )


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of samples that are put into their quarter."""
    return (output.argmax(-1) == target).float().mean()


def make_evaluated() -> TrainingProgram:
    """The same, evaluated every second step, and ended early."""
    return replace(
        make(),
        evaluation_data=PointData(NUM_EVALUATED),
        evaluate_every=2,
        metrics={"accuracy": accuracy},
        callbacks=[lambda step, figures: step >= LAST_STEP and "evaluation loss" in figures],
    )


def make_with_workers() -> TrainingProgram:
    """The same as `make`, with samples from processes."""
    return replace(make(), num_workers=2)


def make_with_noise() -> TrainingProgram:
    """The same, with samples that draw random numbers."""
    return replace(make_with_workers(), data=NoisyPoints())


class Journal:
    """A user's own state: what the callbacks have seen, and random numbers."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.generator = torch.Generator().manual_seed(3)

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """A callback."""
        self.losses[step] = figures["loss"]
        torch.rand(1, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        return {"losses": self.losses, "random": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.losses = dict(state["losses"])
        self.generator.set_state(state["random"])


def make_with_journal() -> TrainingProgram:
    """The same as `make`, with state of its own."""
    journal = Journal()
    return replace(make(), state={"journal": journal}, callbacks=[journal.note])


class PlainTraining(NamedTuple):
    """What plain torch finds.

    Attributes:
        losses: Of each step.
        model: Afterwards.
        average: Of its parameters.
        evaluations: Mean loss and accuracy after each step.
    """

    losses: list[float]
    model: nn.Module
    average: dict[str, Tensor]
    evaluations: list[tuple[float, float]]


def first_values(seed: int) -> dict[str, Tensor]:
    """Of the model's parameters."""
    with torch.device("meta"):
        blank = sequential()
    return initial_values(blank, [name for name, _ in blank.named_parameters()], seed)


def plain_training(steps: int, seed: int = 0) -> PlainTraining:
    """`make` as a loop in one process, without heterps but for the first values."""
    model = sequential()
    model.load_state_dict(first_values(seed))
    named = sorted(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.1},
        ],
        lr=RATE,
    )
    rates, data, losses = schedule(optimizer), PointData(), []
    others, evaluations = PointData(NUM_EVALUATED), []
    average = AveragedModel(model, avg_fn=lambda old, new, _: DECAY * old + (1 - DECAY) * new)
    for step in range(steps):
        epoch, number = divmod(step, -(-NUM_SAMPLES // BATCH))
        order = np.random.default_rng((seed, epoch)).permutation(NUM_SAMPLES)
        due = order[number * BATCH : (number + 1) * BATCH]
        loss = mean_loss(model(data.x[due]), data.y[due])
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        rates.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            output = model(others.x)
            found = mean_loss(output, others.y), accuracy(output, others.y)
        evaluations.append((float(found[0]), float(found[1])))
    return PlainTraining(losses, model, dict(average.module.named_parameters()), evaluations)
