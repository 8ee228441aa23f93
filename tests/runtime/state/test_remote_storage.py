"""Remote storage: files come back, errors name the URL, a rate is kept."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from heterps_runtime.state import remote_storage
from heterps_runtime.state.remote_storage import (
    MissingFileError,
    RemoteError,
    RemoteStorage,
    is_url,
)


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStorage:
    """An empty folder."""
    if request.param == "memory":
        return RemoteStorage(f"memory://{uuid.uuid4()}")
    return RemoteStorage(f"file://{tmp_path / 'remote'}")


def test_files_come_back_whole_and_in_parts(storage: RemoteStorage, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "local").write_bytes(content)
    storage.upload(tmp_path / "local", "a/first")
    storage.write("a/second", b"small")
    assert storage.names("a") == ["first", "second"]
    assert storage.names() == ["a"]
    assert storage.has("a/first")
    assert not storage.has("b")
    assert storage.read("a/first") == content
    assert storage.read("a/first", 100, 200) == content[100:200]
    storage.remove("a")
    storage.remove("a")
    assert storage.names("a") == []
    with pytest.raises(MissingFileError, match=r"a/first: does not exist$"):
        storage.read("a/first")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://a", r"^nonsense://a: Protocol not known: nonsense$"),
        ("file:///a?bytes_per_s=fast", r"bytes_per_s must be a number above 0, not 'fast'$"),
        ("file:///a?bytes_per_s=0", r"bytes_per_s must be a number above 0, not '0'$"),
    ],
)
def test_urls_that_cannot_be_used_are_named(url: str, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        RemoteStorage(url)


def test_failing_requests_are_tried_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_storage, "RETRY_S", (0.0, 0.0))
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    storage = RemoteStorage(f"file://{blocked}")
    with pytest.raises(RemoteError, match=rf"^file://{blocked}/a/b: Not a directory$"):
        storage.write("a/b", b"")
    tries: list[str] = []

    def fail_twice(path: str) -> bool:
        tries.append(path)
        if len(tries) < 3:
            raise OSError("busy")
        return True

    monkeypatch.setattr(storage._files, "exists", fail_twice)
    assert storage.has("x")
    assert len(tries) == 3


def test_limit_is_kept_and_belongs_to_the_url(tmp_path: Path) -> None:
    storage = RemoteStorage(f"file://{tmp_path}?bytes_per_s=1e6")
    assert storage.url_of("a") == f"file://{tmp_path}/a?bytes_per_s=1e6"
    began_s = time.monotonic()
    storage.write("a", bytes(50_000))
    again = RemoteStorage(storage.url_of(""))
    assert len(again.read("a")) == 50_000
    # At least: what is held back, however fast the machine is.
    assert time.monotonic() - began_s >= 0.1


def test_urls_are_told_from_paths() -> None:
    assert all(is_url(text) for text in ("s3://a/b", "file:///a", "memory://", "zip::s3://a/b.zip"))
    assert not any(is_url(text) for text in ("/a/b", "a/b", "C", "./a:b", "a"))
