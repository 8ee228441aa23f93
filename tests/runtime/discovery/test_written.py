"""The text of a cluster file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.yaml_files import parse_yaml
from heterps_runtime.discovery.discover import described
from heterps_runtime.discovery.drafts import ClusterDraft, GroupDraft, NodeDraft
from heterps_runtime.discovery.link_kinds import NotedLink
from heterps_runtime.discovery.written import cluster_text
from tests.runtime.discovery.recorded import h100_answer, queried


def read(name: str, number: float = 1.0, note: str = "") -> Any:
    link = NotedLink(1e-5, number, note)
    node = NodeDraft(name, (GroupDraft(name, "T4", 1, None, note),), link, (note,))
    draft = ClusterDraft(name, name, (), (node,), None, {}, (note,))
    return parse_yaml(cluster_text(draft), "text")


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_names_come_back_as_they_went_in(name: str) -> None:
    data = read(name)
    assert (
        data["name"] == data["nodes"][0]["name"] == data["nodes"][0]["devices"][0]["name"] == name
    )


@pytest.mark.parametrize("name", ["null", "Yes", "off", "1e3", ".inf", "2026-01-01", "~", "é"])
def test_words_that_mean_something_to_yaml_stay_names(name: str) -> None:
    assert read(name)["name"] == name


@given(st.floats(1e-3, 1e18))
def test_numbers_come_back_to_nine_digits(number: float) -> None:
    found = read("a", number)["nodes"][0]["link"]["bandwidth_bytes_per_s"]
    assert found == pytest.approx(number, rel=1e-8)


@given(st.text(max_size=300))
def test_no_remark_leaves_its_comment(note: str) -> None:
    assert read("a", note=note) == read("a")


def test_lines_can_be_looked_over() -> None:
    found = described([h100_answer("a", nvidia=queried("NVIDIA Imaginary X9000", 49140, 8))])
    assert max(map(len, found.text.splitlines())) <= 150
