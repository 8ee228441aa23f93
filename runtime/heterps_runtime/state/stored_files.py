"""The files of one checkpoint, in a folder or under a URL, by plain names of their own.

A name never leaves the checkpoint: whoever reads tables of strangers asks for names of a known form
only, and of a folder only regular files are opened, never links, pipes or devices.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.remote_storage import RemoteStorage

# What lies side by side in a remote file is read together, up to this size.
_REQUEST_BYTES = 32 * 2**20


class StoredFiles(Protocol):
    """The files of a checkpoint, wherever it is."""

    @property
    def place(self) -> str:
        """Path or URL of the checkpoint."""
        ...

    @property
    def request_bytes(self) -> int:
        """Up to how many neighbouring bytes are better read together."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def names(self) -> list[str]:
        """Names of all files."""
        ...

    def size(self, name: str) -> int:
        """Bytes of a file."""
        ...

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Some bytes of a file; all of them, or it is an error."""
        ...

    def fill(self, name: str, start: int, parts: Sequence[memoryview]) -> None:
        """Reads bytes that follow one another into memory that is there."""
        ...

    def damaged(self, why: str) -> HeterpsError:
        """What to raise where the checkpoint cannot be read; `why` names the file."""
        ...


class LocalFiles:
    """The files of a folder.

    Args:
        folder: A complete checkpoint.
    """

    # One tensor after the other, each into its own memory.
    request_bytes = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        """See `StoredFiles`."""
        return str(self._folder)

    def has(self, name: str) -> bool:
        """See `StoredFiles`."""
        return os.path.lexists(self._folder / name)

    def names(self) -> list[str]:
        """See `StoredFiles`."""
        with self._errors(""):
            return sorted(os.listdir(self._folder))

    def size(self, name: str) -> int:
        """See `StoredFiles`."""
        with self._opened(name) as file:
            return os.fstat(file).st_size

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See `StoredFiles`."""
        with self._opened(name) as file:
            # A table may ask for any number of bytes: no memory for more than there are.
            if stop > os.fstat(file).st_size:
                raise self.damaged(f"{name} is too short")
            content = bytearray(stop - start)
            self._fill(file, name, start, memoryview(content))
            return bytes(content)

    def fill(self, name: str, start: int, parts: Sequence[memoryview]) -> None:
        """See `StoredFiles`."""
        with self._opened(name) as file:
            for part in parts:
                self._fill(file, name, start, part)
                start += len(part)

    def damaged(self, why: str) -> HeterpsError:
        """See `StoredFiles`."""
        return HeterpsError(
            f"{self.place}: the checkpoint is damaged ({why}); remove this folder to go on from "
            "the one before"
        )

    def _fill(self, file: int, name: str, start: int, part: memoryview) -> None:
        while len(part):
            count = os.preadv(file, [part], start)
            if not count:
                raise self.damaged(f"{name} is too short")
            part, start = part[count:], start + count

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        assert Path(name).name == name, name
        with self._errors(name):
            # A pipe would be waited for, without O_NONBLOCK.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self._folder / name, flags)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise self.damaged(f"{name} is no regular file")
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"{name}: " if name else ""
            raise self.damaged(f"{where}{error.strerror}") from None


class RemoteFiles:
    """The files under a URL.

    Args:
        storage: Where they are.
        folder: Of the checkpoint in it; empty where the storage's URL is that of the checkpoint.
    """

    request_bytes = _REQUEST_BYTES

    def __init__(self, storage: RemoteStorage, folder: str = "") -> None:
        self._storage, self._folder = storage, folder

    @property
    def place(self) -> str:
        """See `StoredFiles`."""
        return self._storage.url_of(self._folder)

    def has(self, name: str) -> bool:
        """See `StoredFiles`."""
        return self._storage.has(self._path(name))

    def names(self) -> list[str]:
        """See `StoredFiles`."""
        return self._storage.names(self._folder)

    def size(self, name: str) -> int:
        """See `StoredFiles`."""
        return self._storage.size(self._path(name))

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See `StoredFiles`."""
        content = self._storage.read(self._path(name), start, stop) if stop > start else b""
        if len(content) != stop - start:
            raise self.damaged(f"{name} is too short")
        return content

    def fill(self, name: str, start: int, parts: Sequence[memoryview]) -> None:
        """See `StoredFiles`."""
        content = memoryview(self.read(name, start, start + sum(map(len, parts))))
        for part in parts:
            part[:] = content[: len(part)]
            content = content[len(part) :]

    def damaged(self, why: str) -> HeterpsError:
        """See `StoredFiles`."""
        return HeterpsError(f"{self.place}: the checkpoint is damaged ({why})")

    def _path(self, name: str) -> str:
        assert Path(name).name == name, name
        return f"{self._folder}/{name}" if self._folder else name
