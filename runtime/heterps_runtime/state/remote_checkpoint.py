"""Which checkpoints there are under a URL; each has the files of a local one.

`checkpoint.json` is uploaded last and removed first: a folder that has it is complete.
"""

from __future__ import annotations

import re

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import DOCUMENT_FILE, CheckpointDocument
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.stored_files import RemoteFiles

_STEP = re.compile(r"step-(\d+)")


def remote_checkpoints(storage: RemoteStorage) -> dict[int, str]:
    """Complete ones, the oldest first: step and name of the folder.

    Raises:
        RemoteError: The storage cannot be read.
    """
    steps = {name: step_of(name) for name in storage.names()}
    found = sorted((step, name) for name, step in steps.items() if step is not None)
    return {step: name for step, name in found if storage.has(f"{name}/{DOCUMENT_FILE}")}


def step_of(name: str) -> int | None:
    """Of a checkpoint's folder; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def newest_remote(url: str) -> str:
    """URL of the newest checkpoint in a folder of them, or the URL itself where it is one.

    Raises:
        HeterpsError: There is none, or the storage cannot be read.
    """
    storage = RemoteStorage(url)
    if storage.has(DOCUMENT_FILE):
        return storage.url
    names = list(remote_checkpoints(storage).values())
    if not names:
        raise HeterpsError(f"{url}: there is no complete checkpoint (step-NUMBER) to resume from")
    return storage.url_of(names[-1])


def newest_document(url: str) -> tuple[str, CheckpointDocument] | None:
    """URL of the newest checkpoint in a folder of them, and what it says; None for none.

    Raises:
        HeterpsError: The storage cannot be read, or the document is damaged.
    """
    storage = RemoteStorage(url)
    names = list(remote_checkpoints(storage).values())
    return (storage.url_of(names[-1]), remote_document(storage, names[-1])) if names else None


def remote_document(storage: RemoteStorage, folder: str = "") -> CheckpointDocument:
    """What a checkpoint says of itself.

    Raises:
        HeterpsError: It is missing or broken.
    """
    return CheckpointDocument.read(RemoteFiles(storage, folder))
