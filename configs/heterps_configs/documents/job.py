"""Jobs: what is trained, in which pieces, and what is asked for; what planners may choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import BYTES_PER_ELEMENT, Document, Dtype, parameter_format
from heterps_configs.documents.numbers import MOST_COUNT, Number, PositiveCount
from heterps_configs.problems import InconsistentError

Optimizer = Literal["adamw", "sgd", "sgd-momentum"]
Schedule = Literal["1f1b", "gpipe", "interleaved", "zero-bubble"]
Objective = Literal["throughput", "price"]
Recompute = Literal["never", "full", "auto"]
Choice = Literal["never", "auto"]

# A step has so many micro-batches at most: each is an action of every stage.
MOST_MICRO_BATCHES = 2**16
MOST_SAMPLES_PER_S = 1e15

# Optimizer state for each parameter, in bytes: float32 moments.
_MOMENT_BYTES: dict[str, int] = {"adamw": 8, "sgd": 0, "sgd-momentum": 4}


def least_micro_batch_size(global_batch_size: int) -> int:
    """Samples of micro-batches so small that a step just has no more of them than it can."""
    return -(-global_batch_size // MOST_MICRO_BATCHES)


def leaves_size_open(fields: Mapping[str, Any]) -> bool:
    """Whether fields of a job name no size of micro-batches."""
    return fields.keys().isdisjoint({"micro_batch_size", "unequal_micro_batch_sizes"})


def with_a_size(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of a job whose size of micro-batches is chosen later.

    One too small for the batch becomes the smallest that a step can have.
    """
    batch, size = fields.get("global_batch_size"), fields.get("micro_batch_size", 1)
    # Of a batch beyond any the message is about the batch.
    if not isinstance(batch, int) or batch > MOST_COUNT:
        return fields
    if isinstance(size, int) and size < least_micro_batch_size(batch):
        return {**fields, "micro_batch_size": least_micro_batch_size(batch)}
    return fields


class Job(Document):
    """One training job.

    Attributes:
        global_batch_size: Samples for each optimizer step.
        micro_batch_size: Samples that pass the pipeline together; the last one may be smaller.
        unequal_micro_batch_sizes: Samples of each micro-batch, where they are not of one size; the
            largest is `micro_batch_size`, as which planners count them all. The simulator, memory
            and a run count each as what it is.
        objective: `throughput`: most samples per second. `price`: cheapest sample, under
            `min_throughput_samples_per_s` where that is given.
        schedule: Order of forward and backward passes on every device.
        overlaps_reduce: Whether gradients of replicas are summed while backward passes still run,
            layer by layer from the back, or after all passes. None: each plan has what is faster
            for it (`Plan.overlaps_reduce`).
        averages_parameters: A moving average of all trained parameters is kept beside them, in
            float32 (`TrainingProgram.ema_decay`): it takes memory as optimizer state does.
    """

    global_batch_size: PositiveCount = 32
    micro_batch_size: PositiveCount = 1
    unequal_micro_batch_sizes: tuple[PositiveCount, ...] | None = None
    dtype: Dtype = "bfloat16"
    optimizer: Optimizer = "adamw"
    schedule: Schedule = "1f1b"
    overlaps_reduce: bool | None = None
    averages_parameters: bool = False
    objective: Objective = "throughput"
    min_throughput_samples_per_s: Number | None = Field(default=None, gt=0, le=MOST_SAMPLES_PER_S)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = []
        if self.num_micro_batches > MOST_MICRO_BATCHES:
            problems.append(
                f"global_batch_size: {self.global_batch_size} samples in micro-batches of "
                f"{self.micro_batch_size} are {self.num_micro_batches} micro-batches; "
                f"a step has at most {MOST_MICRO_BATCHES}: micro_batch_size must be at least "
                f"{least_micro_batch_size(self.global_batch_size)}"
            )
        if self.micro_batch_size > self.global_batch_size:
            problems.append(
                f"micro_batch_size: {self.micro_batch_size} is larger than "
                f"global_batch_size {self.global_batch_size}"
            )
        sizes = self.unequal_micro_batch_sizes
        if sizes is not None and sum(sizes) != self.global_batch_size:
            problems.append(
                f"unequal_micro_batch_sizes: their sum is {sum(sizes)}; it must be "
                f"global_batch_size, {self.global_batch_size}"
            )
        if sizes and max(sizes) != self.micro_batch_size:
            problems.append(
                f"unequal_micro_batch_sizes: the largest is {max(sizes)}; it must be "
                f"micro_batch_size, {self.micro_batch_size}"
            )
        if problems:
            raise InconsistentError(problems)
        return self

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each micro-batch; as a rule all equal but perhaps the last."""
        if self.unequal_micro_batch_sizes is not None:
            return self.unequal_micro_batch_sizes
        full, rest = divmod(self.global_batch_size, self.micro_batch_size)
        return (self.micro_batch_size,) * full + ((rest,) if rest else ())

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches one step has."""
        if self.unequal_micro_batch_sizes is not None:
            return len(self.unequal_micro_batch_sizes)
        return -(-self.global_batch_size // self.micro_batch_size)

    @property
    def weight_bytes_per_parameter(self) -> int:
        """Bytes of one weight, and of one gradient."""
        return BYTES_PER_ELEMENT[parameter_format(self.dtype)]

    @property
    def optimizer_bytes_per_parameter(self) -> int:
        """Moments, average, and the float32 master copy where weights are smaller than float32.

        Without a copy, most updates would be lost to rounding (Micikevicius et al., Mixed
        Precision Training, 2018, section 3.1), whatever the optimizer.
        """
        master = 4 if self.weight_bytes_per_parameter < 4 else 0
        return _MOMENT_BYTES[self.optimizer] + master + (4 if self.averages_parameters else 0)

    @property
    def state_bytes_per_parameter(self) -> int:
        """Weight, gradient and optimizer state of one parameter."""
        return 2 * self.weight_bytes_per_parameter + self.optimizer_bytes_per_parameter


class Strategy(Document):
    """What a planner may choose; by default nothing but devices, cuts and replicas.

    Attributes:
        tensor_parallel: Degrees of tensor-parallel groups; empty: all powers of two that the nodes
            of a class hold.
        recompute: Whether stages drop their activations and compute them again: none, all, or
            those where it pays.
        shard_state: Whether replicas divide the optimizer state among them where it pays.
        offload: Whether stages keep their activations in host memory where it pays.
        chooses_micro_batch: Whether the size of micro-batches is chosen too; else it is the job's.
    """

    tensor_parallel: tuple[PositiveCount, ...] = (1,)
    recompute: Recompute = "never"
    shard_state: Choice = "never"
    offload: Choice = "never"
    chooses_micro_batch: bool = False

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.tensor_parallel)) < len(self.tensor_parallel):
            raise InconsistentError(["tensor_parallel: a degree stands there twice"])
        if self.offload == "auto" and self.recompute == "full":
            raise InconsistentError(
                ["offload: auto, but recompute is full: then no stage keeps what it could offload"]
            )
        return self

    @property
    def is_plain(self) -> bool:
        """Whether a stage is one device that keeps all, whatever a planner chooses."""
        return self == Strategy(chooses_micro_batch=self.chooses_micro_batch)
