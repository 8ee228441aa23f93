"""Keys and values whose queries are on several ranks of a group: each of these has them.

Each rank's gradient is a term, of its own queries. The terms are summed once a step, when replicas
have summed theirs. The ranks then step the same numbers by the same gradients, and one of them
stands for all: where norms add up, and where checkpoints are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import nn

from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.gradient_buckets import Held, places_of, ways_of
from heterps_runtime.transport.gradient_sums import GradientSum
from heterps_runtime.transport.messenger import Messenger


class SharedHeads:
    """What a rank has of keys and values, and who has the same.

    Args:
        specification: Of the run.
        parameters: Of the model, by name.
        group: The ranks of the own group.
        rank: The own one.

    Attributes:
        sums: By ranks of a group, the parameters of which these have the same part, and a term each
            when all buckets are done. The same on all ranks, in one order. Where groups hold a
            parameter differently, its bucket has summed these terms, too.
    """

    def __init__(
        self,
        specification: RunSpecification,
        parameters: Mapping[str, Held],
        group: Sequence[int],
        rank: int,
    ) -> None:
        self._rank = rank
        self._later: set[str] = set()
        self.sums: dict[tuple[int, ...], list[str]] = {}
        for name in sorted(parameters):
            split, held = specification.splits.get(name), parameters[name]
            if split is None or not split.is_key_value:
                continue
            places = places_of(specification, name, held)
            for own in held.groups:
                for place in dict.fromkeys(places[each] for each in own):
                    ranks = tuple(sorted(each for each in own if places[each] == place))
                    if place is None or len(ranks) == 1:
                        continue
                    if len(ways_of(held, places)) == 1:
                        self.sums.setdefault(ranks, []).append(name)
                    if rank in ranks and rank != next(each for each in group if each in ranks):
                        self._later.add(name)

    def is_first(self, name: str) -> bool:
        """Whether no rank in front of this one in its group has the same part of a parameter."""
        return name not in self._later

    def sum_terms(self, parameters: Mapping[str, nn.Parameter], messenger: Messenger) -> None:
        """Sums the gradients, and waits; all ranks of the own group call it.

        Args:
            parameters: Of the own rank.
            messenger: Carries the sums.
        """
        for ranks, names in self.sums.items():
            if self._rank in ranks:
                own = [parameters[name] for name in names]
                GradientSum(own, partial(messenger.start_sum, ranks=ranks)).finish()
