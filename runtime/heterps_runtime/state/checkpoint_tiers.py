"""Where checkpoints are kept, nearest first: memory, the local folder, a remote URL.

- **Memory**: the copies that a save makes anyway stay until a newer checkpoint is complete. Each
  rank has those of what it saves.
- **Local folder**: complete checkpoints (`checkpoint_files`).
- **Remote**: copies of complete checkpoints under a URL, uploaded by a thread (`remote_upload`).

One object for the whole life of a process, over all generations of its run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import CheckpointDocument, complete_checkpoints
from heterps_runtime.state.checkpoint_storage import SavedTensors, StoredTensors
from heterps_runtime.state.layout import HeldState, split_checkpoint_key, state_of_keys
from heterps_runtime.state.remote_checkpoint import remote_checkpoints, remote_document
from heterps_runtime.state.remote_storage import RemoteStorage, is_url
from heterps_runtime.state.remote_upload import Uploader
from heterps_runtime.state.stored_files import LocalFiles, RemoteFiles, StoredFiles
from heterps_runtime.tensor_parallel.slices import TensorSlice

Tier = Literal["local", "remote"]


class SavedStep(NamedTuple):
    """One complete checkpoint.

    Attributes:
        place: Its path or URL, for messages.
        open: Reads its table of contents; raises HeterpsError where that is damaged.
        document: Reads what it says of itself; the same.
    """

    step: int
    tier: Tier
    place: str
    open: Callable[[], SavedTensors]
    document: Callable[[], CheckpointDocument]


class CheckpointTiers:
    """What one rank can read checkpoints from, and what keeps them.

    Args:
        settings: Of the run; None where it saves nothing.
        resume_from: The checkpoint (path or URL) that the run started from.
        keeps_copies: Whether the memory is one of the places.
    """

    def __init__(
        self,
        settings: CheckpointSettings | None,
        resume_from: str | None = None,
        *,
        keeps_copies: bool = True,
    ) -> None:
        self._settings, self._resume_from = settings, resume_from
        self._keeps_copies = keeps_copies
        self._snapshots: dict[int, HeldState] = {}
        self._uploader: Uploader | None = None

    # -- keeping

    def hold(
        self, step: int, tensors: Mapping[str, Tensor], pieces: Mapping[str, TensorSlice]
    ) -> None:
        """Keeps the copies of a save that begins; nobody changes them.

        Args:
            step: Steps that are done.
            tensors: By key in the checkpoint.
            pieces: The places of those that are pieces of larger ones.
        """
        if self._keeps_copies:
            places: dict[str, dict[str, TensorSlice]] = {}
            for text, piece in pieces.items():
                name, key = split_checkpoint_key(text)
                places.setdefault(name, {})[key] = piece
            self._snapshots[step] = HeldState(state_of_keys(tensors), places)

    def saved(self, step: int, path: Path | None) -> None:
        """The checkpoint is complete: older copies go, and the remote gets it.

        Args:
            step: Of the checkpoint.
            path: On the first rank, which uploads.
        """
        self._snapshots = {s: state for s, state in self._snapshots.items() if s >= step}
        if path is not None:
            self._upload(path)

    def catch_up(self) -> None:
        """Uploads the newest local checkpoint, if whoever saved it could not.

        Only the first rank of a generation calls it.
        """
        if self._settings is not None:
            for path in complete_checkpoints(Path(self._settings.folder))[-1:]:
                self._upload(path)

    def failed(self, step: int) -> None:
        """The checkpoint could not be written: nobody will go back to it."""
        self._snapshots.pop(step, None)

    @property
    def needed(self) -> tuple[str, ...]:
        """Checkpoints of the local folder that must stay: they are being uploaded."""
        return () if self._uploader is None else self._uploader.paths

    def remarks(self) -> list[str]:
        """What became of uploads since it was asked last."""
        return [] if self._uploader is None else self._uploader.remarks()

    def close(self) -> list[str]:
        """Waits for the last upload, for a limited time; returns what there is to say."""
        uploader, self._uploader = self._uploader, None
        return [] if uploader is None else uploader.close()

    def _upload(self, path: Path) -> None:
        if self._settings is not None and self._settings.remote is not None:
            if self._uploader is None:
                self._uploader = Uploader(self._storage, self._settings.keep, self._resume_from)
            self._uploader.submit(path)

    # -- reading

    @property
    def snapshots(self) -> Mapping[int, HeldState]:
        """The copies in memory, by step."""
        return self._snapshots

    def saved_steps(self) -> tuple[list[SavedStep], list[str]]:
        """Complete checkpoints, the newest first and of one step the local one; and remarks."""
        remarks: list[str] = []
        found = self._local_steps(remarks)
        try:
            found += self._remote_steps()
        except HeterpsError as error:
            remarks.append(str(error))
        found.sort(key=lambda saved: (-saved.step, saved.tier != "local"))
        return found, remarks

    def document(self, step: int) -> CheckpointDocument | None:
        """What a complete checkpoint of a step says of itself; None where none can be read."""
        for saved in self.saved_steps()[0]:
            if saved.step == step:
                with contextlib.suppress(HeterpsError):
                    return saved.document()
        return None

    def _local_steps(self, remarks: list[str]) -> list[SavedStep]:
        paths = complete_checkpoints(Path(self._settings.folder)) if self._settings else []
        if self._resume_from is not None and not is_url(self._resume_from):
            paths.append(Path(self._resume_from))
        found = []
        for path in dict.fromkeys(paths):
            try:
                step = CheckpointDocument.of(path).step
            except HeterpsError as error:
                if path.exists():  # else removed meanwhile
                    remarks.append(str(error))
                continue
            found.append(_saved_step(step, "local", LocalFiles(path)))
        return found

    def _remote_steps(self) -> list[SavedStep]:
        found: list[SavedStep] = []
        if self._settings is not None and self._settings.remote is not None:
            for step, name in remote_checkpoints(self._storage).items():
                found.append(_saved_step(step, "remote", RemoteFiles(self._storage, name)))
        origin = self._resume_from
        if origin and is_url(origin) and origin not in [saved.place for saved in found]:
            storage = RemoteStorage(origin)
            step = remote_document(storage).step
            found.append(_saved_step(step, "remote", RemoteFiles(storage)))
        return found

    @cached_property
    def _storage(self) -> RemoteStorage:
        assert self._settings is not None
        assert self._settings.remote is not None
        return RemoteStorage(self._settings.remote)


def _saved_step(step: int, tier: Tier, files: StoredFiles) -> SavedStep:
    return SavedStep(
        step,
        tier,
        files.place,
        partial(StoredTensors, files),
        partial(CheckpointDocument.read, files),
    )
