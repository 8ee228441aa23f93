"""`heterps simulate`: what the simulator says of a plan file."""

from __future__ import annotations

from pathlib import Path

from heterps.chrome_trace import write_chrome_trace
from heterps.console import answer, bytes_text, print_json, remarks, seconds_text
from heterps.plans import load_plan_and_problem
from heterps_configs.errors import HeterpsError
from heterps_envs.simulator import estimate

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def run_simulate(
    plan_file: Path,
    *,
    trace: Path | None,
    figure: Path | None,
    model: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Simulates, prints, and writes the trace and the figure where they are asked for."""
    if figure is not None and figure.suffix not in FIGURE_SUFFIXES:
        raise HeterpsError(f"--figure {figure}: allowed endings: {', '.join(FIGURE_SUFFIXES)}")
    plan, problem = load_plan_and_problem(plan_file, model, cluster)
    shown = estimate(problem, plan, with_timeline=True)
    if trace is not None:
        write_chrome_trace({"predicted": shown}, trace)
        remarks.print(f"trace written to {trace} (open it at ui.perfetto.dev)")
    if figure is not None:
        from heterps.figures import timeline_figure

        figure.parent.mkdir(parents=True, exist_ok=True)
        timeline_figure(shown, f"{plan.model} on {plan.cluster}").savefig(str(figure), dpi=150)
        remarks.print(f"figure written to {figure}")
    if as_json:
        print_json(shown.model_dump(mode="json", exclude={"timeline"}))
        return
    bubble = 100 * (shown.bubble_share or 0)
    answer.print(
        f"step time {seconds_text(shown.step_time_s)}, "
        f"{shown.throughput_samples_per_s:.5g} samples/s, bubble {bubble:.0f} %, "
        f"layer times: {shown.layer_times}"
    )
    for device, used in shown.memory_bytes.items():
        limit = shown.memory_limit_bytes.get(device)
        of = f" of {bytes_text(limit)}" if limit else ""
        answer.print(f"  {device}: {bytes_text(used)}{of}")
    for reason in shown.reasons:
        answer.print(f"not feasible: {reason}")
