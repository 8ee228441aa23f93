"""A stranger's checkpoint runs nothing, stays in its folder, and takes no more than it has."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_storage import StoredTensors, write_tensors
from heterps_runtime.state.checksums import FileSum, write_checksums
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.stored_files import LocalFiles, RemoteFiles
from heterps_runtime.state.tensor_file import flat_bytes, read_own_table

TENSORS = {
    "model.weight": torch.arange(12.0).reshape(3, 4),
    "model.turned": torch.arange(6.0).reshape(2, 3).t(),
    "model.half": torch.ones(5, dtype=torch.bfloat16),
    "optimizer.weight.step": torch.tensor(7.0),
    "model.nothing": torch.zeros(0, 3),
}
FILE = "tensors-0.safetensors"


class _Runs:
    """A pickle that runs a command where it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def _old(folder: Path) -> Path:
    """As earlier versions wrote them."""
    save(dict(TENSORS), storage_writer=FileSystemWriter(folder), no_dist=True)
    sums = {name: zlib.crc32(flat_bytes(tensor)) for name, tensor in TENSORS.items()}
    (folder / "checksums-0.json").write_text(json.dumps(sums))
    return folder


def _new(folder: Path) -> Path:
    write_tensors(folder, TENSORS, None, 0)
    _sum(folder)
    return folder


def _sum(folder: Path) -> None:
    """Whoever makes a checkpoint makes its checksums, too."""
    write_checksums(folder, [FileSum.of(folder / FILE, read_own_table(folder / FILE))])


def _read(checkpoint: Path | RemoteFiles) -> dict[str, Tensor]:
    saved = StoredTensors(LocalFiles(checkpoint) if isinstance(checkpoint, Path) else checkpoint)
    found = {name: saved.blank(name) for name in saved.names}
    saved.read(found)
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("write", [_old, _new])
def test_old_and_new_checkpoints_come_back_bit_by_bit(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    found = _read(write(tmp_path))
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def _pickled(folder: Path, change: Callable[[Any], Any]) -> None:
    """Replaces the table by one that torch itself would read."""
    path = folder / ".metadata"
    path.write_bytes(pickle.dumps(change(pickle.loads(path.read_bytes()))))


def _elsewhere(name: str) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        for place in table.storage_data.values():
            place.relative_path = name
        return table

    return change


def _longer(table: Any) -> Any:
    next(iter(table.storage_data.values())).length = 2**50
    return table


def _larger(table: Any) -> Any:
    entry = next(iter(table.state_dict_metadata.values()))
    entry.size = entry.chunks[0].sizes = torch.Size((2**20, 2**20))
    return table


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: {"state_dict_metadata": {}}, r"\.metadata: has a dict in the place of"),
        (_elsewhere("../__0_0.distcp"), r"names '\.\./__0_0\.distcp', which is no file"),
        (_elsewhere("/etc/passwd"), r"names '/etc/passwd', which is no file"),
        (_elsewhere("__0_0.distcp\0"), "which is no file of a checkpoint"),
        (_longer, "a tensor whose bytes and shape differ"),
        (_larger, "a tensor whose bytes and shape differ"),
    ],
)
def test_old_tables_that_lie_are_refused(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    _pickled(_old(tmp_path), change)
    with pytest.raises(HeterpsError, match=said):
        _read(tmp_path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("where", ["table", "field", "tensor"])
def test_code_in_an_old_checkpoint_is_named_and_never_run(
    tmp_path: Path, where: str, is_remote: bool
) -> None:
    folder, ran = _old(tmp_path / "saved"), tmp_path / "ran"
    if where == "tensor":
        (shard,) = folder.glob("*.distcp")
        shard.write_bytes(pickle.dumps(_Runs(ran)).ljust(shard.stat().st_size, b"\0"))
    else:
        table = pickle.loads((folder / ".metadata").read_bytes())
        table.planner_data = _Runs(ran)
        hostile = _Runs(ran) if where == "table" else table
        (folder / ".metadata").write_bytes(pickle.dumps(hostile))
    files = RemoteFiles(RemoteStorage(f"file://{folder}")) if is_remote else folder
    said = "cannot be read" if where == "tensor" else r"asks for 'posix\.mkdir', which no table"
    with pytest.raises(HeterpsError, match=said):
        _read(files)
    assert not ran.exists()
    if where != "tensor":
        pickle.loads((folder / ".metadata").read_bytes())
        assert ran.exists(), "the same bytes do run where anybody else reads them"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x02\x8a\x01\x01\x82\x01.", "has the opcode EXT1"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "keeps a value under the number"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40), "has the opcode|expected 1099511627776 bytes"),
        (b"\x80\x02" + b"(" * 100 + b"t" * 100 + b".", "in the place of"),
        (b"", "pickle"),
    ],
)
def test_pickles_that_take_memory_or_registries_are_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(HeterpsError, match=said):
        StoredTensors(LocalFiles(tmp_path))


def _table(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes the table of a file, and all checksums with it."""

    def rewrite(folder: Path) -> None:
        path = folder / FILE
        content, old = path.read_bytes(), read_own_table(path)
        table = json.loads(old[8:])
        change(table)
        _put(path, json.dumps(table).encode(), content[len(old) :])

    return rewrite


def _put(path: Path, table: bytes, tensors: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(table)) + table + tensors)


def _raw(table: bytes) -> Callable[[Path], None]:
    return lambda folder: _put(folder / FILE, table, b"")


def _link(folder: Path) -> None:
    (folder / FILE).rename(folder.parent / "elsewhere")
    (folder / FILE).symlink_to(folder.parent / "elsewhere")


def _pipe(folder: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_table(lambda t: t["model.half"].update(shape=[2**40])), "its shape takes another number"),
        (_table(lambda t: t["model.nothing"].update(shape=[0, 2**59, 2**59])), "impossible shape"),
        (_table(lambda t: t["model.half"].update(shape=[-5])), "greater than or equal to 0"),
        (_table(lambda t: t["model.half"].update(shape=[True])), "valid integer"),
        (_table(lambda t: t["model.half"].update(dtype="object")), "unknown format 'object'"),
        (_table(lambda t: t["model.half"].update(data_offsets=[0, 10])), "overlap, or leave a gap"),
        (_table(lambda t: t["model.half"].update(file="/etc/passwd")), "file'.*not permitted"),
        (_table(lambda t: t.pop("model.half")), "not every tensor has a checksum"),
        (_table(lambda t: t.update({"__metadata__": 3})), "valid dictionary"),
        (_raw(b"[" * 100_000), "is no table"),
        (_raw(b'{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' is there twice"),
        (_raw(b"\xff\xfe"), "is no table"),
    ],
)
def test_tables_that_lie_are_refused_before_memory_is_taken(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(_new(tmp_path))
    _sum(tmp_path)
    with pytest.raises(HeterpsError, match=rf"damaged \(the table of {FILE}: .*{said}"):
        _read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"), [(_link, "Too many levels of symbolic links"), (_pipe, "no regular file")]
)
def test_files_that_are_none_are_not_opened(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(_new(tmp_path / "saved"))
    with pytest.raises(HeterpsError, match=rf"{FILE}.*{said}"):
        _read(tmp_path / "saved")


@pytest.mark.parametrize(
    "line",
    [
        "../tensors-0.safetensors 8 8 00000000",
        "/etc/passwd 8 8 00000000",
        f"{FILE}\0 8 8 00000000",
        f"{FILE} 99999999999999999999 8 00000000",
        f"{FILE} 8 8 00000000\n{FILE} 8 8 00000000",
        f"{FILE} -8 8 00000000",
    ],
)
def test_checksums_name_files_of_the_checkpoint_alone(tmp_path: Path, line: str) -> None:
    (_new(tmp_path) / "checksums.txt").write_text(line)
    with pytest.raises(HeterpsError, match=r"damaged \(checksums.txt: line"):
        _read(tmp_path)


def test_a_flipped_byte_anywhere_is_noticed_and_its_file_named(tmp_path: Path) -> None:
    path = _new(tmp_path) / FILE
    whole = path.read_bytes()
    for position in range(0, len(whole), 5):
        content = bytearray(whole)
        content[position] ^= 1
        path.write_bytes(content)
        with pytest.raises(HeterpsError, match=FILE):
            _read(tmp_path)


def test_a_head_that_is_said_to_be_large_takes_no_memory(tmp_path: Path) -> None:
    size = (_new(tmp_path) / FILE).stat().st_size
    (tmp_path / "checksums.txt").write_text(f"{FILE} {size} {2**58} 00000000\n")
    with pytest.raises(HeterpsError, match="has a head of"):
        _read(tmp_path)
