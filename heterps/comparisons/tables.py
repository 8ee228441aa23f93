"""`heterps compare` on the terminal: a row for each planner, and what its numbers are about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from heterps.micro_batches.placing import given_up_notes
from heterps.planning.comparison import Comparison, ComparisonRow
from heterps.reports.console import answer, percent_text, remarks, seconds_text
from heterps.reports.tables import dtype_hint, job_text
from heterps.reports.ways import plan_ways
from heterps_agents.interface.registry import system_names
from heterps_agents.interface.system import PERIOD

_NEAR_BEST = "to 1 %"
_MORE_THAN_ANY = 1000  # columns of a terminal
_PLAN = "plan"
# What a table does without where a terminal is narrow, the first first.
_LEAST_ASKED_FOR = ("planning", "evaluations", "USD/million", _NEAR_BEST, _PLAN)
# Where each plan is, the line on what was written tells as well.
_LEAST_ASKED_FOR_OF_THE_FIELD = (_PLAN, "CPU", "own error")
_Columns = dict[str, Callable[[ComparisonRow], str]]


def print_comparison(comparison: Comparison, files: Mapping[str, str] | None = None) -> None:
    """Prints the table and what its gaps are measured against.

    Args:
        comparison: What `heterps.planning.compare.compare` returned.
        files: By planner, where its plan was written.
    """
    problem = comparison.problem
    has_open_size = problem.strategy.chooses_micro_batch
    has_systems = not set(system_names()).isdisjoint(row.planner for row in comparison.rows)
    answer.print(f"job: {job_text(problem, has_open_size=has_open_size)}")
    if has_systems:
        answer.print(field_table(comparison, files or {}))
        for line in cannot_place_lines(comparison):
            answer.print(line)
    else:
        table = comparison_table(comparison, files or {})
        answer.print(table)
    answer.print(_gap_legend(comparison))
    if has_systems:
        answer.print(
            "own error: what a planner itself expects of the step (a paper's method by its own "
            "cost, others by the closed form), over the simulated one"
        )
    if comparison.bound_step_time_s is None:
        answer.print(ways_table(comparison))
    if comparison.without_options:
        remarks.print(
            f"{', '.join(comparison.without_options)}: each stage is one device that keeps all; "
            "these planners choose no tensor parallel, recompute, offload and sharded state",
            soft_wrap=True,
        )
    if comparison.beyond_strategy:
        remarks.print(_beyond_line(comparison), soft_wrap=True)
    for line in _given_up_lines(comparison):
        remarks.print(line, soft_wrap=True)
    if not has_systems:
        if _NEAR_BEST in (column.header for column in table.columns):
            answer.print(
                "to 1 %: CPU until its best was within 1 % of the best of all, by the closed form"
            )
        for row in comparison.rows:
            if row.refused:
                remarks.print(f"refused: {row.reason}")
    for row in comparison.rows:
        if row.own_cost_s is not None:
            answer.print(_own_cost_line(comparison, row))
    hint = dtype_hint(comparison.problem)
    if hint is not None:
        remarks.print(f"hint: {hint}")
    if comparison.left_out:
        names = " and ".join(comparison.left_out)
        remarks.print(
            f"left out, for they train a network for every problem: {names}; "
            "--all shows them, and a smaller budget does"
        )


def _given_up_lines(comparison: Comparison) -> list[str]:
    """Which planners did not answer for some sizes of micro-batches that may be better."""
    of_note: dict[str, list[str]] = {}
    for name, result in comparison.results.items():
        for note in given_up_notes(result):
            of_note.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in of_note.items()]


def _beyond_line(comparison: Comparison) -> str:
    """That some plans are of another kind than what the others may answer with."""
    found = {name: comparison.results[name].plan for name in comparison.beyond_strategy}
    options = {
        "--tensor-parallel": any(s.degree > 1 for plan in found.values() for s in plan.stages),
        "--recompute": any(s.recompute_layers for plan in found.values() for s in plan.stages),
        "--shard-state": any(plan.sharded_state for plan in found.values()),
    }
    used = " and ".join(f"{name} auto" for name, is_used in options.items() if is_used)
    stages = [stage for plan in found.values() for stage in plan.stages]
    # Groups with uneven shares are nothing that any option lets others choose.
    is_allowed = not any(stage.uneven_shares or stage.unsplit_layers for stage in stages)
    more = f"; with {used} they may" if is_allowed and used else ""
    return (
        f"{', '.join(found)}: not like the others: its stages are carried out in ways that they "
        f"may not choose, so it has no gap{more}"
    )


def field_table(comparison: Comparison, files: Mapping[str, str]) -> Table:
    """One row for each planner that has a plan, the best first: published methods beside ours.

    No figure is cut: see `comparison_table`.

    Args:
        comparison: With systems of papers.
        files: By planner, where its plan was written; empty: nowhere.
    """
    rows = [row for row in _sorted(comparison) if row.feasible]
    columns: _Columns = {
        "planner": lambda row: row.planner,
        "step": lambda row: "" if row.step_time_s is None else seconds_text(row.step_time_s),
        "over best": lambda row: "" if row.over_best is None else f"{row.over_best:.4g} x",
        "gap": _gap_text,
        "CPU": lambda row: _rounded_text(row.planning_cpu_s),
        "own error": _own_error_text,
    }
    if comparison.problem.job.objective == "price":
        columns["USD/million"] = _price_text
    if files:
        columns[_PLAN] = lambda row: files.get(row.planner, "")
    return _fitting(comparison, rows, columns, _LEAST_ASKED_FOR_OF_THE_FIELD)


def cannot_place_lines(comparison: Comparison) -> list[str]:
    """A line for each planner without a plan, under the names of those that have one: why."""
    width = _planner_width(comparison)
    return [
        f" {row.planner:<{width}}  cannot place: {reason_of(row)}"
        for row in comparison.rows
        if not row.feasible
    ]


def reason_of(row: ComparisonRow) -> str:
    """Why a planner has no plan, without its name in front."""
    return row.reason.removeprefix(f"planner {row.planner}: ").removeprefix(f"{row.planner}: ")


def _planner_width(comparison: Comparison) -> int:
    return max(len(row.planner) for row in comparison.rows)


def _title(comparison: Comparison) -> str:
    problem = comparison.problem
    return f"{problem.profile.name} on {problem.cluster.name}"


def _sorted(comparison: Comparison) -> list[ComparisonRow]:
    """The best first, by what the job asks for; those without a plan last."""
    by_price = comparison.problem.job.objective == "price"

    def cost(row: ComparisonRow) -> float:
        found = row.price_usd_per_million_samples if by_price else row.step_time_s
        return math.inf if found is None or not row.feasible else found

    return sorted(comparison.rows, key=cost)


def comparison_table(comparison: Comparison, files: Mapping[str, str]) -> Table:
    """One row for each planner, the best first.

    No figure is cut: columns that a narrow terminal has no room for are left out, the least
    asked for first.

    Args:
        comparison: Of planners of this project, or of one's own.
        files: By planner, where its plan was written; empty: nowhere.
    """
    columns = _columns(comparison, files)
    return _fitting(comparison, _sorted(comparison), columns, _LEAST_ASKED_FOR)


def _fitting(
    comparison: Comparison,
    rows: Sequence[ComparisonRow],
    columns: _Columns,
    least_asked_for: Sequence[str],
) -> Table:
    """A table without the columns that the terminal has no room for."""
    any_width = answer.options.update_width(_MORE_THAN_ANY)
    for heading in least_asked_for:
        table = _table_of(comparison, rows, columns)
        if answer.measure(table, options=any_width).maximum <= answer.width:
            break
        columns.pop(heading, None)
    return _table_of(comparison, rows, columns)


def _columns(comparison: Comparison, files: Mapping[str, str]) -> _Columns:
    """By its heading, what a column says of a row."""
    columns: _Columns = {"planner": lambda row: row.planner}
    columns["samples/s"] = _throughput_text
    if any(row.price_usd_per_million_samples for row in comparison.rows):
        columns["USD/million"] = _price_text
    columns["gap"] = _gap_text
    columns["evaluations"] = lambda row: str(row.evaluations)
    columns["CPU"] = lambda row: seconds_text(row.planning_cpu_s)
    columns[_NEAR_BEST] = _near_best_text
    columns["planning"] = lambda row: seconds_text(row.planning_s)
    if files:
        columns[_PLAN] = lambda row: files.get(row.planner, "")
    return columns


def _gap_text(row: ComparisonRow) -> str:
    return "" if row.gap is None else percent_text(row.gap, 2)


def _own_error_text(row: ComparisonRow) -> str:
    return "" if row.own_error is None else percent_text(row.own_error, 1, is_change=True)


def _throughput_text(row: ComparisonRow) -> str:
    if row.feasible:
        return f"{row.throughput_samples_per_s:.5g}"
    return "refused" if row.refused else "infeasible"


def _price_text(row: ComparisonRow) -> str:
    return f"{row.price_usd_per_million_samples:.5g}" if row.feasible else ""


def _near_best_text(row: ComparisonRow) -> str:
    return "" if row.near_best_cpu_s is None else _rounded_text(row.near_best_cpu_s)


def _table_of(comparison: Comparison, rows: Sequence[ComparisonRow], columns: _Columns) -> Table:
    table = Table(title=_title(comparison), title_justify="left", box=None)
    for heading in columns:
        is_name = heading in {"planner", _PLAN}
        width = _planner_width(comparison) if heading == "planner" else None
        table.add_column(
            heading, justify="left" if is_name else "right", no_wrap=True, min_width=width
        )
    for row in rows:
        table.add_row(*(text_of(row) for text_of in columns.values()))
    return table


def _rounded_text(seconds: float) -> str:
    """Two digits: what is left of eighty columns."""
    return seconds_text(float(f"{seconds:.2g}"))


def ways_table(comparison: Comparison) -> Table:
    """How the plan of each planner carries out its stages, and with which micro-batches."""
    title = "how stages are carried out, and of how many layers"
    table = Table(title=title, title_justify="left", box=None)
    headings = ("planner", "micro-batch", "tensor parallel", "recompute", "offload", "sharded")
    for heading in headings:
        # Ways of unlike stages can be many: on lines of their own where they find no room.
        table.add_column(heading, no_wrap=heading == "planner", overflow="fold")
    by_time = sorted(comparison.results.items(), key=lambda entry: entry[1].estimate.step_time_s)
    for name, result in by_time:
        table.add_row(name, str(result.plan.job.micro_batch_size), *plan_ways(result.plan))
    return table


def _own_cost_line(comparison: Comparison, row: ComparisonRow) -> str:
    """What a paper's method predicts by its own cost model, beside our simulator."""
    assert row.own_cost_s is not None
    assert row.step_time_s is not None
    job = comparison.results[row.planner].plan.job
    own_s, num_micro_batches = row.own_cost_s, job.num_micro_batches
    text = f"{seconds_text(own_s)} a {row.own_cost_of}"
    if row.own_cost_of == PERIOD:
        text += f", {seconds_text(own_s * num_micro_batches)} for all {num_micro_batches}"
    own = comparison.results[row.planner].own_cost
    note = f"; {own.note}" if own is not None and own.note else ""
    return (
        f"{row.planner} itself predicts {text}; simulated: {seconds_text(row.step_time_s)} a step"
        f"{note}"
    )


def _gap_legend(comparison: Comparison) -> str:
    if comparison.problem.job.objective == "price":
        return "gap: price over the cheapest plan of this table"
    least_s = comparison.executable_step_time_s
    if least_s is None:
        return "gap: simulated step time over the shortest of this table"
    bound = f"gap: simulated step time over {seconds_text(least_s)}, which no plan can be below"
    closed_s = comparison.bound_step_time_s
    if closed_s is None or not comparison.bound_is_proven:
        return bound
    return f"{bound}; by the closed form {seconds_text(closed_s)} is the proven optimum"
