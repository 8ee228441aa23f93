"""What numbers look like for people."""

from __future__ import annotations

import io

from rich.table import Table

from heterps.commands.score import scores_table
from heterps.commands.train import CHAINS, shown
from heterps.reports.console import PlainConsole, SparseLines, interval_text
from heterps.run_commands.demo import Speed


def test_an_interval_names_the_types_that_were_never_measured() -> None:
    assert interval_text(0.912, 1.61, ["V100-16G"]) == (
        " (910 ms - 1.6 s: V100-16G was not measured here)"
    )
    assert interval_text(1.04, 1.61, ["V100-16G"]) == " (1-1.6 s: V100-16G was not measured here)"
    assert interval_text(0.01, 0.034, ["T4", "L4"]) == " (10-34 ms: T4, L4 were not measured here)"


def test_measured_layer_times_need_no_interval() -> None:
    assert interval_text(None, None, []) == ""


def test_texts_out_of_files_neither_move_the_cursor_nor_are_markup() -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, color_system=None, width=80)
    table = Table(title="a\x1b[2J title")
    table.add_row("[red]host[/red] \x9b31m", "two\nlines\u2028")
    console.print(table)
    console.print("by [/] random\x1b]0;title\x07")
    shown = out.getvalue()
    assert not set(shown) & set("\x1b\x9b\x07\u2028")
    for text in (
        "a\\x1b[2J title",
        "[red]host[/red] \\x9b31m",
        "lines\\u2028",
        "by [/] random\\x1b",
    ):
        assert text in shown


def test_shares_of_training_scores_and_demo_have_a_space_and_are_never_minus_nothing() -> None:
    result = shown(CHAINS.now + CHAINS.score, steps=1200, reward=0.5, score=-1e-6)
    assert result == "1,200 steps  reward 0.50  median gap 0.00 %"
    cells = scores_table({"greedy_median": 0.0125, "greedy_p95": float("inf")}, "").columns
    assert [list(column.cells) for column in cells] == [["greedy"], ["1.25 %"], ["-"]]
    assert Speed(1.0, 1.0001).error_text == "+0.0 %"
    assert Speed.of(1.0, 1.5).error_text == "+50.0 %"


def test_a_line_is_due_at_every_tenth_and_after_a_minute() -> None:
    lines = SparseLines(start_s=0.0)
    calls = [(0, 1.0), (1, 2.0), (1, 3.0), (1, 63.0), (2, 64.0)]
    assert [lines.is_due(*call) for call in calls] == [False, True, False, True, True]
