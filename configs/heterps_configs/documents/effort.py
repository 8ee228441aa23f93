"""Efforts: how hard the learned placers try, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import Count, Name, PositiveCount, Seconds

# Commands, planners and the book of recovery plans ask for these.
NEEDED = ("fast", "normal", "high")


class GraphEffort(Document):
    """How much is done for a graph, where the budget does not end it earlier.

    Attributes:
        samples: Placements of the policy, the first of them greedy.
        polish_evaluations: Of annealing from the best of them and from a simple placement; None: as
            many as the budget allows.
    """

    samples: Count
    polish_evaluations: Count | None


class Effort(Document):
    """What one decoding of a chain does, and what is done for a graph.

    Attributes:
        description: One line for lists.
        begins_with: Effort whose whole work comes first, in place of the first ladder; this one
            never gives a worse placement.
        first_width: Partial placements kept for each target of the first, coarse ladder.
        first_targets: Targets of that ladder.
        width: Partial placements kept for each target around the best placement.
        targets: Targets of a round around it; 0 for no such rounds.
        rounds: Such rounds at most; they end when one finds nothing better.
        descents: Placements of a round that are improved by small changes.
        elite: Placements of a round whose windows are chosen anew.
        window: Stages that are chosen anew together, exactly; 0 for none. Where the best placement
            has no more, the exact solver's sweep takes them all.
        window_tries: Stages tried in the windows of a placement, before a look whether that helps.
        polish_evaluations: Of cool annealings from the best placement, when all else is done, in
            rounds of 250,000; none where that one is proven, and no round that the budget does not
            allow.
        price_width: Width of the beams for the objective price.
        price_targets: Targets of each set of device classes for that objective; of a policy that
            knows prices, lengths of the step at most.
        price_shares: Of such a policy, targets for each length.
        price_rounds: Rounds of such a policy around the best placement.
        exact_s: Predicted seconds up to which the planner `auto` prefers the exact solver. Eight
            device classes take a third of what is predicted.
        sweeps: Whether the exact solver may take all stages of a placement that has no more than a
            window; without, windows have one stage more at most than what they replace.
        simulated_stages: Stages that are simulated, replicas counted, to choose among finalists and
            to try small moves: a tenth of a millisecond each, with all that is asked of a plan.
        fastest_kinds: On hundreds of devices searches are also made over the fastest kind alone,
            the two fastest, and so on; the simulator goes on from what so many of them find. 0:
            only one is made, over the fastest kind.
        graphs: The same for graphs.
    """

    description: str = ""
    begins_with: str | None = None
    first_width: PositiveCount
    first_targets: PositiveCount
    width: PositiveCount
    targets: Count
    rounds: Count
    descents: Count
    elite: PositiveCount
    window: Count
    window_tries: PositiveCount
    polish_evaluations: Count = 0
    price_width: PositiveCount
    price_targets: PositiveCount
    price_shares: PositiveCount
    price_rounds: Count
    exact_s: Seconds
    sweeps: bool = True
    simulated_stages: PositiveCount = 1000
    fastest_kinds: Count = 0
    graphs: GraphEffort


class EffortTable(Document):
    """A file of efforts.

    Attributes:
        efforts: By name, the least first; `fast`, `normal` and `high` among them.
    """

    efforts: Mapping[Name, Effort]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        missing = [name for name in NEEDED if name not in self.efforts]
        if missing:
            raise ValueError(f"efforts: {', '.join(missing)} must be among them")
        names = list(self.efforts)
        for index, (name, effort) in enumerate(self.efforts.items()):
            if effort.begins_with not in (None, *names[:index]):
                raise ValueError(
                    f"efforts.{name}.begins_with: {effort.begins_with!r} is no effort above it"
                )
        return self
