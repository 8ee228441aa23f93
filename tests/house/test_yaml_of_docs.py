"""The YAML of the docs is what it says: clusters, device types, run settings, run events."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from heterps import load_problem, place
from heterps_configs.documents.run_events import RunEvents
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_cluster
from tests.house.documents import ROOT


def yaml_of(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


CLUSTER, OWN_TYPE = yaml_of("your-cluster.md")


def test_the_cluster_of_the_page_is_ten_lines_and_can_be_used(tmp_path: Path) -> None:
    assert len(CLUSTER.splitlines()) <= 10
    (tmp_path / "mine.yaml").write_text(CLUSTER)
    result = place(load_problem("gpt2", str(tmp_path / "mine.yaml")), "greedy")
    assert {device.split("-")[0] for device in result.plan.devices} <= {"a100", "t4"}


def test_the_device_type_of_the_page_is_one(tmp_path: Path) -> None:
    (own,) = yaml.safe_load(OWN_TYPE)["device_types"]
    (tmp_path / "mine.yaml").write_text(
        CLUSTER.replace("type: T4", f"type: {own['name']}") + OWN_TYPE
    )
    cluster = load_cluster(str(tmp_path / "mine.yaml"))
    assert cluster.devices[-1].memory_bytes == own["memory_bytes"]


@pytest.mark.parametrize("text", yaml_of("online.md"), ids=lambda text: text.splitlines()[0])
def test_settings_and_events_of_the_page_on_online_runs_are_such(text: str) -> None:
    data = yaml.safe_load(text)
    document = RunEvents if "events" in data else RunSettings
    assert document.from_mapping(data).to_mapping()
