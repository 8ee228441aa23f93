"""Which parameters of a model a group splits, found once for all ranks, and tried on fake tensors.

The same parameters as the cost model counts (`tracing.tensor_splits`). A layer whose split cannot
be carried out is whole on every rank, and `found_splits.why_not` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torch import nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import build_module
from heterps_runtime.models.initialise import place
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tensor_parallel.candidates import candidates, without_layers
from heterps_runtime.tensor_parallel.counts import subsets_of_counts
from heterps_runtime.tensor_parallel.draws import split_draw
from heterps_runtime.tensor_parallel.found_splits import SplitPlan
from heterps_runtime.tensor_parallel.parameter_split import (
    QUERY_COUNTS,
    ParameterSplit,
    SplitDraw,
    slices_of,
)
from heterps_runtime.tensor_parallel.probe import Probe, ProbeError, ProbePass, Seen
from heterps_runtime.tensor_parallel.split import split_buffers, split_module
from heterps_runtime.tracing.trace import trace_split

# The rank that splits are tried with: another part than half, so that halves are told from parts.
_TRIED = GroupSlice(0, (0.25, 0.75))
# Ranks for each head of keys and values, where ranks share them: the first has some of its queries.
_TRIED_SHARING = 2
_TRIED_SAMPLES = 2


def split_plan(source: ModelSource, dtype: Dtype = "float32") -> dict[str, ParameterSplit]:
    """The parameters of `find_splits`."""
    return find_splits(source, dtype).parameters


def find_splits(source: ModelSource, dtype: Dtype = "float32") -> SplitPlan:
    """What a group can split of a model; takes a few passes on fake tensors, once in a process.

    Raises:
        HeterpsError: The model cannot be built or run.
    """
    return _found_splits(source.model_dump_json(), dtype)


@lru_cache(maxsize=32)
def _found_splits(source: str, dtype: Dtype) -> SplitPlan:
    finder = _Finder(ModelSource.model_validate_json(source), dtype)
    while finder.parameters() and not finder.succeeds():
        pass
    unshared = finder.parameters(shares=False)
    return SplitPlan(finder.parameters(), finder.reasons, finder.not_shared, unshared)


class _Finder:
    """The search for splits that run.

    Attributes:
        reasons: Of layers that stay whole.
        not_shared: Of layers whose heads of keys and values each stay on one rank.
    """

    def __init__(self, source: ModelSource, dtype: Dtype) -> None:
        self._source, self._dtype = source, dtype
        module = build_module(source, dtype=dtype)
        traced = trace_split(module, source, dtype)
        self._layers, self._units = traced.layers, traced.recording.units
        self._layer_of_unit = {
            traced.recording.calls[call].path: layer.name
            for layer in traced.layers
            for call in layer.calls
            if traced.recording.calls[call].function is None
        }
        self._crossing = {
            (
                traced.recording.calls[source.call].path,
                traced.recording.calls[source.call].occurrence,
            )
            for layer in traced.layers
            for source in layer.crossing
            if traced.recording.calls[source.call].function is None
        }
        self._counts: dict[str, tuple[str, ...]] = {}
        self._head: str | None = None
        self._entering: dict[str, set[str]] = {}
        self._outputs: dict[str, set[str]] = {}
        self._paths = [path for path, _ in module.named_modules()]
        self._draws: dict[str, dict[str, tuple[SplitDraw | None, ...]]] = {}
        self._shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self._candidates, self.reasons = candidates(module, traced)
        self.not_shared: dict[str, str] = {}
        self._whole: Seen | None = None
        self._tried = _TRIED

    def parameters(self, *, shares: bool = True) -> dict[str, ParameterSplit]:
        """What is split, as far as it is known to run.

        Args:
            shares: Whether ranks may share heads of keys and values.
        """
        apart = {
            name
            for layer in self._layers
            if layer.name in self.not_shared or not shares
            for name in layer.parameters
        }
        candidates = {
            name: split.with_whole_key_values() if name in apart else split
            for name, split in self._candidates.items()
        }
        found = without_layers(self._layers, candidates, self.reasons)
        return {
            name: split.changed(
                ends_in_loss=name == self._head,
                entering=tuple(sorted(self._entering.get(name, ()))),
                outputs=tuple(sorted(self._outputs.get(name, ()))),
                counts=self._counts_of(name, split),
                draws=self._draws.get(name, {}),
            )
            for name, split in found.items()
        }

    def _counts_of(self, name: str, split: ParameterSplit) -> tuple[str, ...]:
        """Where whole heads of keys and values are dealt, each has all of its queries."""
        counts = self._counts.get(name, ())
        if split.key_value_heads or not self._candidates[name].key_value_heads:
            return counts
        return tuple(count for count in counts if count.rpartition(".")[2] not in QUERY_COUNTS)

    def succeeds(self) -> bool:
        """Tries the splits; where they fail, changes something about them."""
        try:
            seen = self._try(self._counts)
        except ProbeError as error:
            ways = self._find_entering, self._find_outputs, self._find_counts
            if not any(find(error) for find in ways):
                self._give_up(error)
            return False
        self._note_draws(seen)
        self._find_head()
        return True

    def _try(self, counts: Mapping[str, tuple[str, ...]]) -> Seen:
        """Runs a rank's part; where groups may share heads of keys and values, one of those too.

        Raises:
            ProbeError: It is not what it should be.
        """
        if self._whole is None:
            whole = build_module(self._source, dtype=self._dtype)
            self._whole = self._run(Probe(whole, self._units))
        plan = {
            name: split.changed(counts=counts.get(name, ()))
            for name, split in self.parameters().items()
        }
        sizes = {_TRIED_SHARING * split.key_value_heads for split in plan.values()} - {0}
        groups = [_TRIED, *(GroupSlice(0, (1 / size,) * size) for size in sorted(sizes))]
        seen, *_ = [self._try_on(self._whole, plan, group) for group in groups]
        return seen

    def _try_on(self, whole: Seen, plan: Mapping[str, ParameterSplit], group: GroupSlice) -> Seen:
        self._tried = group
        module = build_module(self._source, dtype=self._dtype)
        group_pass = ProbePass()
        names, holders = _on_one_rank(module, plan, group_pass, group)
        probe = Probe(module, self._units, names, holders)
        group_pass.probe = probe
        seen = self._run(probe)
        self._compare(whole, seen)
        return seen

    def _run(self, probe: Probe) -> Seen:
        return probe.run(self._source, _TRIED_SAMPLES, self._dtype)

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

    def _layer_of(self, path: str) -> str | None:
        """The layer that a module belongs to."""
        for prefix in _ancestors(path):
            if prefix in self._layer_of_unit:
                return self._layer_of_unit[prefix]
        return None

    def _give_up(self, error: ProbeError) -> None:
        """The layer that failed, and others of its kind, stay whole."""
        split_names = set(self.parameters())
        name = self._layer_of(error.path)
        alike = [layer for layer in self._layers if layer.parameters & split_names]
        if name is not None:
            (failed,) = (layer for layer in self._layers if layer.name == name)
            alike = [layer for layer in alike if layer.kind == failed.kind] or alike
        found = self.reasons
        if self._tried != _TRIED and any(each.name not in self.not_shared for each in alike):
            found = self.not_shared
        for layer in alike:
            found[layer.name] = f"{error.path or 'the model'} cannot be split: {error}"

    def _find_entering(self, error: ProbeError) -> bool:
        """Lets a whole parameter get all of its gradient, and those of the same place in layers."""
        name, found = error.parameter, False
        if name is None:
            return False
        plan, kind = self.parameters(), re.sub(r"\d+", "*", name)
        for other in self._shapes:
            if re.sub(r"\d+", "*", other) != kind or other in plan:
                continue
            layer = next((each for each in self._layers if other in each.parameters), None)
            first = min((n for n in plan if layer and n in layer.parameters), default=None)
            if first is not None and other not in self._entering.get(first, ()):
                self._entering.setdefault(first, set()).add(other)
                found = True
        return found

    def _find_outputs(self, error: ProbeError) -> bool:
        """Lets what a whole layer makes get all of its gradient, and the same place in layers."""
        if error.made_by is None:
            return False
        plan, kind, found = self.parameters(), re.sub(r"\d+", "*", error.made_by), False
        for path in self._paths:
            layer = self._layer_of(path)
            if re.sub(r"\d+", "*", path) != kind or layer is None:
                continue
            own = next(each.parameters for each in self._layers if each.name == layer)
            first = min((name for name in plan if name in own), default=None)
            if first is not None and path not in self._outputs.get(first, ()):
                self._outputs.setdefault(first, set()).add(path)
                found = True
        return found

    def _find_counts(self, error: ProbeError) -> bool:
        """Looks for attributes that count heads or numbers of which a rank has a part."""
        module = build_module(self._source, dtype=self._dtype)
        plan = self.parameters()
        for path in _ancestors(error.path):
            own = [name for name in plan if name.startswith(f"{path}.")]
            if not own or not path:
                continue
            kind = type(module.get_submodule(path))
            for names in subsets_of_counts(module.get_submodule(path), plan[own[0]]):
                counts = dict(self._counts)
                for other, part in module.named_modules():
                    first = next((name for name in plan if name.startswith(f"{other}.")), None)
                    if type(part) is kind and first is not None:
                        counts[first] = tuple(f"{other}.{name}" for name in names)
                if self._helps(counts, module, kind):
                    self._counts = counts
                    return True
            if path in self._layer_of_unit:
                break
        return False

    def _helps(
        self, counts: Mapping[str, tuple[str, ...]], module: nn.Module, kind: type[nn.Module]
    ) -> bool:
        """Whether modules of a class run with these attributes changed."""
        try:
            self._try(counts)
        except ProbeError as error:
            if error.made_by is not None:
                return True  # the sizes fit; what is missing is a part of a gradient
            inside = (type(module.get_submodule(path)) for path in _ancestors(error.path))
            return kind not in inside
        return True

    def _find_head(self) -> None:
        """Whether the loss reads what a split head makes, place by place."""
        source, plan = self._source, self.parameters()
        last = self._layers[-1].parameters
        heads = [n for n, split in plan.items() if split.unit == "vocabulary" and n in last]
        weights = [name for name in heads if len(self._shapes[name]) == 2]
        if source.loss != "cross_entropy" or source.target is None or len(weights) != 1:
            return
        assert self._whole is not None
        if self._whole.output[:-1] != (_TRIED_SAMPLES, *source.target.shape):
            return
        (name,) = weights
        plan[name] = plan[name].changed(ends_in_loss=True)
        module = build_module(source, dtype=self._dtype)
        group_pass = ProbePass()
        names, holders = _on_one_rank(module, plan, group_pass, keeps_logits=True)
        probe = Probe(module, self._units, names, holders)
        own = module.get_parameter(name)
        probe.heads = frozenset(
            path
            for path, part in module.named_modules()
            if isinstance(part, nn.Linear) and part.weight is own
        )
        group_pass.probe = probe
        try:
            if probe.heads:
                self._run(probe)
                self._head = name
        except ProbeError:
            pass  # then all ranks get all logits

    def _note_draws(self, part: Seen) -> None:
        """Which random numbers are split."""
        assert self._whole is not None
        plan, self._draws = self.parameters(), {}
        for unit, shapes in self._whole.draws.items():
            found = part.draws.get(unit, [])
            first = next((name for name in plan if not unit or name.startswith(f"{unit}.")), None)
            if found == shapes or first is None or len(found) != len(shapes):
                continue
            self._draws[first] = {
                unit: tuple(
                    split_draw(*pair, plan, unit, _TRIED)
                    for pair in zip(shapes, found, strict=True)
                )
            }


def _on_one_rank(
    module: nn.Module,
    plan: Mapping[str, ParameterSplit],
    group_pass: ProbePass,
    group: GroupSlice = _TRIED,
    *,
    keeps_logits: bool = False,
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


def _ancestors(path: str) -> Iterator[str]:
    """The path itself and those of the modules around it, from the inside."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path
