"""The cluster of docs/your-cluster.md is ten lines, and a model is placed on it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from heterps import load_problem, place
from heterps_configs.library import load_cluster
from tests.house.documents import ROOT

CLUSTER, OWN_TYPE = re.findall(
    r"```yaml\n(.*?)```", (ROOT / "docs" / "your-cluster.md").read_text(), re.DOTALL
)


def test_the_cluster_of_the_page_is_ten_lines_and_can_be_used(tmp_path: Path) -> None:
    assert len(CLUSTER.splitlines()) <= 10
    (tmp_path / "mine.yaml").write_text(CLUSTER)
    result = place(load_problem("gpt2", str(tmp_path / "mine.yaml")))
    assert {device.split("-")[0] for device in result.plan.devices} <= {"a100", "t4"}


def test_the_device_type_of_the_page_is_one(tmp_path: Path) -> None:
    (own,) = yaml.safe_load(OWN_TYPE)["device_types"]
    (tmp_path / "mine.yaml").write_text(
        CLUSTER.replace("type: T4", f"type: {own['name']}") + OWN_TYPE
    )
    cluster = load_cluster(str(tmp_path / "mine.yaml"))
    assert cluster.devices[-1].memory_bytes == own["memory_bytes"]
