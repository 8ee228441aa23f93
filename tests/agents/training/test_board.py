"""TensorBoard of a run: written at once, ended by a full disk, which ends nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.training.board import EVENT_FILES, Board
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
