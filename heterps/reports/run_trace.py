"""`heterps run --trace`: a measured step beside the predicted one, as trace and as figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from heterps.reports.chrome_trace import write_chrome_trace
from heterps.reports.figures import save_figure
from heterps.reports.ways import recompute_share
from heterps_configs.documents.estimate import Estimate
from heterps_configs.outputs import FIGURE_SUFFIXES
from heterps_envs.problem import Problem
from heterps_runtime.results.result import RunResult

# Of the file that a user names; the other one lies beside it.
TRACE_SUFFIXES = (".json", *FIGURE_SUFFIXES)


class TraceFiles(NamedTuple):
    """Where a run's timelines are written."""

    trace: Path
    figure: Path

    @classmethod
    def of(cls, path: Path) -> TraceFiles:
        """Both files, of which a user has named one."""
        if path.suffix == ".json":
            return cls(path, path.with_suffix(".png"))
        return cls(path.with_suffix(".json"), path)


def measured_estimate(result: RunResult) -> Estimate:
    """The last step of a run, in the shape of an estimate."""
    assert result.final_estimate is not None
    return result.final_estimate.changed(
        step_time_s=result.step_times_s[-1],
        bubble_share=result.bubble_share,
        timeline=result.timeline,
        memory_curves=result.memory_curves,
        memory_bytes={
            entry.device: entry.memory.peak_bytes for entry in result.devices if entry.memory
        },
    )


def named_for_figure(both: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Says that one is one step only: a run's step time is a median."""
    return {"predicted": both["predicted"], "last step as measured": both["measured"]}


def write_timelines(result: RunResult, problem: Problem, files: TraceFiles) -> None:
    """Writes the last step of a run beside what was predicted of it.

    Raises:
        HeterpsError: A file cannot be written.
    """
    from heterps.reports.figures import compared_timelines_figure

    assert result.final_plan is not None
    assert result.final_estimate is not None
    plan, predicted = result.final_plan, result.final_estimate
    both = {"predicted": predicted, "measured": measured_estimate(result)}
    write_chrome_trace(both, files.trace, problem, plan)
    title = f"{plan.model} on {plan.cluster}, {plan.job.schedule}"
    figure = compared_timelines_figure(
        named_for_figure(both), title, recompute_share(problem, plan)
    )
    save_figure(figure, files.figure)
