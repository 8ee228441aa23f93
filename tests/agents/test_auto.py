"""`auto`: which effort it gives the policy, whatever efforts a user has named."""

from __future__ import annotations

import pytest

from heterps_agents import auto


def test_the_policy_tries_one_effort_harder_up_to_the_hardest() -> None:
    assert [auto._harder(name) for name in ("fast", "normal", "high")] == ["normal", "high", "high"]


def test_efforts_of_other_names_have_an_order_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "efforts", lambda: {"calm": None, "keen": None})
    assert (auto._harder("calm"), auto._harder("keen")) == ("keen", "keen")
