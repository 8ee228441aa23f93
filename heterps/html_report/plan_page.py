"""What a page shows of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterps.html_report.cluster_picture import cluster_picture
from heterps.html_report.improvements import MOST_SECONDS, Found, improvements
from heterps.html_report.markup import Markup, joined, section, table, tag
from heterps.html_report.memory_picture import memory_picture
from heterps.html_report.reasons import Move, Reason, reasons
from heterps.html_report.timeline_picture import timeline_picture
from heterps.micro_batches.place_result import describe_bound, describe_executable
from heterps.reports.console import interval_text, percent_text, seconds_text
from heterps.reports.folding import (
    folded_estimate,
    folded_names,
    idle_text,
    stage_groups,
)
from heterps.reports.tables import dtype_hint, idle_lines, job_text
from heterps.reports.ways import recompute_share
from heterps_agents.finishing.idle_devices import IdleClass, idle_classes
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem
from heterps_envs.simulator.interval import unmeasured_types
from heterps_envs.simulator.simulate import estimate

# A stage with so much less work than the slowest has slack.
SLACK = 0.97
# What idle devices would do without a limit is looked for so long.
IDLE_SECONDS = 3.0
# Step times that differ by less are those of the same plan on the same devices.
SAME_STEP_TIME = 1e-3


class PlanFacts(NamedTuple):
    """What is computed before anything is drawn.

    Attributes:
        shown: The estimate, with timeline, interval and memory curves.
        folded: The same, with equal devices as one row.
        reasons: By row of the table of stages.
        found: What would help.
        idle: Why devices have nothing to do.
    """

    problem: Problem
    plan: Plan
    shown: Estimate
    folded: Estimate
    reasons: Sequence[Reason]
    found: Found
    idle: tuple[IdleClass, ...] = ()


def plan_facts(problem: Problem, plan: Plan) -> PlanFacts:
    """Simulates the plan, what moving its cuts would do, and changes of the cluster."""
    shown = estimate(problem, plan, with_timeline=True, with_interval=True, with_memory=True)
    folded = folded_estimate(problem, plan, shown)
    return PlanFacts(
        problem,
        plan,
        shown,
        folded,
        reasons(problem, plan),
        improvements(problem, plan),
        idle_classes(problem, plan, IDLE_SECONDS),
    )


def plan_sections(facts: PlanFacts) -> Markup:
    """All parts of the page."""
    problem, plan = facts.problem, facts.plan
    picture = cluster_picture(problem, stage_groups(problem, plan))
    return joined([
        _figures(facts),
        section("Where each stage is", picture, stages_table(problem, plan, facts.shown)),
        section("Why", _reasons(facts), note="The slowest stage sets the pace; every cut was moved "
                "by one layer both ways, and the step simulated."),
        _step(facts),
        section("Memory", memory_picture(facts.folded),
                note="Of the fullest device of each row, over the step."),
        section("What would help most", _improvements(facts.found), note=_found_note(facts.found)),
        _notes(facts),
    ])  # fmt: skip


def _step(facts: PlanFacts) -> Markup:
    again = recompute_share(facts.problem, facts.plan)
    picture = timeline_picture(facts.folded.timeline, facts.folded.step_time_s, again)
    bubble = facts.shown.bubble_share
    note = "" if bubble is None else f"Devices wait for {percent_text(bubble)} of the step."
    return section("One step", picture, note=f"Simulated. {note}")


def _figures(facts: PlanFacts) -> Markup:
    shown, plan = facts.shown, facts.plan
    types = unmeasured_types(facts.problem, plan)
    sure = interval_text(shown.step_time_low_s, shown.step_time_high_s, types).strip(" ()")
    of_all, of_form = _bounds(facts)
    bound = describe_executable(of_all) or describe_bound(of_form, plan.job.schedule)
    bound_s = (of_all if of_all.status != "unknown" else of_form).step_time_s
    cards = [
        _card(seconds_text(shown.step_time_s), "a step", sure),
        _card(f"{shown.throughput_samples_per_s:.5g}", "samples a second"),
        _card(f"{shown.price_usd_per_million_samples:.5g}", "USD per million samples"),
        _card(
            _optimality(facts), "from the best plan",
            bound if bound_s is None else f"{bound}: {seconds_text(bound_s)}",
        ),
    ]  # fmt: skip
    words = "" if shown.feasible else f"not feasible: {'; '.join(shown.reasons)}"
    return joined([
        tag("p", job_text(facts.problem)), tag("p", words, class_="bad") if words else None,
        tag("div", *cards, class_="cards"),
    ])  # fmt: skip


def _bounds(facts: PlanFacts) -> tuple[Bound, Bound]:
    """Of all plans, and of the closed form; unknown where the plan's are about other times."""
    if _other_step_time_s(facts) is not None:
        return Bound(), Bound()
    return facts.plan.executable_bound, facts.plan.bound


def _other_step_time_s(facts: PlanFacts) -> float | None:
    """What was predicted of the plan when it was made; None where that is what is shown.

    A run may have learned the times of its devices, and a user may have changed the file.
    """
    then_s = facts.plan.predicted_step_time_s
    if then_s is None or math.isclose(then_s, facts.shown.step_time_s, rel_tol=SAME_STEP_TIME):
        return None
    return then_s


def _optimality(facts: PlanFacts) -> str:
    bound, of_form = _bounds(facts)
    if bound.status == "unknown":
        bound = of_form
    if bound.status == "proven":
        return "proven"
    return "unknown" if bound.gap is None else f"at most {percent_text(bound.gap, 1)}"


def _card(number: str, words: str, more: str = "") -> Markup:
    return tag(
        "div", tag("b", number), tag("span", words), tag("small", more) if more else None,
        class_="card",
    )  # fmt: skip


def stages_table(problem: Problem, plan: Plan, shown: Estimate) -> Markup:
    """Which layers are where, and how they are carried out."""
    rows = []
    for group in stage_groups(problem, plan):
        used = max(shown.memory_bytes[name] for name in group.devices)
        has = min(shown.memory_limit_bytes[name] for name in group.devices)
        rows.append((
            group.label, folded_names(group.devices), group.type, group.layers,
            f"{bytes_text(used)} of {bytes_text(has)}", group.way or "keeps all",
        ))  # fmt: skip
    headings = ("stage", "devices", "type", "layers", "memory", "carried out")
    return table(headings, rows)


def _reasons(facts: PlanFacts) -> Markup:
    rows = [
        (
            reason.group.label,
            seconds_text(reason.busy_s),
            _pace_text(reason),
            _moves_text(reason.moves, facts.shown.step_time_s, is_last=_is_last(reason, facts)),
        )
        for reason in facts.reasons
    ]
    headings = ("stage", "passes of a step", "", "the cut behind it, moved by a layer")
    return table(headings, rows, (1,))


def _is_last(reason: Reason, facts: PlanFacts) -> bool:
    return reason.group.last_layer == facts.plan.num_layers - 1


def _pace_text(reason: Reason) -> str:
    if reason.pace >= 1 - 1e-9:
        return "sets the pace"
    slack = percent_text(1 - reason.pace)
    return (
        "nearly as long as the slowest" if reason.pace > SLACK else f"{slack} less than the slowest"
    )


def _moves_text(moves: Sequence[Move] | None, step_time_s: float, *, is_last: bool) -> str:
    if is_last:
        return "none: the last stage"
    if moves is None:
        return "not looked at: there was no time"
    if not moves:
        return "not looked at: stages there have one layer"
    return "; ".join(
        f"layer {move.layer} to the stage {'behind' if move.is_forward else 'in front'}: "
        + (
            percent_text(move.step_time_s / step_time_s - 1, 1, is_change=True)
            if math.isfinite(move.step_time_s)
            else "does not fit"
        )
        for move in moves
    )


def _improvements(found: Found) -> Markup:
    helpful = [entry for entry in found.improvements if entry.saves > 5e-4]
    rows = [
        (
            entry.change,
            seconds_text(entry.step_time_s),
            percent_text(-entry.saves, 1, is_change=True),
            f"{entry.usd_per_hour:+.2f}" if entry.usd_per_hour else "",
        )
        for entry in helpful
    ]
    none = [entry.change for entry in found.improvements if entry not in helpful]
    rest = tag("p", f"No gain was found from: {', '.join(none)}.", class_="note") if none else None
    shown = table(("change", "step", "", "USD per hour"), rows, (1, 2, 3)) if rows else None
    return joined([shown, rest])


def _found_note(found: Found) -> str:
    left = f" {found.num_left} more changes were not looked at." if found.num_left else ""
    return (
        "Each change was simulated and planned anew by short searches from this plan, "
        f"{MOST_SECONDS:g} s in all; longer ones may find more. Without a change they find "
        f"{seconds_text(found.base_step_time_s)}.{left}"
    )


def _notes(facts: PlanFacts) -> Markup:
    idle, hint = idle_text(facts.problem, facts.plan.devices), dtype_hint(facts.problem)
    lines = [f"Planner: {facts.plan.planner}.", f"Layer times: {facts.shown.layer_times}."]
    lines += [f"Idle: {idle}."] if idle else []
    lines += idle_lines(facts.problem, facts.idle)
    lines += [hint] if hint else []
    then_s = _other_step_time_s(facts)
    if then_s is not None:
        lines.append(
            f"When the plan was made, {seconds_text(then_s)} were predicted: of other times, as a "
            "run learns them, or of another plan. Its bound was about these, and is not shown."
        )
    return section("Notes", tag("ul", *(tag("li", line) for line in [*lines, *facts.shown.notes])))
