"""What numbers look like for people."""

from __future__ import annotations

import io

from rich.table import Table

from heterps.reports.console import PlainConsole, interval_text


def test_an_interval_names_the_types_that_were_never_measured() -> None:
    assert interval_text(0.912, 1.61, ["V100-16G"]) == (
        " (910 ms - 1.6 s: V100-16G was never measured)"
    )
    assert interval_text(1.04, 1.61, ["V100-16G"]) == " (1-1.6 s: V100-16G was never measured)"
    assert interval_text(0.01, 0.034, ["T4", "L4"]) == " (10-34 ms: T4, L4 were never measured)"


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
