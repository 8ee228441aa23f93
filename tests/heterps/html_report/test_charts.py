"""Charts: ticks where values are, and no line that cannot be seen."""

from __future__ import annotations

import re

from heterps.html_report.charts import LEFT, WIDTH, Line, chart


def test_steps_are_counted_in_whole_numbers_where_their_ticks_say() -> None:
    picture = str(chart([Line("loss", range(40, 60), [1.0] * 20)], "step", "{:.1f}".format))
    ticks = re.findall(r'<text[^>]*x="([\d.]+)"[^>]*>(\d+)</text>', picture)
    assert [label for _, label in ticks] == ["40", "45", "50", "54", "59"]
    for place, label in ticks:
        expected = LEFT + (int(label) - 40) / 19 * (WIDTH - 8 - LEFT)
        assert abs(float(place) - expected) < 0.01


def test_few_steps_have_one_tick_each() -> None:
    picture = str(chart([Line("loss", [1, 2, 3], [3.0, 2, 1])], "step", "{:.1f}".format))
    ticks = re.findall(r'<text[^>]*x="([\d.]+)"[^>]*>(\d+)</text>', picture)
    assert [label for _, label in ticks] == ["1", "2", "3"]


def test_a_line_of_one_point_is_a_dot() -> None:
    lines = [Line("training", range(5), [3.0, 2, 2, 1, 1]), Line("evaluation", [4], [1.5])]
    picture = str(chart(lines, "step", "{:.1f}".format))
    assert picture.count("<circle") == 1
    assert picture.count('class="line"') == 1


def test_a_line_too_short_to_be_seen_is_a_dot() -> None:
    lines = [Line("search", [0.0, 1.0], [3.0, 1]), Line("rule", [0.5, 0.5001], [2.0, 2], True)]
    picture = str(chart(lines, "time", "{:.1f}".format))
    assert picture.count("<circle") == 1
    assert picture.count('class="line"') == 1
