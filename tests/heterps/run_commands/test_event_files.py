"""Files of events: read together, and refused with file and field where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.planning.place import place
from heterps.run_commands.event_files import check_events, read_events
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import DocumentError
from tests.uneven_problems import MakeProblem


def test_events_of_several_files_come_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("events: [{step: 1, lose: d0}]\n")
    (tmp_path / "b.yaml").write_text("events: [{step: 2, join: d0}]\n")
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    events, spot = read_events(files, RunSettings())
    assert events == (RunEvent(step=1, lose="d0"), RunEvent(step=2, join="d0"))
    assert spot is None


def test_events_of_unknown_devices_are_told_with_file_and_field(
    make_problem: MakeProblem, tmp_path: Path
) -> None:
    problem, path = make_problem(), tmp_path / "events.yaml"
    path.write_text(
        "events: [{step: 1, lose: fast-0}, {step: 2, join: d9}, "
        "{step: 3, slow: fast-0->d8, factor: 2}]"
    )
    with pytest.raises(DocumentError) as caught:
        check_events(
            [str(path), "spot.csv"], problem, place(problem, "greedy").plan, 9, is_elastic=True
        )
    first, second = caught.value.problems
    assert caught.value.source == str(path)
    assert first.startswith("events.1.join: no device 'd9' in the cluster")
    assert second.startswith("events.2.slow: no device 'd8' in the cluster")


def test_events_that_cannot_be_are_told_with_file_and_field(
    make_problem: MakeProblem, tmp_path: Path
) -> None:
    problem, path = make_problem(), tmp_path / "events.yaml"
    path.write_text(
        "events: [{step: 1, lose: fast-0}, {slow: fast-0, factor: 2}, "
        "{slow: fast-0->fast-0, factor: 2}]"
    )
    plan = place(problem, "greedy").plan
    with pytest.raises(DocumentError) as caught:
        check_events([str(path)], problem, plan, 9, is_elastic=False)
    assert caught.value.source == str(path)
    lose, slow, link = caught.value.problems
    assert lose == "events.0.lose: needs --elastic"
    assert slow.startswith("events.1.slow: only an emulated device can be slowed down")
    assert link.startswith("events.2.slow: a link leads from one device to another")


def test_an_event_after_the_last_step_is_told_to_never_come(
    make_problem: MakeProblem, tmp_path: Path
) -> None:
    problem, path = make_problem(), tmp_path / "events.yaml"
    path.write_text("events: [{step: 3, lose: fast-0}, {step: 4, join: fast-0}]")
    plan = place(problem, "greedy").plan
    with pytest.warns(UserWarning, match="never comes") as told:
        check_events([str(path)], problem, plan, 3, is_elastic=True)
    assert [str(each.message) for each in told] == [
        f"{path}: events.1.step: 4, but the run ends after 3 steps: the event never comes"
    ]
