"""A running plan is regrouped: a device of a tensor-parallel group becomes slower in mid-run.

python benchmarks/online/online.py --only regrouping
"""

from __future__ import annotations

from benchmarks.agent.section import Row, TableRows
from benchmarks.online.regrouping_cases import (
    DEVICES,
    SLOW,
    SLOW_STEP,
    problem,
    regrouped_run,
    two_groups,
    undisturbed_losses,
)
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_agents.systems.malleus.plans import proportional_bound
from heterps_configs.documents.plan import Plan
from heterps_envs.simulator.simulate import simulate

TITLE = "Groups with a straggler"
FACTORS, QUICK_FACTORS = (3.0, 5.0), (5.0,)
TARGETS = [
    Target(
        "a device of a group becomes 5 x slower: step after regrouping over the bound by "
        "proportional speed", "over_bound", 0.10, unit="%",
    ),
    Target("largest difference of a loss to the undisturbed run", "loss_difference", 1e-5),
]  # fmt: skip
NOTE = (
    "Two stages, each on a group of two of four equal emulated devices of one node; no device has "
    f"room for all layers. At one step {SLOW} becomes slower. The controller of `heterps run "
    "--online` measures, searches and re-places while the run goes on. Steps are medians of "
    "measured seconds: before, while the device is slow, and under the last plan. The bound is the "
    "step before, shared by speed, as if groups cost nothing and layers could be cut. `alone` is "
    "the step of the last plan as the simulator has it."
)


def run(settings: Settings) -> SectionResult:
    """A run for each factor, and one that nothing happens to."""
    factors = QUICK_FACTORS if settings.quick else FACTORS
    store = settings.store("regrouping", factors=factors)
    for factor in factors:
        if str(factor) not in store:
            store.add(str(factor), _row(factor))
    rows: list[Row] = [store[str(factor)] for factor in factors]
    summary: Row = {
        "over_bound": rows[-1]["over_bound"],
        "loss_difference": max(row["loss_difference"] for row in rows),
    }
    return SectionResult([TableRows("regrouping", TITLE, NOTE, rows)], summary, store)


def _row(factor: float) -> Row:
    of = problem()
    first = two_groups(of)
    found = regrouped_run(of, first, factor)
    losses = undisturbed_losses(of, first, len(found.losses))
    bound_s = proportional_bound({SLOW: factor}, len(DEVICES), found.before_s())
    return {
        "factor": factor,
        "before_s": found.before_s(),
        "during_s": found.during_s(),
        "after_s": found.after_s(),
        "alone_s": simulate(of, found.plans[-1], slowdown={SLOW: factor}).step_time_s,
        "bound_s": bound_s,
        "over_bound": found.after_s() / bound_s - 1,
        "slow_steps": found.first_step - SLOW_STEP,
        "loss_difference": max(
            abs(own - other) for own, other in zip(found.losses, losses, strict=True)
        ),
        "plan": _text(found.plans[-1]),
        "messages": found.messages,
    }


def _text(plan: Plan) -> str:
    """Groups and layers of its stages."""
    stages = (f"{'+'.join(stage.devices)}: {len(stage.layers)}" for stage in plan.stages)
    return ", ".join(stages)
