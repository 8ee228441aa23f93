"""Where a command writes: tried before its work, in one way for all commands.

Files go into folders that exist; folders that are asked for are made, with those above them. What
is no regular file (a device, a pipe, a socket, a folder) is never replaced.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote

from heterps_configs.errors import HeterpsError

DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
LOCK_FILE = ".heterps.lock"
# A file is tried with so many bytes: one block of the usual file systems.
_TRIED_BYTES = 4096
# Of a file name that a document's name becomes; file systems take 255 bytes.
_LONGEST_NAME = 120


# Path (None: not asked for) and allowed endings (none: all) by the option that names it.
Files = dict[str, tuple[Path | None, tuple[str, ...]]]
# What a command reads by the option that names it: a file, or the name of something that is none.
Read = Mapping[str, str | os.PathLike[str] | None]


def try_outputs(
    files: Files | None = None,
    folders: Mapping[str, Path | None] | None = None,
    read: Read | None = None,
) -> None:
    """Refuses outputs that cannot be written, before the work that they would hold.

    Args:
        files: See `Files`.
        folders: Paths by option.
        read: What the command reads; no output may take its place.

    Raises:
        HeterpsError: Another ending, a missing folder, something in the way, no right to write
            there, a full disk, or one file for two options.
    """
    seen = {Path(file).resolve(): option for option, file in (read or {}).items() if _is_file(file)}
    for option, (path, suffixes) in (files or {}).items():
        if path is None:
            continue
        if suffixes and path.suffix not in suffixes:
            raise HeterpsError(f"{option} {path}: allowed endings: {', '.join(suffixes)}")
        why_not = _why_no_file(path)
        if why_not is not None:
            raise HeterpsError(f"{option} {path}: cannot be written: {why_not}")
        first = seen.setdefault(path.resolve(), option)
        if first != option:
            raise HeterpsError(f"{option} {path}: {first} names the same file")
    for option, folder in (folders or {}).items():
        why_not = None if folder is None else _why_no_folder(folder)
        if why_not is not None:
            raise HeterpsError(f"{option} {folder}: cannot be written: {why_not}")


def _is_file(name: str | os.PathLike[str] | None) -> TypeGuard[str | os.PathLike[str]]:
    try:
        return name is not None and Path(name).is_file()
    except (OSError, ValueError):  # no name of a file at all
        return False


def check_replaceable(path: Path) -> None:
    """Lets a new file and a regular file pass.

    Raises:
        OSError: Something else is there, with a reason as `strerror`; or the path cannot be looked
            at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is no regular file, but a device, a pipe or a socket")


def file_name_of(name: str) -> str:
    """A document's name as the name of one file or folder.

    Letters, digits, blanks and `._-()+@=,` stay as they are, but for dots in front; all else is
    written as `%` and hexadecimal digits. A long name is cut, and ends in a digest of the whole.
    """
    safe = quote(name, safe=" ()+@=,", errors="surrogatepass")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
        safe = f"{safe[: _LONGEST_NAME - 13]}-{digest}"
    return safe or "%"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds a folder for this process: two runs would overwrite each other's files.

    The lock ends with the process, however that ends. Where the file system has no locks, a warning
    says so.

    Args:
        folder: Made if it does not exist.

    Raises:
        HeterpsError: Another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise HeterpsError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def check_unused(folder: Path) -> None:
    """Lets a folder pass that no process holds by `folder_lock`; makes nothing.

    Raises:
        HeterpsError: Another process holds it.
    """
    if (folder / LOCK_FILE).is_file():
        with folder_lock(folder):
            pass


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        raise HeterpsError(
            f"{folder}: {holder} uses this folder now; wait for its end, or name another folder"
        ) from None
    except OSError as error:
        warnings.warn(f"{folder}: cannot be locked ({error.strerror})", stacklevel=4)
        return
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())


def _why_no_file(path: Path) -> str | None:
    try:
        target = path.resolve()
        check_replaceable(target)
        if not target.parent.exists():
            return f"there is no folder {path.parent}"
        _try_to_write(target.parent)
    except NotADirectoryError:
        return f"{path.parent} is no folder"
    except (OSError, RuntimeError) as error:
        return _reason(error)
    return None


def _why_no_folder(path: Path) -> str | None:
    """Tries the nearest folder that exists: the others are made when they are needed."""
    try:
        folder = path.resolve()
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is no folder"
        _try_to_write(folder)
    except NotADirectoryError as error:
        return f"{error.filename or path} is no folder"
    except (OSError, RuntimeError) as error:
        return _reason(error)
    return None


def _try_to_write(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".heterps-") as file:
        file.write(bytes(_TRIED_BYTES))
        file.flush()


def _reason(error: OSError | RuntimeError) -> str:
    return (getattr(error, "strerror", None) or str(error)).strip()
