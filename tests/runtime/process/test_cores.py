"""How many cores processes share: those that they may use, not all that there are."""

from __future__ import annotations

import os

import pytest

from heterps_runtime.process.cores import usable_cores


def test_cores_that_affinity_excludes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert usable_cores() == 3


def test_where_there_is_no_affinity_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 64
