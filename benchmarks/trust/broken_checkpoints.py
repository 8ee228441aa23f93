"""Broken checkpoints: tables of tensors, checksums and documents that lie, beside a whole one.

Whoever makes a checkpoint makes its checksums, too: they fit what was changed most of the time, so
that readers come to what stands behind them.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.trust.broken_documents import HOSTILE_NUMBERS, broken, broken_text
from benchmarks.trust.whole_checkpoint import STEP, Content, valid_checkpoint
from heterps_runtime.state.checkpoint_files import DOCUMENT_FILE
from heterps_runtime.state.checksums import CHECKSUMS_FILE

_TABLE_SUFFIX = ".safetensors"
_NAMES = (
    "../tensors-0.safetensors", "/etc/passwd", "model.../../x", "model.", "optimizer.", "model.0",
    "optimizer.0.weight", "", "__metadata__", "model.a\x00b", "model.\x1b[31m", "é" * 300,
)  # fmt: skip
_DTYPES: tuple[Any, ...] = (
    "F64",
    "F16",
    "BOOL",
    "C128",
    "F8_E4M3",
    "object",
    "f32",
    "",
    "../F32",
    None,
    4,
)
_SHAPES: tuple[Any, ...] = (
    [],
    [0],
    [2**60],
    [2**31, 2**31],
    [0, 2**59, 2**59],
    [-1],
    [True],
    [1.5],
    [1] * 70,
    "ab",
)
_OFFSETS: tuple[Any, ...] = (
    [0, 0],
    [0, 8],
    [-8, 8],
    [8, 0],
    [2**60, 2**60 + 8],
    [0, 2**70],
    [0],
    [0, 1, 2],
    "0",
)
_LINES = (
    "../tensors-0.safetensors 8 8 00000000", "/etc/passwd 8 8 00000000", "", "\x00",
    "tensors-0.safetensors 99999999999999999999 8 00000000", "tensors-7.safetensors 8 8 00000000",
    "tensors-0.safetensors 8 99999999999999999 00000000", "tensors-0.safetensors -8 8 00000000",
)  # fmt: skip
_LINKS = tuple(map(Path, ("/dev/zero", "/dev/null", "/etc/passwd", "nowhere", ".", "..")))


@st.composite
def checkpoints(draw: st.DrawFn) -> Content:
    """A folder of checkpoints whose newest has up to three changes."""
    files: dict[str, bytes | Path] = dict(valid_checkpoint())
    for _ in range(draw(st.integers(1, 3))):
        draw(st.sampled_from(_CHANGES))(draw, files)
    if draw(st.integers(0, 4)):
        _sum(files)
    if not draw(st.integers(0, 9)):
        _change_lines(draw, files)
    if not draw(st.integers(0, 9)):
        name = draw(st.sampled_from(("step-9", "step-" + "9" * 200, "step-0", "step-٣")))
        files = {path.replace(f"step-{STEP:06d}", name): each for path, each in files.items()}
    return files


def _path(files: Mapping[str, Any], name: str) -> str | None:
    return next((path for path in files if path.endswith(name)), None)


def _sum(files: dict[str, bytes | Path]) -> None:
    """Writes the checksums of what is there."""
    lines = []
    for path, content in files.items():
        name = path.rpartition("/")[2]
        if isinstance(content, bytes) and name != CHECKSUMS_FILE:
            head = content if name == DOCUMENT_FILE else content[: 8 + _table_length(content)]
            lines.append(f"{name} {len(content)} {len(head)} {zlib.crc32(head):08x}\n")
    sums = _path(files, CHECKSUMS_FILE)
    if sums is not None:
        files[sums] = "".join(lines).encode()


def _table_length(content: bytes) -> int:
    return int(struct.unpack("<Q", content[:8])[0]) if len(content) >= 8 else 0


def _tables(files: Mapping[str, bytes | Path]) -> list[str]:
    return [
        path
        for path, content in files.items()
        if path.endswith(_TABLE_SUFFIX) and isinstance(content, bytes)
    ]


def _change_table(draw: st.DrawFn, files: dict[str, bytes | Path]) -> None:
    if not (paths := _tables(files)):
        return
    path = draw(st.sampled_from(paths))
    content = files[path]
    assert isinstance(content, bytes)
    length = _table_length(content)
    tensors = content[8 + length :]
    try:
        table = json.loads(content[8 : 8 + length])
    except ValueError:
        return
    if draw(st.booleans()) and isinstance(table, dict):
        _lie(draw, table)
    else:
        table = draw(broken(table))
    try:
        text = json.dumps(table).encode()
    except (ValueError, RecursionError):
        text = repr(table).encode()
    if not draw(st.integers(0, 3)):
        text = draw(broken_text(text.decode()))
    told = draw(st.sampled_from([len(text)] * 6 + [0, len(text) + 1, 2**40, 2**63]))
    files[path] = struct.pack("<Q", told) + text + tensors


def _lie(draw: st.DrawFn, table: dict[str, Any]) -> None:
    """A field of a tensor that contradicts the others, the file or the format."""
    names = [name for name, slot in table.items() if isinstance(slot, dict) and "dtype" in slot]
    if not names:
        return
    name = draw(st.sampled_from(names))
    change = draw(st.sampled_from(("name", "dtype", "shape", "data_offsets", "sum", "swap")))
    sums = table.get("__metadata__")
    if change == "name":
        other = draw(st.sampled_from(_NAMES))
        table[other] = table.pop(name)
        if isinstance(sums, dict):
            sums[other] = sums.pop(name, "00000000")
    elif change == "sum" and isinstance(sums, dict):
        sums[name] = draw(st.sampled_from(["00000000", "", "0" * 9, "zzzzzzzz", 5]))
    elif change == "swap":
        other = draw(st.sampled_from(names))
        table[name], table[other] = table[other], table[name]
    else:
        choices: tuple[Any, ...] = {"dtype": _DTYPES, "shape": _SHAPES}.get(change, _OFFSETS)
        table[name][change] = draw(st.sampled_from(choices))


def _change_document(draw: st.DrawFn, files: dict[str, bytes | Path]) -> None:
    path = _path(files, DOCUMENT_FILE)
    content = None if path is None else files[path]
    if path is None or not isinstance(content, bytes):
        return
    try:
        document = json.loads(content)
    except ValueError:
        return
    if draw(st.booleans()) and isinstance(document, dict):
        field = draw(st.sampled_from(("step", "seed", "learning_rate", "num_ranks", "format")))
        document[field] = draw(st.sampled_from(HOSTILE_NUMBERS))
    else:
        document = draw(broken(document))
    try:
        text = json.dumps(document)
    except (ValueError, RecursionError):
        text = repr(document)
    files[path] = draw(broken_text(text))


def _change_lines(draw: st.DrawFn, files: dict[str, bytes | Path]) -> None:
    path = _path(files, CHECKSUMS_FILE)
    content = None if path is None else files[path]
    if path is None or not isinstance(content, bytes):
        return
    lines = content.decode("latin-1").splitlines()
    at = draw(st.integers(0, len(lines)))
    change = draw(st.sampled_from(("add", "add", "remove", "text")))
    if change == "add":
        lines.insert(at, draw(st.sampled_from(_LINES)))
    elif change == "remove":
        del lines[at : at + 1]
    text = "\n".join(lines) + "\n"
    files[path] = draw(broken_text(text)) if change == "text" else text.encode()


def _change_bytes(draw: st.DrawFn, files: dict[str, bytes | Path]) -> None:
    path = draw(st.sampled_from(sorted(files)))
    content = files[path]
    if not isinstance(content, bytes):
        return
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    change = draw(st.sampled_from(("flip", "cut", "longer", "empty")))
    if change == "flip" and content:
        content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    elif change == "cut":
        content = content[:at]
    else:
        content = content + b"\0" * 9 if change == "longer" else b""
    files[path] = content


def _change_files(draw: st.DrawFn, files: dict[str, bytes | Path]) -> None:
    path = draw(st.sampled_from(sorted(files)))
    if draw(st.booleans()):
        del files[path]
    else:
        files[path] = draw(st.sampled_from(_LINKS))


_CHANGES: tuple[Callable[[st.DrawFn, dict[str, bytes | Path]], None], ...] = (
    _change_table, _change_table, _change_table, _change_document, _change_lines, _change_bytes,
    _change_files,
)  # fmt: skip
