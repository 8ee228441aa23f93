"""What a failed run says beside its error: the log of the rank, what there is to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError, NotEnoughDevicesError
from heterps_runtime.fleet.agent import LostHostError
from heterps_runtime.process.rank_log import rank_log_path
from heterps_runtime.run.rank_errors import RankError
from heterps_runtime.state.checkpoint_files import find_checkpoint

# Where to begin again, of a run on several hosts.
ON_EVERY_HOST = "on every host"


@contextmanager
def failures_explained(
    run_directory: Path, checkpoint: CheckpointSettings | None
) -> Iterator[None]:
    """Names a failed rank's log; where devices are too few, what there is to go on from."""
    try:
        yield
    except NotEnoughDevicesError as error:
        raise NotEnoughDevicesError(f"{error}; {to_go_on_from(checkpoint)}") from error
    except RankError as error:
        log = rank_log_path(run_directory, error.rank)
        if not log.exists():
            raise
        raise type(error)(f"{error}; its log: {log}", error.rank) from error


@contextmanager
def later_start_explained(checkpoint: CheckpointSettings | None, where: str = "") -> Iterator[None]:
    """Names the newest checkpoint where a run fails that has saved one itself.

    Args:
        checkpoint: Where it saves.
        where: On which hosts to begin again.
    """
    before = _newest(checkpoint)
    try:
        yield
    except (NotEnoughDevicesError, LostHostError):
        # They say it already, whoever has saved.
        raise
    except HeterpsError as error:
        if _newest(checkpoint) not in (None, before):
            error.args = (f"{error}; {to_go_on_from(checkpoint, where)}",)
        raise


def _newest(checkpoint: CheckpointSettings | None) -> Path | None:
    if checkpoint is None:
        return None
    try:
        return find_checkpoint(Path(checkpoint.folder))
    except HeterpsError:
        return None


def to_go_on_from(checkpoint: CheckpointSettings | None, where: str = "") -> str:
    """The newest checkpoint, as the end of a sentence; `where`, on which hosts to begin again."""
    if checkpoint is None:
        return "nothing was saved (--checkpoint FOLDER saves)"
    newest = _newest(checkpoint)
    if newest is None:
        return "there is no checkpoint yet"
    return f"{' '.join(['the same command', where]).strip()} with --resume goes on from {newest}"
