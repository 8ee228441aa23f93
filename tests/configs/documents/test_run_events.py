"""Events of runs: what a file may say, and what it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs import library
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.errors import DocumentError


def test_a_file_lists_events_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "events:\n- {step: 9, join: fast}\n- {time_s: 2.5, lose: fast}\n- {step: 4, stop: medium}\n"
        "- {step: 3, slow: fast->medium, factor: 1.5}\n"
    )
    events = library.load_run_events(path).events
    assert [event.kind for event in events] == ["join", "lose", "stop", "slow"]
    assert [event.subject for event in events] == ["fast", "fast", "medium", "fast->medium"]
    assert [event.link for event in events] == [None, None, None, ("fast", "medium")]


def test_a_slow_device_is_slow_from_its_step_on() -> None:
    event = RunEvent(step=4, slow="fast", factor=3)
    assert [event.slows("fast", step) for step in (3, 4, 9)] == [1, 3, 3]
    assert event.slows("medium", 4) == 1
    assert RunEvent(slow="fast", factor=3).slows("fast", 0) == 3


def test_a_slow_link_has_a_direction() -> None:
    event = RunEvent(step=4, slow="fast->medium", factor=3)
    assert event.slows(("fast", "medium"), 4) == 3
    assert event.slows(("medium", "fast"), 4) == 1
    assert event.slows("fast", 4) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{step: 3}", "events.0: needs exactly one of lose, stop, join, slow"),
        ("{step: 3, lose: a, join: a}", "events.0: needs exactly one of lose, stop, join, slow, "
                                        "got lose and join"),
        ("{lose: a}", "events.0: needs a step or a time_s, such as {step: 10, lose: a}"),
        ("{step: 3, time_s: 2, lose: a}", "events.0: needs a step or a time_s"),
        ("{step: 3, lose: a, factor: 2}", "events.0: only `slow` has a factor, and this is `lose`"),
        ("{step: 3, slow: a}", "events.0: `slow` needs a factor"),
        ("{step: 3, lose: a->b}", "events.0: `lose` takes a device, and a->b is a link"),
        ("{time_s: 3, slow: a, factor: 3}", "events.0: `slow` needs a factor and takes a step"),
        ("{step: 3, slow: a, factor: 0}", "events.0.factor: must be at least 0.000001"),
        ("{step: -1, lose: a}", "events.0.step: must be at least 0"),
        ("{step: 3, loose: a}", "events.0.loose: unknown field; did you mean 'lose'?"),
    ],
)  # fmt: skip
def test_a_bad_event_is_named_with_what_is_allowed(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"events:\n- {text}\n")
    with pytest.raises(DocumentError) as caught:
        library.load_run_events(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_shipped_example_slows_loses_and_brings_back() -> None:
    events = library.load_run_events("run-events").events
    assert [event.kind for event in events] == ["slow", "lose", "join"]
