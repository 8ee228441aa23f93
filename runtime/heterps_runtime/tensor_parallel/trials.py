"""A rank's part of a model, run on fake tensors beside the whole model: does the split hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from torch import nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import build_module
from heterps_runtime.models.initialise import place
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit, slices_of
from heterps_runtime.tensor_parallel.probe import Probe, ProbeError, ProbePass, Seen
from heterps_runtime.tensor_parallel.split import split_buffers, split_module
from heterps_runtime.tracing.trace import TracedSplit

# The rank that splits are tried with: another part than half, so that halves are told from parts.
TRIED = GroupSlice(0, (0.25, 0.75))
# Ranks for each head of keys and values, where ranks share them: the first has some of its queries.
_TRIED_SHARING = 2
_TRIED_SAMPLES = 2


class Trials:
    """Runs a rank's part of a model, and compares it with the whole model.

    Args:
        source: Of the model.
        dtype: Of its parameters.
        traced: What the cost model splits of it.

    Attributes:
        shares_heads: Whether the last rank that was tried shares a head of keys and values.
    """

    def __init__(self, source: ModelSource, dtype: Dtype, traced: TracedSplit) -> None:
        self.source, self._dtype = source, dtype
        self._units = traced.recording.units
        calls = [traced.recording.calls[c.call] for layer in traced.layers for c in layer.crossing]
        self._crossing = {(call.path, call.occurrence) for call in calls if call.function is None}
        self.shares_heads = False

    def module(self) -> nn.Module:
        """The model, built anew."""
        return build_module(self.source, dtype=self._dtype)

    @cached_property
    def whole(self) -> Seen:
        """What a pass of the whole model does."""
        return self._run(Probe(self.module(), self._units))

    def run(self, plan: Mapping[str, ParameterSplit]) -> Seen:
        """Runs a rank's part; where groups may share heads of keys and values, one of those too.

        Raises:
            ProbeError: It is not what it should be.
        """
        whole = self.whole
        sizes = {_TRIED_SHARING * split.key_value_heads for split in plan.values()} - {0}
        groups = [TRIED, *(GroupSlice(0, (1 / size,) * size) for size in sorted(sizes))]
        seen, *_ = [self._run_as(group, plan, whole) for group in groups]
        return seen

    def runs_to_loss(self, plan: Mapping[str, ParameterSplit], head: str) -> bool:
        """Whether the loss could read the part of the logits that a rank's head makes.

        Args:
            plan: With the head, which ends in the loss.
            head: The head's weight.
        """
        target = self.source.target
        if target is None or self.whole.output[:-1] != (_TRIED_SAMPLES, *target.shape):
            return False
        module = self.module()
        probe = self._probe(module, plan, TRIED, keeps_logits=True)
        own = module.get_parameter(head)
        probe.heads = frozenset(
            path
            for path, part in module.named_modules()
            if isinstance(part, nn.Linear) and part.weight is own
        )
        try:
            if probe.heads:
                self._run(probe)
        except ProbeError:
            return False
        return bool(probe.heads)

    def _run_as(self, group: GroupSlice, plan: Mapping[str, ParameterSplit], whole: Seen) -> Seen:
        self.shares_heads = group != TRIED
        seen = self._run(self._probe(self.module(), plan, group))
        self._compare(whole, seen)
        return seen

    def _probe(
        self,
        module: nn.Module,
        plan: Mapping[str, ParameterSplit],
        group: GroupSlice,
        *,
        keeps_logits: bool = False,
    ) -> Probe:
        group_pass = ProbePass()
        names, holders = _on_one_rank(module, plan, group_pass, group, keeps_logits)
        probe = Probe(module, self._units, names, holders)
        group_pass.probe = probe
        return probe

    def _run(self, probe: Probe) -> Seen:
        return probe.run(self.source, _TRIED_SAMPLES, self._dtype)

    def _compare(self, whole: Seen, part: Seen) -> None:
        """What leaves layers must be whole, and heads as wide as ever."""
        for (path, numbers), (other, found) in zip(whole.products, part.products, strict=False):
            if path != other or numbers != found:
                raise ProbeError(other, "attention would not be split by whole heads")
        for path, occurrence in self._crossing:
            made = part.made.get(path, [])[occurrence - 1 : occurrence]
            expected = whole.made[path][occurrence - 1 : occurrence]
            if made != expected or any(part.is_split[path][occurrence - 1 : occurrence]):
                raise ProbeError(path, "what it returns would not be whole")


def _on_one_rank(
    module: nn.Module,
    plan: Mapping[str, ParameterSplit],
    group_pass: ProbePass,
    group: GroupSlice,
    keeps_logits: bool,
) -> tuple[frozenset[str], frozenset[str]]:
    """Makes a meta module the part of a rank; names of what is split, and paths that hold it."""
    canonical = canonical_names(module)
    before = dict(module.named_parameters())
    slices = slices_of(plan, {name: tuple(p.shape) for name, p in before.items()}, group)
    local = {name: before[name].new_empty(piece.local_shape) for name, piece in slices.items()}
    placed = place(module, local, canonical)
    own = {name: placed.get(name, parameter) for name, parameter in before.items()}
    split_buffers(module, slices, own)
    split_module(module, plan, slices, group, group_pass, own, keeps_logits)
    held = {id(parameter) for parameter in placed.values()}
    holders = frozenset(
        path
        for path, part in module.named_modules()
        if any(id(parameter) in held for parameter in part._parameters.values())
    )
    return frozenset(slices), holders


def ancestors(path: str) -> Iterator[str]:
    """The path itself and those of the modules around it, from the inside."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path
