"""Re-checking a split of an operator graph and its bound: plain code from the definition alone.

    report = check_split_certificate(graph, split.assignment, split.certificate)

The loads are computed anew, from what `heterps_envs.graphs.operators` says a load is. The bound is
proven anew, in one of two ways, and no code or table of a solver is used for either:

* Prices. Give every group of nodes that must stay together a price. If no accelerator with a load
  of at most `limit_s` can hold more than w, no CPU more than c, and k w + l c is less than all
  prices together, then every split has a device with a load above `limit_s`. Where the prices come
  from does not matter.
* Of a contiguous split: sets of devices in a row, in plain NumPy
(`heterps_envs.certificates.plain_ideals`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import NonNegativeFloat, NonNegativeInt

from heterps_configs.documents.base import Document
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_envs.certificates.plain_groups import PlainSplit, plain_split, split_problems
from heterps_envs.certificates.plain_ideals import is_in_row, no_row_below
from heterps_envs.certificates.plain_sets import can_hold_more, layers_of

# Sums may be taken in another order than here.
TOLERANCE = 1e-6
# Prices must miss what there is by this share, so that rounding proves nothing; and equal values
# may differ by so much less, as sums in another order do.
MARGIN, ROUNDING = 1e-10, 1e-12


class SplitCertificate(Document):
    """What is claimed of a split, and what a bound by prices rests on.

    Attributes:
        max_load_s: Load of the most loaded device.
        lower_bound_s: No split has a smaller largest load; of a contiguous split: no contiguous
            one.
        is_contiguous: The split is, and so are those that the bound is about.
        evidence: How the solver knows the bound: `groups`, `prices`, `integer programme`, `ideals`
            or `balance`.
        limit_s: Load that the prices refute: no split, contiguous or not, keeps to it; 0: none.
        prices: Of each group; a group is the nodes of a colour class, or one node, in order of
            their first nodes.
        cpu_worth: What no CPU holds more of, in units of the prices.
        order: Groups in an order in which few nets are open at once. It only makes the check
            quicker.
        ignored_s: The cheapest nets, up to these seconds together, are left out. Loads only get
            smaller by that.
    """

    max_load_s: NonNegativeFloat
    lower_bound_s: NonNegativeFloat
    is_contiguous: bool = False
    evidence: str = ""
    limit_s: NonNegativeFloat = 0.0
    prices: tuple[float, ...] = ()
    cpu_worth: NonNegativeFloat = 0.0
    order: tuple[NonNegativeInt, ...] = ()
    ignored_s: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class SplitReport:
    """What was re-checked of a split and its bound.

    Attributes:
        max_load_s: Of the split, by the definition; None where it is no split of the graph.
        lower_bound_s: Proven here: no split that the claim is about has a smaller largest load.
        is_bound_checked: Whether that is the claimed bound, or more.
        problems: What is wrong with the split or its certificate; empty for a valid one.
        checked: What was re-checked, one line each.
        unchecked: What was not, one line each.
    """

    max_load_s: float | None
    lower_bound_s: float
    is_bound_checked: bool
    problems: tuple[str, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Nothing was found wrong."""
        return not self.problems

    @property
    def gap(self) -> float:
        """The re-checked load over the re-proven bound, minus 1; inf where either lacks."""
        if self.max_load_s is None or self.lower_bound_s <= 0:
            return 0.0 if self.max_load_s == 0 else math.inf
        return max(0.0, self.max_load_s / self.lower_bound_s - 1)


def check_split_certificate(
    graph: OperatorGraph,
    assignment: Sequence[int],
    certificate: SplitCertificate,
    *,
    max_ideals: int = 20_000,
) -> SplitReport:
    """Re-checks a split and what is claimed of its optimality.

    Args:
        graph: The graph, with its devices.
        assignment: Device of each node, accelerators first.
        certificate: What is claimed.
        max_ideals: Limit of the proof that no contiguous split is better.
    """
    return _Check(graph, assignment, certificate).run(max_ideals)


class _Check:
    """Collects what is found."""

    def __init__(
        self, graph: OperatorGraph, assignment: Sequence[int], certificate: SplitCertificate
    ) -> None:
        self.graph, self.assignment, self.certificate = graph, assignment, certificate
        self.problems: list[str] = []
        self.checked: list[str] = []
        self.unchecked: list[str] = []

    def run(self, max_ideals: int) -> SplitReport:
        self.problems += split_problems(self.graph, self.assignment)
        load_s = None if self.problems else self._check_loads()
        if load_s is not None and self.certificate.is_contiguous:
            self._check_contiguity()
        bound_s = self._prove(max_ideals) if load_s is not None else 0.0
        claimed_s = self.certificate.lower_bound_s
        is_checked = load_s is not None and claimed_s <= bound_s * (1 + TOLERANCE)
        if load_s is not None:
            what = "contiguous split" if self.certificate.is_contiguous else "split"
            self.checked.append(f"no {what} has a largest load below {bound_s:.9g} s")
            if not is_checked:
                self.unchecked.append(
                    f"the bound of {claimed_s:.9g} s ({self.certificate.evidence})"
                )
        return SplitReport(
            load_s,
            bound_s,
            is_checked,
            tuple(self.problems),
            tuple(self.checked),
            tuple(self.unchecked),
        )

    def _check_loads(self) -> float:
        loads = plain_split(self.graph).loads_s(self.assignment)
        load_s, claimed = max(loads), self.certificate
        self.checked.append("every node is on one device that runs it, with its class; memory")
        self.checked.append(f"largest load: {load_s:.9g} s")
        if abs(load_s - claimed.max_load_s) > TOLERANCE * load_s:
            self.problems.append(
                f"the largest load is {load_s:.9g} s on device {loads.index(load_s)}, "
                f"not {claimed.max_load_s:.9g} s"
            )
        if claimed.lower_bound_s > load_s * (1 + TOLERANCE):
            self.problems.append(
                f"the bound of {claimed.lower_bound_s:.9g} s is above the split's own load of "
                f"{load_s:.9g} s"
            )
        return load_s

    def _check_contiguity(self) -> None:
        if is_in_row(self.graph, self.assignment):
            self.checked.append("devices can be put in a row that the forward pass never goes back")
        else:
            self.problems.append(
                "not contiguous: the forward pass comes back to a device that it has left"
            )

    def _prove(self, max_ideals: int) -> float:
        """Seconds below which this module knows no split to be."""
        parts = plain_split(self.graph)
        bound_s = parts.shared_out_s()
        if self.certificate.limit_s > 0:
            reason = self._refute(parts)
            if reason is None:
                bound_s = max(bound_s, self.certificate.limit_s)
        if self.certificate.is_contiguous and self.certificate.lower_bound_s > bound_s:
            bound_s = max(bound_s, self._prove_contiguous(max_ideals))
        return bound_s

    def _refute(self, parts: PlainSplit) -> str | None:
        """Whether the prices prove the limit: None; else why not, which is also written down."""
        found = self.certificate
        size = len(parts.members)
        if len(found.prices) != size or sorted(found.order) != list(range(size)):
            reason = f"prices and order must name each of the {size} groups once"
        elif not all(map(math.isfinite, (found.limit_s, found.cpu_worth, *found.prices))):
            reason = "limit and prices must be finite"
        else:
            doubt, reason = self._refuted_by_prices(parts)
            if doubt:
                self.unchecked.append(doubt)
                return doubt
        if reason:
            self.problems.append(reason)
            return reason
        self.checked.append(
            f"prices of {size} groups: no split keeps to {found.limit_s:.9g} s on every device"
        )
        return None

    def _refuted_by_prices(self, parts: PlainSplit) -> tuple[str, str]:
        """What could not be decided, and what is wrong; both empty: the limit is refuted."""
        found, graph = self.certificate, self.graph
        total = math.fsum(found.prices)
        scale = math.fsum(abs(price) for price in found.prices)
        left = total - MARGIN * scale - graph.num_cpus * found.cpu_worth
        worth = left / graph.num_accelerators
        if worth < 0:
            return "", "the CPUs alone may hold everything at these prices"
        for kind, nets, seconds, most in (
            ("CPU", [], parts.cpu_s, found.cpu_worth + ROUNDING * scale),
            ("accelerator", parts.nets_over(found.ignored_s), parts.accelerator_s, worth),
        ):
            if kind == "CPU" and graph.num_cpus == 0:
                continue
            layers = layers_of(nets, found.order)
            if layers is None:
                return "the prices: too many sets of open nets", ""
            more = can_hold_more(layers, found.prices, seconds, found.limit_s, most)
            if more is None:
                return "the prices: too many sets of groups", ""
            if more:
                return "", (
                    f"the prices prove nothing: within {found.limit_s:.9g} s one {kind} can hold "
                    f"more than {most:.6g} of {total:.6g}"
                )
        return "", ""

    def _prove_contiguous(self, max_ideals: int) -> float:
        """The claimed bound where no row of devices stays below it; else 0, with the reason."""
        claimed_s = self.certificate.lower_bound_s
        below_s = claimed_s * (1 - 0.5 * TOLERANCE)
        found = no_row_below(self.graph, below_s, max_ideals)
        if found is None:
            self.unchecked.append(f"contiguous splits: more than {max_ideals} ideals, or too much")
            return 0.0
        if not found:
            self.problems.append(f"some contiguous split has a largest load below {below_s:.9g} s")
            return 0.0
        self.checked.append("every row of ideals was tried")
        return below_s
