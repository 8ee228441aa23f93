"""The arrays that every planner and bound reads: seconds and bytes of layers, options, links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers


class RingLinks(NamedTuple):
    """The links that replicas of one stage sum their gradients over: those of one node, or not.

    Attributes:
        node_size: (O,) int64, the most replicas on one node.
        latency_s: (O, 2) inside a node, and between nodes.
        inverse_bandwidth_s_per_byte: (T, 2) of the same links.
    """

    node_size: Integers
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats

    def of_classes(self, kept: list[int]) -> RingLinks:
        """Those of some classes only."""
        node_size, latency_s, inverse_bandwidth = self
        return RingLinks(node_size[kept], latency_s[kept], inverse_bandwidth[kept])


@dataclass(frozen=True)
class StageOptions:
    """Ways to carry out a stage: on a class, so many devices of it together, and what they hold.

    Bytes are those of one device.

    Attributes:
        class_of_option: (O,) the class of each.
        devices_of_option: (O,) devices of the class that one stage takes.
        state_bytes: (L, O) see `CostTables`, less `sharded_bytes`.
        sharded_bytes: (L, O) of the state, what the replicas of a stage share: divided by their
            number.
        shards_state: (O,) whether they share it, and the optimizer's seconds with it: some
            optimizers have seconds and no state.
        gradient_bytes: (L, O) what a gradient all-reduce of the layer moves.
        activation_bytes: (L, O) kept of one micro-batch.
    """

    class_of_option: Integers
    devices_of_option: Integers
    state_bytes: Floats
    sharded_bytes: Floats
    shards_state: NDArray[np.bool_]
    gradient_bytes: Floats
    activation_bytes: Floats


@dataclass(frozen=True)
class CostTables:
    """Everything that the cost model reads: L layers, T device classes, O stage options.

    What chooses goes through the options, what counts devices through the classes. Unless `options`
    says more there is one option for each class, a stage on one device.

    Attributes:
        num_micro_batches: M, micro-batches of one step.
        is_gpipe: All forwards before all backwards (every micro-batch is in flight).
        forward_s, backward_s: (L, O) seconds of one micro-batch.
        optimizer_s: (L, O) seconds of the optimizer step.
        state_bytes: (L,) weights, their copies under mixed precision, gradients, optimizer state;
            under GPipe less what is never there beside all activations.
        gradient_bytes: (L,) what a gradient all-reduce of the layer moves.
        activation_bytes: (L,) kept for the backward pass of one micro-batch, as planners count it
            (`heterps_envs.layer_costs.memory_rule`).
        output_bytes: (L,) crosses the cut behind the layer, one way, one micro-batch; last: 0.
        device_count: (T,) devices of each class.
        memory_bytes: (O,) of one device, less the reserve of that rule; of a stage option below 0
            where that is more than the device has.
        price_usd_per_hour: (O,) of the devices of one stage.
        latency_s: (O, O) of the slowest link between two devices of the classes.
        inverse_bandwidth_s_per_byte: (O, O) of the same links.
        rings: Links of gradient all-reduces; None: those between the devices of a class.
        options: What options hold, where there are more than one for each class; the bytes above
            are then those of a stage on one device.
        holds_by_rule: Stages hold what the rule of 1F1B says, and no more where memory has room.
    """

    num_micro_batches: int
    is_gpipe: bool
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    state_bytes: Floats
    gradient_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    device_count: Integers
    memory_bytes: Floats
    price_usd_per_hour: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats
    rings: RingLinks | None = None
    options: StageOptions | None = None
    holds_by_rule: bool = False

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.state_bytes)

    @property
    def num_classes(self) -> int:
        """Number of device classes, T."""
        return len(self.device_count)

    @property
    def num_options(self) -> int:
        """Number of stage options, O."""
        return len(self.memory_bytes)

    @cached_property
    def compute_s(self) -> Floats:
        """(L, O) forward plus backward."""
        return self.forward_s + self.backward_s

    @cached_property
    def stage_options(self) -> StageOptions:
        """`options`, or one for each class."""
        if self.options is not None:
            return self.options
        size = self.num_classes

        def for_all(values: Floats) -> Floats:
            return np.repeat(values[:, None], size, axis=1)

        return StageOptions(
            class_of_option=np.arange(size),
            devices_of_option=np.ones(size, np.int64),
            state_bytes=for_all(self.state_bytes),
            sharded_bytes=np.zeros((self.num_layers, size)),
            shards_state=np.zeros(size, np.bool_),
            gradient_bytes=for_all(self.gradient_bytes),
            activation_bytes=for_all(self.activation_bytes),
        )

    @cached_property
    def most_replicas(self) -> Integers:
        """(O,) stages of an option that the devices of its class suffice for."""
        options = self.stage_options
        return self.device_count[options.class_of_option] // options.devices_of_option

    def of_columns(self, kept: list[int]) -> CostTables:
        """The tables by option with some of their columns only; classes and `options` stay."""
        both = np.ix_(kept, kept)
        return replace(
            self,
            forward_s=self.forward_s[:, kept],
            backward_s=self.backward_s[:, kept],
            optimizer_s=self.optimizer_s[:, kept],
            memory_bytes=self.memory_bytes[kept],
            price_usd_per_hour=self.price_usd_per_hour[kept],
            latency_s=self.latency_s[both],
            inverse_bandwidth_s_per_byte=self.inverse_bandwidth_s_per_byte[both],
            rings=None if self.rings is None else self.rings.of_classes(kept),
        )
