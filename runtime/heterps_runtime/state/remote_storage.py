"""Files under a URL: whatever fsspec knows (s3://, gs://, file://, memory://), with retries.

Every kind of storage raises errors of its own; here all of them are `RemoteError`. Credentials and
endpoints are those of the environment, as the library of each kind reads them. For trials, a URL
may end with `?bytes_per_s=NUMBER`: what one process reads or writes there is held under that rate.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

# Waits between tries of one request.
RETRY_S = (0.2, 1.0)
# Files are sent in parts of this size; fsspec gives object stores one upload of several parts.
_PART_BYTES = 8 * 2**20
_LIMIT = "?bytes_per_s="
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[^:]+)*://|[A-Za-z][A-Za-z0-9+.-]*::")


class RemoteError(HeterpsError):
    """A remote storage cannot be reached, or refuses; the message names the URL and the reason."""


class MissingFileError(RemoteError):
    """There is no such file."""


def is_url(text: str) -> bool:
    """Whether a checkpoint's name is a URL and no path."""
    return _URL.match(text) is not None


class RemoteStorage:
    """A folder of a remote storage.

    Args:
        url: Of the folder.

    Attributes:
        url: The same.

    Raises:
        RemoteError: Nobody knows this kind of URL, or the library that does is not installed.
    """

    def __init__(self, url: str) -> None:
        # Half a second to import.
        import fsspec

        base, self._option, limit = url.partition(_LIMIT)
        self._base, self._option = base.rstrip("/"), self._option + limit
        self._rate = _rate_of(url, limit)
        try:
            found: tuple[AbstractFileSystem, str] = fsspec.core.url_to_fs(self._base)
        except Exception as error:
            raise RemoteError(f"{url}: {_reason(error)}") from error
        self._files, self._root = found
        self.url = self.url_of("")

    def url_of(self, name: str) -> str:
        """The whole URL of a file or folder."""
        return (f"{self._base}/{name}" if name else self._base) + self._option

    def names(self, folder: str = "") -> list[str]:
        """What lies in a folder; nothing where there is none."""
        path = self._path(folder)

        def listed() -> list[str]:
            self._files.invalidate_cache()
            return [str(entry) for entry in self._files.ls(path, detail=False)]

        try:
            found = self._tried(listed, folder)
        except MissingFileError:
            return []
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in found)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._tried(lambda: bool(self._files.exists(self._path(name))), name)

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            RemoteError: There is none, or the storage does not say.
        """
        size = self._tried(lambda: self._files.size(self._path(name)), name)
        if not isinstance(size, int):
            raise RemoteError(f"{self.url_of(name)}: the storage does not say how large it is")
        return size

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Some bytes of a file, or all.

        Raises:
            RemoteError: It cannot be read.
        """
        content = self._tried(
            lambda: bytes(self._files.cat_file(self._path(name), start=start, end=stop)), name
        )
        self._rate.spend(len(content))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file.

        Raises:
            RemoteError: It cannot be written.
        """
        self._tried(lambda: self._put(name, content), name)

    def upload(self, path: Path, name: str) -> None:
        """Copies a local file.

        Raises:
            RemoteError: It cannot be written.
            OSError: The local file cannot be read.
        """
        self._tried(lambda: self._copy(path, name), name)

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all that is in it; nothing where there is none."""
        try:
            self._tried(lambda: self._files.rm(self._path(name), recursive=True), name)
        except MissingFileError:
            return

    def _put(self, name: str, content: bytes) -> None:
        self._make_parent(name)
        self._files.pipe_file(self._path(name), content)
        self._rate.spend(len(content))

    def _copy(self, path: Path, name: str) -> None:
        self._make_parent(name)
        with path.open("rb") as source, self._files.open(self._path(name), "wb") as target:
            while part := source.read(_PART_BYTES):
                target.write(part)
                self._rate.spend(len(part))

    def _make_parent(self, name: str) -> None:
        self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _tried(self, action: Callable[[], T], name: str) -> T:
        """The result of a request; it is made again where it fails, a few times."""
        for wait_s in (*RETRY_S, None):
            try:
                return action()
            except FileNotFoundError as error:
                raise MissingFileError(f"{self.url_of(name)}: does not exist") from error
            except Exception as error:
                if wait_s is None:
                    raise RemoteError(f"{self.url_of(name)}: {_reason(error)}") from error
                time.sleep(wait_s)
        raise AssertionError


class _Rate:
    """Makes a process wait so that it stays under a rate."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s, self._free_s = bytes_per_s, 0.0
        self._lock = threading.Lock()

    def spend(self, num_bytes: int) -> None:
        """Called after each part, by any thread."""
        if self._bytes_per_s is not None:
            with self._lock:
                now_s = time.monotonic()
                self._free_s = max(self._free_s, now_s) + num_bytes / self._bytes_per_s
                wait_s = self._free_s - now_s
            time.sleep(wait_s)


# By limit: all objects of a process share one rate.
_RATES: dict[str, _Rate] = {}


def _rate_of(url: str, limit: str) -> _Rate:
    """What holds a URL's traffic under its limit.

    Raises:
        RemoteError: The limit is no number above 0.
    """
    if not limit:
        return _Rate(None)
    try:
        bytes_per_s = float(limit)
    except ValueError:
        bytes_per_s = 0.0
    if not 0 < bytes_per_s < math.inf:
        raise RemoteError(f"{url}: bytes_per_s must be a number above 0, not {limit!r}")
    return _RATES.setdefault(limit, _Rate(bytes_per_s))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
