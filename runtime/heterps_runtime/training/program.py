"""A training program: everything of a training that is the user's own.

    def make() -> TrainingProgram:
        return TrainingProgram(
            loss=token_loss,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
            data=Tokens("text.txt"),
        )

`heterps run plan.yaml --program train.py:make` calls the function on every rank. What is left out
is the plan's: its model and loss, the optimizer of its job, synthetic batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from heterps_configs.arguments import check_callable, check_number, check_type, check_whole
from heterps_configs.errors import HeterpsError
from heterps_runtime.training.collating import Collate, collate_samples
from heterps_runtime.training.own_state import Stateful

LossFunction = Callable[[Tensor, Tensor], Tensor]
# Takes parameters, or groups of them with their own settings, as every optimizer of torch does.
OptimizerFactory = Callable[[list[Any]], torch.optim.Optimizer]
# Settings of a parameter's group, by its name in the whole model and its shape there.
GroupRule = Callable[[str, tuple[int, ...]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingProgram:
    """Model, loss, optimizer and data of a training; every rank makes its own.

    Attributes:
        model: Returns a new module, with the layers of the plan's model; None: the plan's own. Its
            values are initialised from the run's seed, or read from the run's weights.
        loss: Mean loss of some samples from the model's output (the first tensor, or `logits`) and
            their target; None: the one that the plan's model names.
        optimizer: Makes an optimizer; not called where a rank has nothing to train. None: the
            optimizer of the plan's job.
        parameter_groups: Settings that a parameter has of its own, such as `{"weight_decay": 0.0}`;
            those with equal settings become one group of the optimizer, the same on every rank.
        schedule: Makes a scheduler of the learning rate, which is stepped after every update; what
            it does must depend on the number of the step alone.
        data: Has samples by index (`__getitem__`, `__len__`), or in a row (`__iter__`). A sample is
            inputs and target; or one mapping, of which `target` is the target.
        evaluation_data: The same, for evaluation.
        evaluate_every: Steps between two evaluations; 0 for none.
        metrics: Beside the loss of an evaluation, means over samples, by name.
        collate: Makes a batch (inputs and target) of a list of samples.
        target: Key of the target in samples that are one mapping.
        shuffle: Draw the order of each epoch from the run's seed; not of data in a row.
        num_workers: Processes of each rank that make its samples; 0: a thread does. In such a
            process, the random numbers that a sample draws (torch, numpy, random) are a function of
            the run's seed, the step and the sample.
        drop_last: Leave out the samples of an epoch that fill no batch; else they are a smaller
            batch, whose loss is the mean over those samples.
        max_gradient_norm: Gradients are clipped to it, where the run's settings say nothing.
        ema_decay: Of a moving average of the parameters, which is kept beside them and saved.
        state: What else is saved with a checkpoint and goes on from there, by name: all that has
            `state_dict` and `load_state_dict`. Rank 0's is saved.
        callbacks: Called after each step with its number and its figures (`loss`; after an
            evaluation its figures, too); the run ends early where rank 0's returns True.
    """

    model: Callable[[], nn.Module] | None = None
    loss: LossFunction | None = None
    optimizer: OptimizerFactory | None = None
    parameter_groups: GroupRule | None = None
    schedule: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    data: Any = None
    evaluation_data: Any = None
    evaluate_every: int = 0
    metrics: Mapping[str, LossFunction] = field(default_factory=dict)
    collate: Collate = collate_samples
    target: str = "labels"
    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 0
    max_gradient_norm: float | None = None
    ema_decay: float | None = None
    state: Mapping[str, Stateful] = field(default_factory=dict)
    callbacks: Sequence[Callable[[int, Mapping[str, float]], bool | None]] = ()

    def __post_init__(self) -> None:
        """Refuses what cannot be trained with.

        Raises:
            HeterpsError: With the field.
        """
        self._check_types()
        norm, decay = self.max_gradient_norm, self.ema_decay
        if norm is not None and not 0 < norm < math.inf:
            raise HeterpsError(f"max_gradient_norm: {norm}; must be above 0")
        if decay is not None and not 0 < decay < 1:
            raise HeterpsError(f"ema_decay: {decay}; must lie between 0 and 1")
        if self.num_workers < 0:
            raise HeterpsError(f"num_workers: {self.num_workers}; must not be below 0")
        if self.evaluate_every < 0:
            raise HeterpsError(f"evaluate_every: {self.evaluate_every}; must not be below 0")
        if self.evaluate_every and self.evaluation_data is None:
            raise HeterpsError("evaluate_every: needs evaluation_data")
        for name, part in self.state.items():
            if not hasattr(part, "state_dict") & hasattr(part, "load_state_dict"):
                raise HeterpsError(
                    f"state {name!r}: {type(part).__name__} has no state_dict and load_state_dict"
                )
        for name, data in (("data", self.data), ("evaluation_data", self.evaluation_data)):
            if data is not None and not hasattr(data, "__getitem__") | hasattr(data, "__iter__"):
                raise HeterpsError(
                    f"{name}: {type(data).__name__} has no samples; needs __getitem__ and __len__, "
                    "or __iter__"
                )

    def _check_types(self) -> None:
        """What is called later, counted or looked up, far from where it was written."""
        if isinstance(self.model, nn.Module):
            raise HeterpsError("model: is a module; allowed: a function that returns a new one")
        for name in ("model", "loss", "optimizer", "parameter_groups", "schedule"):
            if getattr(self, name) is not None:
                check_callable(name, getattr(self, name), "a function, or None")
        check_callable("collate", self.collate, "a function")
        for name in ("evaluate_every", "num_workers"):
            check_whole(name, getattr(self, name), "a whole number from 0 on")
        for name in ("max_gradient_norm", "ema_decay"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), "a number, or None")
        for name in ("metrics", "state"):
            check_type(name, getattr(self, name), Mapping, "a mapping of names")
        check_type("callbacks", self.callbacks, Sequence, "a list of functions")
        for name, functions in (("callbacks", self.callbacks), ("metrics", self.metrics.values())):
            for function in functions:
                check_callable(name, function, "functions")

    @property
    def has_own_loss(self) -> bool:
        """Whether something else than the loss of the plan's model reads the model's output."""
        return self.loss is not None or bool(self.metrics)
