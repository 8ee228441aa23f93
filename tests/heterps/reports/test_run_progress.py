"""What a run shows while it goes on."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from heterps.reports.run_progress import RunProgress, shown_progress, step_text
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.step_figures import StepFigures


def _step(step: int, num_steps: int, has_memory: bool = True) -> StepProgress:
    measured = StepFigures(
        step_time_s=0.5,
        bubble_shares={"fast": 0.1, "slow": 0.5},
        memory_bytes={"fast": 30, "slow": 20} if has_memory else {},
    )
    return StepProgress(
        step=step,
        num_steps=num_steps,
        loss=2.5,
        generation=0,
        measured=measured,
        predicted=StepFigures(0.4),
        memory_limit_bytes={"fast": 100, "slow": 40},
        unlearned=StepFigures(0.4),
    )


def _clock(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


def _shown(num_steps: int, step_s: float, *, terminal: bool = False, quiet: bool = False) -> str:
    out, clock = io.StringIO(), _clock(step_s)
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    progress = RunProgress(
        "run exact",
        num_steps,
        8,
        is_quiet=quiet,
        console=console,
        clock=lambda: next(clock),
    )
    with progress:
        for step in range(num_steps):
            progress(_step(step, num_steps))
    return out.getvalue()


def test_figures_name_the_device_that_waits_most_and_the_fullest_one() -> None:
    assert step_text(_step(0, 9), 8) == (
        "loss 2.5000  16 samples/s  bubble 30 % (slow 50 %)  memory 50 % of slow"
    )
    assert "memory" not in step_text(_step(0, 9, has_memory=False), 8)


def test_without_a_terminal_there_is_a_line_at_every_tenth_with_the_time_left() -> None:
    lines = _shown(200, 1.0).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("run exact: step 20/200  loss 2.5000")
    assert lines[0].endswith("  0:03:00 left")
    assert lines[-1].startswith("run exact: step 200/200")
    assert "left" not in lines[-1]


def test_slow_runs_say_more_often_that_they_are_alive() -> None:
    assert len(_shown(100, 40.0).splitlines()) == 50


def test_quiet_runs_show_nothing_without_a_terminal() -> None:
    assert _shown(20, 1.0, quiet=True) == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_gets_a_bar_and_the_figures_under_it(quiet: bool) -> None:
    shown = _shown(5, 1.0, terminal=True, quiet=quiet)
    assert "5/5" in shown
    assert "bubble 30 % (slow 50 %)" in shown


def test_a_measurement_shows_what_it_does_and_how_much_is_done() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with shown_progress("links of 2 processes", console=console) as show:
        show(1, 2, "messages from [bold] to 1")
    assert "links of 2 processes: messages from [bold] to 1" in out.getvalue()
    assert "1/2" in out.getvalue()
