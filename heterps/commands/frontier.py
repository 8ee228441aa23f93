"""`heterps place --frontier`: the table, the JSON and the figure."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from heterps.commands.requests import ProblemRequest
from heterps.planning.frontier import Frontier, frontier
from heterps.planning.warm_up import warm_up_frontier
from heterps.renting.offer import ALL, Offer
from heterps.reports.console import answer, print_json, remarks, say_when_compiling, seconds_text
from heterps.reports.figures import save_figure
from heterps.reports.ways import plan_ways_text
from heterps_agents.interface.planner import Budget
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import FIGURE_SUFFIXES, try_outputs


def run_frontier(
    asked: ProblemRequest,
    planner: str,
    *,
    seconds: float | None,
    output: Path | None,
    figure: Path | None,
    as_json: bool,
    offer: Offer = ALL,
) -> None:
    """Solves, prints, and draws the figure where one is asked for."""
    if offer != ALL:
        raise HeterpsError(
            "--frontier shows plans at every price, on all devices: leave out "
            "--budget-usd-per-hour, --max-devices, --region and --exclude"
        )
    if planner not in ("auto", "exact"):
        raise HeterpsError(f"--frontier is the exact solver's; it cannot use --planner {planner}")
    if output is not None:
        raise HeterpsError(
            "--output takes one plan, --frontier has many: choose one from its table and place it "
            "with --objective price and --min-throughput"
        )
    try_outputs({"--figure": (figure, FIGURE_SUFFIXES)})
    problem = asked.load()
    say_when_compiling()
    warm_up_frontier()
    found = frontier(problem, budget=Budget(seconds=seconds))
    if figure is not None:
        from heterps.reports.planner_figures import frontier_figure

        save_figure(frontier_figure(found), figure)
        remarks.print(f"figure written to {figure}")
    if as_json:
        print_json(found.to_mapping())
        return
    answer.print(frontier_table(found))
    answer.print(
        "no plan is both faster and cheaper than one of these: proven for the closed form, "
        f"in {seconds_text(found.planning_s)}; layer times: "
        f"{', '.join(dict.fromkeys(problem.layer_times.sources))}"
    )


def frontier_table(found: Frontier) -> Table:
    """One row for each plan, the fastest first."""
    problem = found.problem
    table = Table(
        title=f"{problem.profile.name} on {problem.cluster.name}: throughput against price",
        title_justify="left",
        box=None,
    )
    for heading in ("samples/s", "USD / million", "step time", "simulated", "micro-batch"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("devices")
    is_open = not problem.strategy.is_plain
    if is_open:
        table.add_column("stages")
    for entry in found.plans:
        simulated_s = entry.plan.predicted_step_time_s
        ways = (plan_ways_text(entry.plan),) if is_open else ()
        table.add_row(
            f"{entry.throughput_samples_per_s:.5g}",
            f"{entry.price_usd_per_million_samples:.5g}",
            seconds_text(entry.step_time_s),
            "" if simulated_s is None else seconds_text(simulated_s),
            str(entry.plan.job.micro_batch_size),
            ", ".join(f"{count} {name}" for name, count in entry.devices.items()),
            *ways,
        )
    return table
