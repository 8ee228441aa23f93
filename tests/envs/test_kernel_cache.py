"""Compiled kernels are kept somewhere, and a user hears when some have to be compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from numba import njit

from heterps_envs import kernel_cache


def test_it_is_told_once_that_kernels_are_compiled() -> None:
    told: list[int] = []
    kernel_cache.tell_when_compiling(lambda: told.append(1))
    assert not told
    for summand in (1, 2):
        njit(lambda number, summand=summand: number + summand)(1)
    assert told == [1]


def test_where_nothing_can_be_written_kernels_last_as_long_as_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Set first, so that what it was before is put back, which may be nothing.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    kernel_cache.choose_folder()
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(kernel_cache, "_is_writable", lambda folder: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR to a folder of yours"):
        kernel_cache.choose_folder()
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0


def test_the_folder_of_another_test_is_named_to_nobody() -> None:
    assert not os.environ.get("NUMBA_CACHE_DIR", "").startswith(tempfile.gettempdir())
