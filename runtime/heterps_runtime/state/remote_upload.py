"""Complete checkpoints are copied to a remote storage by a thread; no step waits for it.

Where uploads take longer than training takes between two checkpoints, those between are left out.
What fails is a remark: the run goes on, and the local checkpoints stay as they are.
"""

from __future__ import annotations

import threading
from pathlib import Path

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import DOCUMENT_FILE
from heterps_runtime.state.remote_checkpoint import remote_checkpoints, step_of
from heterps_runtime.state.remote_storage import RemoteStorage

# How long the end of a run waits for its last upload.
CLOSE_S = 600.0


class Uploader:
    """Copies checkpoints, one at a time.

    Args:
        storage: Where to.
        keep: How many of the newest stay there.
        origin: The checkpoint that the run started from, which stays besides: a reference run
            starts from it when this one has ended.
    """

    def __init__(self, storage: RemoteStorage, keep: int, origin: str | None = None) -> None:
        self._storage, self._keep, self._origin = storage, keep, origin
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._under_way: Path | None = None
        self._is_closed = self._has_left_out = False
        self._remarks: list[str] = []
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def submit(self, path: Path) -> None:
        """Has a complete checkpoint copied; one that still waits is left out."""
        with self._changed:
            if self._waiting is not None and not self._has_left_out:
                self._has_left_out = True
                self._remarks.append(
                    f"{self._storage.url}: uploads take longer than the time between two "
                    f"checkpoints; some are left out, {self._waiting.name} first"
                )
            self._waiting = path
            self._changed.notify_all()

    @property
    def paths(self) -> tuple[str, ...]:
        """What is being copied, or waits for it."""
        with self._changed:
            return tuple(str(path) for path in (self._waiting, self._under_way) if path is not None)

    def remarks(self) -> list[str]:
        """What there is to say since it was asked last."""
        with self._changed:
            found, self._remarks = self._remarks, []
        return found

    def close(self, timeout_s: float = CLOSE_S) -> list[str]:
        """Waits until all is copied, but not longer than the limit; returns the last remarks."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            left = ", ".join(Path(path).name for path in self.paths)
            return [
                *self.remarks(),
                f"{self._storage.url}: {left} is not there after {timeout_s:g} s",
            ]
        return self.remarks()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._under_way = None
                self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
                if self._waiting is None:
                    return
                self._under_way, self._waiting = self._waiting, None
            path = self._under_way
            try:
                upload_checkpoint(self._storage, path)
                prune(self._storage, self._keep, self._origin)
            except (HeterpsError, OSError) as error:
                with self._changed:
                    self._remarks.append(
                        f"{path.name} could not be copied to the remote storage; the run goes on "
                        f"({error})"
                    )


def upload_checkpoint(storage: RemoteStorage, checkpoint: Path) -> None:
    """Copies all files of a complete checkpoint; it becomes complete with the last one.

    Raises:
        RemoteError: The storage cannot be written to.
        OSError: A local file cannot be read.
    """
    name = checkpoint.name
    marker = f"{name}/{DOCUMENT_FILE}"
    document = (checkpoint / DOCUMENT_FILE).read_bytes()
    if storage.has(marker):
        if storage.read(marker) == document:
            return
        # Of the same step under another plan: a run that went back came by again.
        storage.remove(marker)
    for path in sorted(checkpoint.iterdir()):
        if path.name != DOCUMENT_FILE:
            storage.upload(path, f"{name}/{path.name}")
    storage.write(marker, document)


def prune(storage: RemoteStorage, keep: int, needed: str | None = None) -> None:
    """Removes what is older than the newest `keep` complete checkpoints, unfinished ones too.

    Args:
        storage: A folder of checkpoints.
        keep: How many stay.
        needed: URL of another one that stays.

    Raises:
        RemoteError: The storage refuses.
    """
    complete = list(remote_checkpoints(storage))
    if not complete:
        return
    oldest = complete[-keep:][0]
    for name in storage.names():
        step = step_of(name)
        if step is not None and step < oldest and storage.url_of(name) != needed:
            storage.remove(f"{name}/{DOCUMENT_FILE}")
            storage.remove(name)
