"""Plans after losses: how long the choice takes, and what choosing among rules is worth.

python benchmarks/online/online.py --only replanning
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps.online.elastic import ElasticController
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.recovery.losses import likely_losses
from heterps_agents.recovery.model import Prediction, Situation, at_step, best_of
from heterps_agents.recovery.plans import recovery_predictions
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import NotEnoughDevicesError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_runtime.elastic.records import MembershipChange

TITLE = "Plans after losses"
TARGETS = [
    Target("re-planning after a loss that was prepared, worst", "prepared_worst_ms", 50, unit="ms"),
]
TIMES_NOTE = (
    "Milliseconds of `ElasticController.replan` for the loss of each single device: with the book "
    "of recovery plans full, and without it, when devices wait for rules and for planning anew (at "
    "most 0.5 s). `full_s`: until the book has them all, by a process of the lowest priority."
)
RULES_NOTE = (
    "Predicted seconds to the end of the run after the loss of one device or node, over those of "
    "the plan that is chosen, on average over the losses for which a rule has a plan. `chosen` "
    "counts whose plan it is. A checkpoint every 100 steps, the last one 50 steps ago. Step times "
    "are simulated."
)
RULES = ("simple", "borrow", "merge", "templates", "re-placement")
REMAINING_STEPS = (10, 100, 10_000)
STEP, CHECKPOINT_STEP = 1_050, 1_000
FULL_S = 300.0


class Fleet(NamedTuple):
    """A model on a cluster."""

    model: str
    cluster: str
    global_batch_size: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.model} on {self.cluster}"


FLEETS = (
    Fleet("llama-tiny", "local-emulated", 32),
    Fleet("gpt2", "spot-two-regions", 64),
    Fleet("bert-large", "a100-v100-t4", 128),
    Fleet("llama-7b", "h100-pod", 64),
)


def run(settings: Settings) -> SectionResult:
    """Every fleet: times with and without the book, and what each rule alone would take."""
    fleets = FLEETS[:1] if settings.quick else FLEETS
    store = settings.store("replanning", fleets=list(map(list, fleets)))
    with progress_bar("replanning", len(fleets)) as advance:
        for fleet in fleets:
            if fleet.name not in store:
                store.add(fleet.name, _measured(fleet, settings.seed))
            advance(fleet.name)
    found = [store[fleet.name] for fleet in fleets]
    times = [entry["times"] for entry in found]
    rules = [row for entry in found for row in entry["rules"]]
    summary = {
        "prepared_worst_ms": max(row["prepared_worst_ms"] for row in times),
        "prepared_median_ms": median(row["prepared_ms"] for row in times),
        "on_demand_worst_ms": max(row["on_demand_worst_ms"] for row in times),
    }
    tables = [
        TableRows("times", "Time of the choice", TIMES_NOTE, times),
        TableRows("rules", "Each rule alone, over the choice", RULES_NOTE, rules),
    ]
    return SectionResult(tables, summary, store)


class _SameBook(ElasticController):
    """Stays with its book after a choice, so that it can be asked about another loss."""

    def plan_changed(
        self, plan: Plan, problem: Problem | None = None, alive: Collection[str] | None = None
    ) -> None:
        """Does nothing."""


def _measured(fleet: Fleet, seed: int) -> Row:
    problem = load_problem(
        fleet.model, fleet.cluster, global_batch_size=fleet.global_batch_size, strategy=Strategy()
    )
    plan = place(problem, seed=seed).plan
    # A first choice loads what is compiled; a run's controller does that while its workers start.
    on_demand = _SameBook(problem, plan, seed=seed)
    list(_replan_ms(on_demand, problem, plan, problem.cluster.devices[0].name))
    late = [ms for d in problem.device_named for ms in _replan_ms(on_demand, problem, plan, d)]
    started = time.perf_counter()
    prepared: list[float] = []
    with _SameBook(problem, plan, seed=seed) as controller:
        controller.book.wait(FULL_S)
        full_s = time.perf_counter() - started
        for device in problem.device_named:
            prepared += _replan_ms(controller, problem, plan, device)
    row = {
        "fleet": fleet.name,
        "losses": len(prepared),
        "full_s": full_s,
        "prepared_ms": median(prepared),
        "prepared_worst_ms": max(prepared),
        "on_demand_ms": median(late),
        "on_demand_worst_ms": max(late),
    }
    return {"times": row, "rules": list(_rules(fleet, problem, plan, seed))}


def _replan_ms(
    controller: ElasticController, problem: Problem, plan: Plan, lost: str
) -> Iterator[float]:
    """None where the loss cannot be tolerated."""
    alive = tuple(name for name in problem.device_named if name != lost)
    change = MembershipChange(STEP, STEP + REMAINING_STEPS[1], (lost,), (), alive, plan)
    started = time.perf_counter()
    try:
        controller.replan(change)
    except NotEnoughDevicesError:
        return
    yield 1e3 * (time.perf_counter() - started)


def _rules(fleet: Fleet, problem: Problem, plan: Plan, seed: int) -> Iterator[Row]:
    """One row for each number of remaining steps."""
    cases: list[tuple[Situation, list[Prediction]]] = []
    for loss in likely_losses(problem):
        if not loss.devices & set(plan.devices):
            continue
        lost = tuple(sorted(loss.devices))
        left = without_devices(problem, lost)
        now = Situation(problem, left, plan, lost, STEP, STEP, checkpoint_step=CHECKPOINT_STEP)
        try:
            cases.append((now, recovery_predictions(now, None, seed, whatever_it_takes=True)))
        except NotEnoughDevicesError:
            continue
    for remaining in REMAINING_STEPS:
        finish = [
            {each.rule: at_step(each, now._replace(num_steps=STEP + remaining)) for each in found}
            for now, found in cases
        ]
        yield _rule_row(fleet, remaining, finish)


def _rule_row(fleet: Fleet, remaining: int, finish: Sequence[Mapping[str, Prediction]]) -> Row:
    best = [best_of(found.values()) for found in finish]
    chosen = Counter(each.rule for each in best)
    row: Row = {
        "fleet": fleet.name,
        "losses": len(finish),
        "remaining_steps": remaining,
        "chosen": ", ".join(f"{name} {count}" for name, count in chosen.most_common()),
    }
    for rule in RULES:
        over = [
            found[rule].finish_s / first.finish_s - 1
            for found, first in zip(finish, best, strict=True)
            if rule in found
        ]
        row[f"over_{rule}"] = fmean(over) if over else "-"
    return row
