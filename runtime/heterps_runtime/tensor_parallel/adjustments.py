"""What a model's own code needs so that a rank's part of it runs, found by trying.

Whole parameters that ranks use on their own heads, outputs of whole layers that they do, numbers of
the model's code that count heads, random numbers of which a rank draws a part, and logits that
the loss takes in parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import nn

from heterps_runtime.models.layers import Layer
from heterps_runtime.tensor_parallel.counts import subsets_of_counts
from heterps_runtime.tensor_parallel.draws import split_draw
from heterps_runtime.tensor_parallel.parameter_split import (
    QUERY_COUNTS,
    ParameterSplit,
    SplitDraw,
)
from heterps_runtime.tensor_parallel.probe import ProbeError, Seen
from heterps_runtime.tensor_parallel.trials import TRIED, Trials, ancestors
from heterps_runtime.tracing.trace import TracedSplit

_Plan = Mapping[str, ParameterSplit]


class Adjustments:
    """Each is kept with a split parameter of its layer: the first by name, or in the model.

    Args:
        module: The model; its parameters are on the meta device.
        traced: What the cost model splits of it.
        trials: Of the same model.
    """

    def __init__(self, module: nn.Module, traced: TracedSplit, trials: Trials) -> None:
        self._trials, self._layers = trials, traced.layers
        calls = traced.recording.calls
        self._layer_of_unit = {
            calls[call].path: layer
            for layer in traced.layers
            for call in layer.calls
            if calls[call].function is None
        }
        self._paths = [path for path, _ in module.named_modules()]
        self._shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self._counts: dict[str, tuple[str, ...]] = {}
        self._entering: dict[str, set[str]] = {}
        self._outputs: dict[str, set[str]] = {}
        self._draws: dict[str, dict[str, tuple[SplitDraw | None, ...]]] = {}
        self._head: str | None = None

    def of(self, name: str, split: ParameterSplit, *, keeps_queries: bool) -> ParameterSplit:
        """A parameter's split with what is known to be needed.

        Args:
            name: Of the parameter.
            split: As the cost model has it.
            keeps_queries: Whether each head of keys and values has all of its queries, though
                the cost model shares heads: so no count of queries changes.
        """
        counts = self._counts.get(name, ())
        if keeps_queries:
            counts = tuple(c for c in counts if c.rpartition(".")[2] not in QUERY_COUNTS)
        return split.changed(
            ends_in_loss=name == self._head,
            entering=tuple(sorted(self._entering.get(name, ()))),
            outputs=tuple(sorted(self._outputs.get(name, ()))),
            counts=counts,
            draws=self._draws.get(name, {}),
        )

    def layer_of(self, path: str) -> Layer | None:
        """The layer that a module belongs to."""
        own = self._layer_of_unit
        return next((own[prefix] for prefix in ancestors(path) if prefix in own), None)

    def run(self, plan: _Plan) -> Seen:
        """Tries a plan with the counts that are known.

        Raises:
            ProbeError: It is not what it should be.
        """
        return self._run(plan, self._counts)

    def mend(self, error: ProbeError, plan: _Plan) -> bool:
        """Finds one more thing that a failed trial lacked; False where nothing helps."""
        ways = self._find_entering, self._find_outputs, self._find_counts
        return any(find(error, plan) for find in ways)

    def note_draws(self, part: Seen, plan: _Plan) -> None:
        """Which random numbers are split, after a trial that went well."""
        self._draws = {}
        for unit, shapes in self._trials.whole.draws.items():
            found = part.draws.get(unit, [])
            first = next((name for name in plan if not unit or name.startswith(f"{unit}.")), None)
            if found == shapes or first is None or len(found) != len(shapes):
                continue
            self._draws[first] = {
                unit: tuple(
                    split_draw(*pair, plan, unit, TRIED) for pair in zip(shapes, found, strict=True)
                )
            }

    def find_head(self, plan: _Plan) -> None:
        """Whether the loss reads what a split head makes, place by place."""
        source, last = self._trials.source, self._layers[-1].parameters
        heads = [n for n, split in plan.items() if split.unit == "vocabulary" and n in last]
        weights = [name for name in heads if len(self._shapes[name]) == 2]
        if source.loss != "cross_entropy" or source.target is None or len(weights) != 1:
            return
        (name,) = weights
        ended = {**plan, name: plan[name].changed(ends_in_loss=True)}
        # Elsewhere all ranks get all logits.
        if self._trials.runs_to_loss(ended, name):
            self._head = name

    def _run(self, plan: _Plan, counts: Mapping[str, tuple[str, ...]]) -> Seen:
        changed = {name: split.changed(counts=counts.get(name, ())) for name, split in plan.items()}
        return self._trials.run(changed)

    def _find_entering(self, error: ProbeError, plan: _Plan) -> bool:
        """Lets a whole parameter get all of its gradient, and those of the same place in layers."""
        name, found = error.parameter, False
        if name is None:
            return False
        for other in self._shapes:
            if _place(other) != _place(name) or other in plan:
                continue
            layer = next((each for each in self._layers if other in each.parameters), None)
            found |= layer is not None and _keep(self._entering, plan, layer, other)
        return found

    def _find_outputs(self, error: ProbeError, plan: _Plan) -> bool:
        """Lets what a whole layer makes get all of its gradient, and the same place in layers."""
        made_by, found = error.made_by, False
        if made_by is None:
            return False
        for path in self._paths:
            layer = self.layer_of(path)
            if _place(path) == _place(made_by) and layer is not None:
                found |= _keep(self._outputs, plan, layer, path)
        return found

    def _find_counts(self, error: ProbeError, plan: _Plan) -> bool:
        """Looks for attributes that count heads or numbers of which a rank has a part."""
        module = self._trials.module()
        for path in ancestors(error.path):
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
                if self._helps(counts, plan, module, kind):
                    self._counts = counts
                    return True
            if path in self._layer_of_unit:
                break
        return False

    def _helps(
        self,
        counts: Mapping[str, tuple[str, ...]],
        plan: _Plan,
        module: nn.Module,
        kind: type[nn.Module],
    ) -> bool:
        """Whether modules of a class run with these attributes changed."""
        try:
            self._run(plan, counts)
        except ProbeError as error:
            if error.made_by is not None:
                return True  # the sizes fit; what is missing is a part of a gradient
            inside = (type(module.get_submodule(path)) for path in ancestors(error.path))
            return kind not in inside
        return True


def _place(path: str) -> str:
    """The same for all layers of a kind."""
    return re.sub(r"\d+", "*", path)


def _keep(known: dict[str, set[str]], plan: _Plan, layer: Layer, found: str) -> bool:
    """Keeps something with the first split parameter of its layer; False: there is nothing new."""
    first = min((name for name in plan if name in layer.parameters), default=None)
    if first is None or found in known.get(first, ()):
        return False
    known.setdefault(first, set()).add(found)
    return True
