"""What layers take and hold on the devices of a problem, alone and in groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.estimated import Estimator
from heterps_envs.layer_costs.group_slice import (
    GroupSlice,
    Share,
    largest_slice,
    slice_of,
)
from heterps_envs.layer_costs.groups import (
    Group,
    profile_on_group,
    slowest_times,
    times_on_group,
)
from heterps_envs.layer_costs.host_link import Offload, offload
from heterps_envs.layer_costs.kept_memory import LayerMemory
from heterps_envs.layer_costs.memory import layer_memory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.layer_costs.sample_split import layers_by_batch
from heterps_envs.layer_costs.seconds import LayerTimes, layer_times
from heterps_envs.layer_costs.tensor_parallel import Splits, SplitUnits
from heterps_envs.links import measured_all_reduces
from heterps_envs.problem_documents import ProblemDocuments


@dataclass(frozen=True)
class ProblemLayers(ProblemDocuments):
    """Seconds and bytes of layers by the cost model, as one device of a group has them.

    Attributes:
        degree: Devices of a tensor-parallel group: seconds and bytes are those of one of them.
        share: Of what a group splits, the share of that device; None: all have the same.
        members: Of a group of unlike devices, class and share of each: seconds are then, for all
            classes alike, those of the slowest device, layer by layer.
        whole: The problem that `at_degree` was asked of; None: this one.
        known_splits: The profile's layers at each degree; of another profile: made anew.
        slower: The same with the slowest links: what layers take and hold is found there, once; of
            other layers, devices or jobs: none.
    """

    degree: int = field(default=1, kw_only=True)
    share: Share = field(default=None, kw_only=True)
    members: tuple[tuple[int, GroupSlice | None], ...] = field(default=(), kw_only=True)
    whole: Self | None = field(default=None, repr=False, compare=False, kw_only=True)
    known_splits: Splits | None = field(default=None, repr=False, compare=False, kw_only=True)
    slower: Self | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Copies (`dataclasses.replace`) share what is known of both documents."""
        super().__post_init__()
        if self.known_splits is None or self.known_splits.profile is not self.profile:
            object.__setattr__(self, "known_splits", Splits(self.profile))
        if self.slower is not None and not self._has_layers_of(self.slower):
            object.__setattr__(self, "slower", None)

    def _has_layers_of(self, other: Self) -> bool:
        """Whether all that layers take and hold is what it is in another problem."""
        fields = "profile", "cluster", "job", "training", "share", "members"
        own = self.nodes_apart, self.degree
        return own == (other.nodes_apart, other.degree) and all(
            getattr(self, name) is getattr(other, name) for name in fields
        )

    def at_degree(self, degree: int, share: Share = None) -> Self:
        """The same cluster and job with layers as one device of a group of `degree` has them.

        Forward and backward seconds hold the sums over the group, on the slowest link inside a
        node of the class. Devices are counted as before, and what crosses cuts stays whole.

        Args:
            degree: Devices of a group.
            share: Of what is split, the share of the device; by default an equal one, of those
                that whole units allow the largest. A number alone is taken for every layer as it
                is, whatever its units.
        """
        if (degree, share) == (self.degree, self.share):
            return self
        whole = self.whole or self
        if degree == 1:
            return whole
        found = whole._at_degree.get((degree, share))
        if found is None:
            found = whole._split(degree, share)
            whole._at_degree[degree, share] = found
        return found

    def _split(self, degree: int, share: Share) -> Self:
        slower = self.slower and self.slower.at_degree(degree, share)
        if slower is not None:
            profile, share = slower.profile, slower.share
        else:
            assert self.known_splits is not None, "set when the problem was made"
            group, estimator = self._group(degree, share), self.layer_times.estimator
            profile = profile_on_group(self.known_splits, group, self.job, estimator)
        return replace(self, profile=profile, degree=degree, share=share, whole=self, slower=slower)

    def for_stage(self, stage: Stage, rank: int | None = None) -> Self:
        """The problem with layers as a device of a stage's group has them.

        Args:
            stage: The stage.
            rank: Which of its devices; by default the one with the largest share. That one decides
                how long a pass takes, or in a group of unlike devices the slowest at each layer.
        """
        whole = (self.whole or self).keeping(stage.whole_layers, stage.batch_layers)
        if rank is None and self.has_unlike_devices(stage):
            kinds = [self.class_of[name] for name in stage.devices]
            own = [whole._slice(stage, rank) for rank in range(stage.degree)]
            return whole._slowest(tuple(zip(kinds, own, strict=True)))
        return whole.at_degree(stage.degree, whole._slice(stage, rank))

    def keeping(self, whole_layers: Iterable[int], batch_layers: Iterable[int] = ()) -> Self:
        """The problem of a model of which groups do not split some layers, or only their samples.

        What was measured of groups is left out, for it holds what those layers take when split.

        Args:
            whole_layers: That each device computes.
            batch_layers: Of one stage, that each device computes for its samples.
        """
        if whole_layers == () and batch_layers == ():
            return self
        layers, whole = self.profile.layers, self.whole or self
        kept = frozenset(own for own in whole_layers if layers[own].tensor_split is not None)
        by_batch = frozenset(batch_layers)
        if not kept and not by_batch:
            return self
        assert self is whole, "whole layers are kept before the others are split"
        if (kept, by_batch) not in self._keeping:
            gradient_bytes = self.gradient_bytes
            own = layers_by_batch(self.profile, by_batch, gradient_bytes, self.job)
            own |= {index: layers[index].changed(tensor_split=None) for index in kept}
            profile = self.profile.changed(
                layers=tuple(own.get(index, layer) for index, layer in enumerate(layers)),
                measurements=tuple(e for e in self.profile.measurements if e.tensor_parallel == 1),
            )
            self._keeping[kept, by_batch] = replace(self, profile=profile)
        return self._keeping[kept, by_batch]

    @cached_property
    def _keeping(self) -> dict[tuple[frozenset[int], frozenset[int]], Self]:
        return {}

    def _slice(self, stage: Stage, rank: int | None) -> GroupSlice | None:
        return slice_of(stage, rank, self.differs_by_rank(stage))

    def differs_by_rank(self, stage: Stage) -> bool:
        """Whether devices of a stage's group hold unlike parts of its layers."""
        kept = (self.whole or self).keeping(stage.whole_layers, stage.batch_layers)
        return bool(stage.uneven_shares) or kept._units.leave_rests(stage.degree)

    @cached_property
    def _units(self) -> SplitUnits:
        return SplitUnits.of(self.whole.profile if self.whole else self.profile)

    def has_unlike_devices(self, stage: Stage) -> bool:
        """Whether the devices of a stage's group are of several classes."""
        if stage.degree == 1:
            return False
        return len({self.class_of[name] for name in stage.devices}) > 1

    def by_rank(self, stage: Stage) -> list[tuple[str, Self]]:
        """Devices of a stage's group that may hold most, with the problem as each has it.

        The first one stands for all where they are alike: it is seen with the largest share.
        """
        if not self.has_unlike_devices(stage):
            return [(stage.devices[0], self.for_stage(stage))]
        return [(name, self.for_stage(stage, rank)) for rank, name in enumerate(stage.devices)]

    def _slowest(self, members: tuple[tuple[int, GroupSlice | None], ...]) -> Self:
        found = self._of_members.get(members)
        if found is None:
            (_, first), *_ = members
            most = self.at_degree(len(members), first and largest_slice(first.shares))
            found = replace(most, members=members)
            self._of_members[members] = found
        return found

    @cached_property
    def _of_members(self) -> dict[tuple[tuple[int, GroupSlice | None], ...], Self]:
        return {}

    @cached_property
    def _at_degree(self) -> dict[tuple[int, Share], Self]:
        return {}

    def _group(self, degree: int, share: Share) -> Group:
        types = tuple(entry.type for entry in self.classes)
        sums = measured_all_reduces(self.cluster, self.classes, degree)
        return Group(degree, types, self.links_inside_nodes, share, sums)

    @cached_property
    def layers_fingerprint(self) -> str:
        """`profile.layers_fingerprint()` of the whole layers, computed once."""
        return self.whole.layers_fingerprint if self.whole else self.profile.layers_fingerprint()

    @cached_property
    def layer_times(self) -> LayerTimes:
        """(L, T) seconds for each layer and class, and where they come from."""
        if self.slower is not None:
            return self.slower.layer_times
        if self.whole is not None and self.members:
            whole, degree = self.whole, self.degree
            columns = [(whole.at_degree(degree, s).layer_times, kind) for kind, s in self.members]
            return slowest_times(columns[0][0], columns)
        if self.whole is not None:
            estimator = self.whole.layer_times.estimator
            return times_on_group(
                self.whole.profile,
                self.profile,
                self._group(self.degree, self.share),
                self.job,
                estimator,
            )
        types = [entry.type for entry in self.classes]
        # What was measured on a type counts, whether or not a device of it is left.
        known = [*self.cluster.device_types, *types]
        estimator = Estimator(self.profile, known, self.job, self.training)
        return layer_times(self.profile, types, self.job, self.training, estimator)

    @cached_property
    def layer_memory(self) -> LayerMemory:
        """What layers keep of one micro-batch, for each layer and class."""
        if self.slower is not None:
            return self.slower.layer_memory
        return layer_memory(self.profile, [entry.type for entry in self.classes], self.job)

    @cached_property
    def offload(self) -> Offload:
        """What moving activations to host memory takes, for each layer and class."""
        return offload(self.layer_times, self.layer_memory, [c.type for c in self.classes])

    @cached_property
    def memory_rule(self) -> MemoryRule:
        """What planners count as memory."""
        if self.slower is not None:
            return self.slower.memory_rule
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        return memory_rule(self.layer_memory, self.gradient_bytes, self.job, counts)

    @cached_property
    def gradient_bytes(self) -> Floats:
        """(L,) of the layers' gradients."""
        return self.trained_parameters * self.job.weight_bytes_per_parameter

    @cached_property
    def parameters(self) -> Floats:
        """(L,) of the layers."""
        return np.array([layer.num_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def trained_parameters(self) -> Floats:
        """(L,) of them, those that are not frozen."""
        return np.array([layer.trained_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def tied_parameters(self) -> Floats:
        """(L,) of them, those that another layer has, too."""
        return np.array([layer.tied_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def _copies_and_buffers(self) -> Floats:
        copies = self.profile.cast_bytes(self.job.dtype)
        buffers = [layer.buffer_bytes for layer in self.profile.layers]
        return np.asarray(np.array(copies, dtype=float) + np.array(buffers, dtype=float))

    def state_bytes(self, rule: MemoryRule) -> Floats:
        """(L,) of weights, their copies, buffers, gradients and optimizer state, by a rule."""
        frozen = self.parameters - self.trained_parameters
        held = self.trained_parameters * self.job.state_bytes_per_parameter
        held = held + frozen * self.job.weight_bytes_per_parameter
        return np.asarray(held + self._copies_and_buffers - rule.apart_bytes)
