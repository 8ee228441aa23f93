"""Strategies: by which ways planners may carry out a stage, beside one device for each stage."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import PositiveCount
from heterps_configs.documents.problems import InconsistentError

Recompute = Literal["never", "full", "auto"]
Choice = Literal["never", "auto"]


class Strategy(Document):
    """What a planner may choose; by default nothing but devices, cuts and replicas.

    Attributes:
        tensor_parallel: Degrees of tensor-parallel groups; empty: all powers of two that the nodes
            of a class hold.
        recompute: Whether stages drop their activations and compute them again: none, all, or
            those where it pays.
        shard_state: Whether replicas divide the optimizer state among them where it pays.
    """

    tensor_parallel: tuple[PositiveCount, ...] = (1,)
    recompute: Recompute = "never"
    shard_state: Choice = "never"

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len(set(self.tensor_parallel)) < len(self.tensor_parallel):
            raise InconsistentError(["tensor_parallel: a degree stands there twice"])
        return self

    @property
    def is_plain(self) -> bool:
        """Whether a stage is one device that keeps all, whatever a planner chooses."""
        return self == Strategy()
