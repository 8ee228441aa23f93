"""`checksums.txt`: what is checked of a checkpoint before anything of it is parsed.

    checkpoint.json 5120 5120 0a1b2c3d
    tensors-0.safetensors 104857600 4096 4d5e6f70

Each line has a file, its bytes, the bytes of its head, and the CRC-32 of the head. The head is what
a reader parses: all of `checkpoint.json`, and the table in front of the tensors. The table has the
CRC-32 of each tensor, so that every byte of a checkpoint is under one checksum, and a rank still
reads its own tensors alone.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from heterps_runtime.state.stored_files import StoredFiles

CHECKSUMS_FILE = "checksums.txt"
_LINE = re.compile(
    r"(checkpoint\.json|tensors-[0-9]{1,6}\.safetensors) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9a-f]{8})",
    re.ASCII,
)
_MOST_BYTES = 16 * 2**20
# A table of a million tensors takes less.
_MOST_HEAD_BYTES = 256 * 2**20


class FileSum(NamedTuple):
    """What a line says of a file."""

    name: str
    num_bytes: int
    head_bytes: int
    head_crc32: int

    @classmethod
    def of(cls, path: Path, head: bytes) -> FileSum:
        """That of a file which has been written."""
        return cls(path.name, path.stat().st_size, len(head), zlib.crc32(head))


def write_checksums(folder: Path, sums: Iterable[FileSum]) -> None:
    """Writes the file, on the disk when it returns.

    Raises:
        OSError: It cannot be written.
    """
    lines = [f"{s.name} {s.num_bytes} {s.head_bytes} {s.head_crc32:08x}\n" for s in sums]
    write_synced(folder / CHECKSUMS_FILE, "".join(lines).encode())


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file of a folder that is not complete yet, on the disk when it returns.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_checksums(files: StoredFiles) -> dict[str, FileSum]:
    """The lines by name of the file.

    Raises:
        HeterpsError: It is missing, or has another form.
    """
    size = files.size(CHECKSUMS_FILE)
    if size > _MOST_BYTES:
        raise files.damaged(f"{CHECKSUMS_FILE} has {size} bytes")
    text = files.read(CHECKSUMS_FILE, 0, size).decode("latin-1")
    found: dict[str, FileSum] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[1] in found:
            raise files.damaged(f"{CHECKSUMS_FILE}: line {number}")
        found[match[1]] = FileSum(match[1], int(match[2]), int(match[3]), int(match[4], 16))
    return found


def read_head(files: StoredFiles, expected: FileSum) -> bytes:
    """What is to be parsed of a file, once it is known to be what was written.

    Raises:
        HeterpsError: The file is missing, or differs.
    """
    name, size = expected.name, files.size(expected.name)
    if size != expected.num_bytes:
        raise files.damaged(f"{name} has {size} bytes, and {expected.num_bytes} were written")
    if expected.head_bytes > min(size, _MOST_HEAD_BYTES):
        raise files.damaged(f"{CHECKSUMS_FILE}: {name} has a head of {expected.head_bytes} bytes")
    head = files.read(name, 0, expected.head_bytes)
    if zlib.crc32(head) != expected.head_crc32:
        raise files.damaged(f"the checksum of {name} differs")
    return head
