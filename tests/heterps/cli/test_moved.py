"""Old options of `heterps run` say where they went, and they went somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from heterps.cli.moved import MOVED
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.yaml_files import parse_yaml

Heterps = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.parametrize("option", MOVED)
@pytest.mark.parametrize("form", ["{} 3", "{}=3"])
def test_an_old_option_says_where_it_went(option: str, form: str, heterps: Heterps) -> None:
    outcome = heterps("run", "plan.yaml", *form.format(option).split())
    assert outcome.code == 2
    assert outcome.err == f"error: {MOVED[option]}\n"
    assert outcome.out == ""


@pytest.mark.parametrize("option", MOVED)
def test_what_it_names_is_there(option: str) -> None:
    text = MOVED[option]
    event = re.search(r"write (\{.*\}) in an events file", text)
    if event is not None:
        assert RunEvent.from_mapping(parse_yaml(event[1], text)).kind == option.removeprefix("--")
        return
    field = re.search(r"set (\S+) in a settings file", text)
    assert field is not None
    value: object = RunSettings()
    for name in field[1].split("."):
        assert hasattr(value, name)
        value = getattr(value, name)


def test_an_option_that_never_was_is_still_unknown(heterps: Heterps) -> None:
    outcome = heterps("run", "plan.yaml", "--hearbeat", "3")
    assert outcome.code == 2
    assert "No such option" in outcome.err
