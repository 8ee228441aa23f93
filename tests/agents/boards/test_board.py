"""TensorBoard of a run: written at once, ended by a full disk, which ends nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
from tensorboard.summary.writer import event_file_writer

from heterps_agents.boards.board import Board
from heterps_agents.boards.event_file import EVENT_FILES
from heterps_agents.boards.layout import Chart, Layout
from tests.configs.test_outputs import full_disk


def steps_of(folder: Path) -> list[int]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [entry.step for entry in events.Scalars("loss")]


def write(board: Board, steps: range) -> None:
    for step in steps:
        board.add_scalar("loss", 1.0, step)


def test_a_run_that_goes_on_replaces_the_steps_that_it_does_again(tmp_path: Path) -> None:
    with Board(tmp_path) as board:
        write(board, range(5))
    with Board(tmp_path, purge_step=3) as board:
        write(board, range(3, 6))
    assert steps_of(tmp_path) == list(range(6))
    with Board(tmp_path, replaces=True) as board:
        write(board, range(2))
    assert steps_of(tmp_path) == [0, 1]
    assert len(list(tmp_path.glob(EVENT_FILES))) == 1


def test_a_full_disk_ends_the_board_with_one_warning_and_nothing_else(tmp_path: Path) -> None:
    board = Board(tmp_path / "run")
    write(board, range(3))
    board.flush()
    with full_disk():
        with pytest.warns(UserWarning, match=r"TensorBoard: .* cannot be written") as warned:
            write(board, range(5000))
        write(board, range(1000))
        board.close()
    assert len(warned) == 1
    assert steps_of(tmp_path / "run")[:3] == [0, 1, 2]


def test_a_file_in_the_way_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written"):
        board = Board(tmp_path / "file")
    write(board, range(3))
    board.close()


def test_results_are_a_row_of_the_table_of_runs_without_what_is_unknown(tmp_path: Path) -> None:
    with Board(tmp_path) as board:
        board.add_results({"planner": "exact"}, {"a": 1.0, "b": None, "c": float("inf")}, 7)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["a"]
    assert [(entry.step, entry.value) for entry in events.Scalars("a")] == [(7, 1.0)]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_the_page_custom_scalars_shows_the_charts_of_a_layout(tmp_path: Path) -> None:
    """The plugin of TensorBoard itself reads what was written."""
    for number, tags in enumerate((("train/a",), ("train/b.*", "train/c"))):
        with Board(tmp_path / str(number)) as board:
            board.add_layout(Layout("train", (Chart(f"chart {number}", tags),)))
    reader = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = MultiplexerDataProvider(reader, str(tmp_path))
    plugin = CustomScalarsPlugin(TBContext(data_provider=provider, logdir=str(tmp_path)))
    (category,) = json.loads(plugin.layout_impl(RequestContext(), ""))["category"]
    assert category["title"] == "train"
    assert {chart["title"]: chart["multiline"]["tag"] for chart in category["chart"]} == {
        "chart 0": ["train/a"],
        "chart 1": ["train/b.*", "train/c"],
    }


def test_who_listens_to_tensorboards_writers_hears_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    # As Weights & Biases replaces it.
    class Listening(event_file_writer.EventFileWriter):  # type: ignore[misc]
        def __init__(self, logdir: str, *arguments: object) -> None:
            heard.append(logdir)
            super().__init__(logdir, *arguments)

    monkeypatch.setattr(event_file_writer, "EventFileWriter", Listening)
    with Board(tmp_path) as board:
        write(board, range(3))
    assert heard == [str(tmp_path)]
    assert len(list(tmp_path.glob(EVENT_FILES))) == 1
    assert steps_of(tmp_path) == [0, 1, 2]
