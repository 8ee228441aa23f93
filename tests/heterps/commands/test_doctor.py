"""`heterps doctor`: what works, what is missing, and the exit code of what is broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

from heterps.commands import doctor

Heterps = Callable[..., Any]


@pytest.mark.parametrize("interface", [None, "lo"])
def test_what_gloo_is_told_is_as_it_was_before(
    interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface or "")
    if interface is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert [finding.verdict for finding in doctor._processes()] == ["ok"]
    assert os.environ.get("GLOO_SOCKET_IFNAME") == interface


def test_a_machine_that_runs_the_tests_is_fine(heterps: Heterps) -> None:
    outcome = heterps("doctor", "--json")
    assert outcome.code == 0, outcome.out
    found = {entry["what"]: entry for entry in outcome.data}
    assert {"heterps", "python", "packages", "torch", "gloo", "machine", "kernels"} <= set(found)
    assert found["heterps"]["text"] == metadata.version("heterps")
    assert all(entry["verdict"] != "broken" for entry in found.values())


def test_a_missing_package_is_named_and_broken(
    heterps: Heterps, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ["no-such-package>=2", "numpy>=1000", 'no-such-extra>=1; extra == "hf"']
    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    outcome = heterps("doctor", "--json")
    assert outcome.code == 1
    found = {entry["what"]: entry for entry in outcome.data}
    assert found["packages"]["verdict"] == "broken"
    assert "no-such-package: is not installed" in found["packages"]["text"]
    assert "needed: >=1000" in found["packages"]["text"]
    assert found["no-such-extra"]["verdict"] == "note"
    assert "Hugging Face" in found["no-such-extra"]["text"]


def test_a_source_tree_that_is_not_installed_is_noted_and_not_broken(
    heterps: Heterps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    monkeypatch.setattr(metadata, "requires", unknown)
    outcome = heterps("doctor", "--json")
    assert outcome.code == 0, outcome.out
    found = {entry["what"]: entry for entry in outcome.data}
    assert found["heterps"]["verdict"] == found["packages"]["verdict"] == "note"
    assert "not installed" in found["heterps"]["text"]


def test_a_check_that_fails_itself_is_a_finding(
    heterps: Heterps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _torch() -> Any:
        raise OSError("libcudart is missing")

    monkeypatch.setattr(doctor, "CHECKS", (_torch,))
    outcome = heterps("doctor")
    assert outcome.code == 1
    assert "OSError: libcudart is missing" in outcome.out
