"""Remote checkpoints: complete ones only, parts of them, old ones go, failures are remarks."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest
import torch

from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.state import remote_storage, remote_upload
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_storage import StoredTensors
from heterps_runtime.state.remote_checkpoint import newest_remote, remote_checkpoints
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.remote_upload import Uploader, prune, upload_checkpoint
from heterps_runtime.state.stored_files import LocalFiles, RemoteFiles
from heterps_runtime.state.tensor_file import flat_bytes
from tests.runtime.local_states import save, trained
from tests.runtime.small_runs import chain_of, problem_of


@pytest.fixture(scope="module")
def run() -> LocalRun:
    """Two devices, one step."""
    problem = problem_of("sequential")
    return trained(problem, chain_of(problem, 4), 1)


@pytest.fixture
def storage() -> RemoteStorage:
    """An empty one."""
    return RemoteStorage(f"memory://{uuid.uuid4()}")


@pytest.fixture
def saved(run: LocalRun, storage: RemoteStorage, tmp_path: Path) -> Path:
    """A local checkpoint, and its copy."""
    path = save(run, tmp_path, 1)
    upload_checkpoint(storage, path)
    return path


def test_copy_holds_what_the_local_one_does(saved: Path, storage: RemoteStorage) -> None:
    assert remote_checkpoints(storage) == {1: "step-000001"}
    local, remote = load_state_dict(saved), load_state_dict(storage.url)
    assert remote.document == local.document
    assert remote.model.keys() == local.model.keys()
    assert all(torch.equal(remote.model[name], local.model[name]) for name in local.model)
    assert remote.optimizer.keys() == local.optimizer.keys()
    assert newest_remote(storage.url) == newest_remote(storage.url_of("step-000001"))


def test_only_what_is_asked_for_is_fetched(
    saved: Path, storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = StoredTensors(LocalFiles(saved))
    remote = StoredTensors(RemoteFiles(storage, saved.name))
    assert set(remote.names) == set(local.names)
    fetched: list[int] = []
    read = storage.read

    def counted(name: str, start: int | None = None, stop: int | None = None) -> bytes:
        content = read(name, start, stop)
        fetched.append(len(content))
        return content

    monkeypatch.setattr(storage, "read", counted)
    wanted = {name: remote.blank(name) for name in remote.names if ".6." in name}
    remote.read(wanted)
    expected = {name: local.blank(name) for name in wanted}
    local.read(expected)
    assert all(flat_bytes(tensor) == flat_bytes(expected[name]) for name, tensor in wanted.items())
    size = sum(path.stat().st_size for path in saved.glob("*.safetensors"))
    assert 0 < sum(fetched) < size / 2
    # Tensors that lie side by side are fetched together.
    assert len(fetched) < len(wanted)


def test_unfinished_copies_do_not_count(saved: Path, storage: RemoteStorage) -> None:
    upload_checkpoint(storage, saved)
    storage.remove("step-000001/checkpoint.json")
    assert remote_checkpoints(storage) == {}
    with pytest.raises(HeterpsError, match=r"memory://.*: there is no complete checkpoint"):
        newest_remote(storage.url)


def test_damage_is_one_clear_message(saved: Path, storage: RemoteStorage) -> None:
    shard = saved / "tensors-0.safetensors"
    name, content = f"{saved.name}/{shard.name}", bytearray(shard.read_bytes())
    weight = load_state_dict(saved).model["0.weight"]
    content[content.index(weight.numpy().tobytes())] ^= 1
    storage.write(name, bytes(content))
    with pytest.raises(HeterpsError, match=r"damaged \(the checksum of model.0.weight differs"):
        load_state_dict(storage.url)
    storage.write(name, shard.read_bytes()[: len(content) // 2])
    with pytest.raises(HeterpsError, match=r"damaged \(tensors-0.safetensors has \d+ bytes, and"):
        load_state_dict(storage.url)
    storage.remove(name)
    with pytest.raises(HeterpsError, match="does not exist"):
        load_state_dict(storage.url)
    storage.write(f"{saved.name}/checksums.txt", b"nothing")
    with pytest.raises(HeterpsError, match="damaged"):
        load_state_dict(storage.url)


def test_newest_ones_are_kept(run: LocalRun, storage: RemoteStorage, tmp_path: Path) -> None:
    for step in (9, 1_000_000, 2_000_000):
        upload_checkpoint(storage, save(run, tmp_path, step))
    storage.remove("step-000009/checkpoint.json")  # an upload that never ended
    prune(storage, keep=1)
    assert storage.names() == ["step-2000000"]


def test_the_one_that_a_run_started_from_is_kept_besides(
    run: LocalRun, storage: RemoteStorage, tmp_path: Path
) -> None:
    paths = [save(run, tmp_path, step) for step in (1, 2, 3)]
    for path in paths[:2]:
        upload_checkpoint(storage, path)
    uploader = Uploader(storage, keep=1, origin=newest_remote(storage.url))
    uploader.submit(paths[2])
    assert uploader.close() == []
    assert storage.names() == ["step-000002", "step-000003"]


def test_uploads_wait_for_one_another_and_those_between_are_left_out(
    run: LocalRun, storage: RemoteStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [save(run, tmp_path, step) for step in (1, 2, 3)]
    begun, go_on = threading.Event(), threading.Event()
    upload = upload_checkpoint

    def slow(to: RemoteStorage, path: Path) -> None:
        begun.set()
        assert go_on.wait(10)
        upload(to, path)

    monkeypatch.setattr(remote_upload, "upload_checkpoint", slow)
    uploader = Uploader(storage, keep=5)
    uploader.submit(paths[0])
    assert begun.wait(10)
    uploader.submit(paths[1])
    uploader.submit(paths[2])
    assert uploader.paths == (str(paths[2]), str(paths[0]))
    go_on.set()
    (remark,) = uploader.close()
    assert remark.endswith("some are left out, step-000002 first")
    assert list(remote_checkpoints(storage)) == [1, 3]
    assert not uploader.paths


def test_storage_that_refuses_is_a_remark(
    run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_storage, "RETRY_S", (0.0,))
    (tmp_path / "file").write_text("no folder")
    uploader = Uploader(RemoteStorage(f"file://{tmp_path / 'file'}"), keep=1)
    uploader.submit(save(run, tmp_path / "saved", 1))
    (remark,) = uploader.close()
    assert remark.startswith("step-000001 could not be copied to the remote storage; the run goes")
    assert remark.endswith("Not a directory)")


def test_upload_that_hangs_does_not_hold_up_the_end(
    run: LocalRun, storage: RemoteStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(remote_upload, "upload_checkpoint", lambda to, path: go_on.wait(10))
    uploader = Uploader(storage, keep=1)
    uploader.submit(save(run, tmp_path, 1))
    (remark,) = uploader.close(timeout_s=0.05)
    go_on.set()
    assert remark.endswith("step-000001 is not there after 0.05 s")
