"""Chains of `auto`: which effort it gives the policy, whatever efforts a user has named."""

from __future__ import annotations

import pytest

from heterps_agents.auto import chains


def test_the_policy_tries_one_effort_harder_up_to_the_hardest() -> None:
    assert [chains._harder(name) for name in ("fast", "normal", "high")] == [
        "normal",
        "high",
        "high",
    ]


def test_efforts_of_other_names_have_an_order_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "efforts", lambda: {"calm": None, "keen": None})
    assert (chains._harder("calm"), chains._harder("keen")) == ("keen", "keen")
