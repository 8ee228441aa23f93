"""Which parameters of a model a group splits, found once for all ranks, and tried on fake tensors.

The same parameters as the cost model counts (`tracing.tensor_splits`). A layer whose split cannot
be carried out is whole on every rank, and `found_splits.why_not` says why.
"""

from __future__ import annotations

from functools import lru_cache

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models.build import build_module
from heterps_runtime.tensor_parallel.adjustments import Adjustments
from heterps_runtime.tensor_parallel.candidates import candidates, without_layers
from heterps_runtime.tensor_parallel.found_splits import SplitPlan
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from heterps_runtime.tensor_parallel.probe import ProbeError
from heterps_runtime.tensor_parallel.trials import Trials
from heterps_runtime.tracing.trace import trace_split


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
        module = build_module(source, dtype=dtype)
        traced = trace_split(module, source, dtype)
        self._layers = traced.layers
        self._trials = Trials(source, dtype, traced)
        self._adjustments = Adjustments(module, traced, self._trials)
        self._candidates, self.reasons = candidates(module, traced)
        self.not_shared: dict[str, str] = {}

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
        splits = {
            name: split.with_whole_key_values() if name in apart else split
            for name, split in self._candidates.items()
        }
        return {
            name: self._adjustments.of(name, split, keeps_queries=self._keeps_queries(name, split))
            for name, split in without_layers(self._layers, splits, self.reasons).items()
        }

    def _keeps_queries(self, name: str, split: ParameterSplit) -> bool:
        """Whether whole heads of keys and values are dealt where they could be shared."""
        return not split.key_value_heads and self._candidates[name].key_value_heads > 0

    def succeeds(self) -> bool:
        """Tries the splits; where they fail, changes something about them."""
        plan = self.parameters()
        try:
            seen = self._adjustments.run(plan)
        except ProbeError as error:
            if not self._adjustments.mend(error, plan):
                self._give_up(error, plan)
            return False
        self._adjustments.note_draws(seen, plan)
        self._adjustments.find_head(self.parameters())
        return True

    def _give_up(self, error: ProbeError, plan: dict[str, ParameterSplit]) -> None:
        """The layer that failed, and others of its kind, stay whole."""
        failed = self._adjustments.layer_of(error.path)
        alike = [layer for layer in self._layers if layer.parameters & plan.keys()]
        if failed is not None:
            alike = [layer for layer in alike if layer.kind == failed.kind] or alike
        found = self.reasons
        is_new = any(layer.name not in self.not_shared for layer in alike)
        if self._trials.shares_heads and is_new:
            found = self.not_shared
        for layer in alike:
            found[layer.name] = f"{error.path or 'the model'} cannot be split: {error}"
