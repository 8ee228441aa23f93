"""What a failed run says beside its error."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.run_commands.failures import later_start_explained
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import DOCUMENT_FILE


def _saved(folder: Path, step: int) -> Path:
    checkpoint = folder / f"step-{step:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / DOCUMENT_FILE).touch()
    return checkpoint


def _failing(settings: CheckpointSettings | None, *, saves: int | None = None) -> None:
    """A run that saves behind a step, or does not, and fails."""
    with later_start_explained(settings):
        if settings is not None and saves is not None:
            _saved(Path(settings.folder), saves)
        raise HeterpsError("rank 1 failed")


def test_a_run_that_fails_behind_its_own_checkpoint_names_it(tmp_path: Path) -> None:
    _saved(tmp_path, 2)
    expected = rf"^rank 1 failed; the same command with --resume .* {tmp_path}/step-000004$"
    with pytest.raises(HeterpsError, match=expected):
        _failing(CheckpointSettings(folder=str(tmp_path)), saves=4)


def test_a_run_that_saved_nothing_itself_is_not_sent_back_to_where_it_began(tmp_path: Path) -> None:
    _saved(tmp_path, 2)
    for settings in (CheckpointSettings(folder=str(tmp_path)), None):
        with pytest.raises(HeterpsError, match=r"^rank 1 failed$"):
            _failing(settings)
