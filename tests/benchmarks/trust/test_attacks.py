"""Nobody gets in: attacks on a real run, from another network namespace or address, and inside.

Those on messages, checkpoints, policies and plans have tests beside what they attack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trust.attacks import attacks_on_elastic_run, sockets_of_hosts, sockets_of_links
from tests.runtime.networks import network

pytestmark = pytest.mark.slow


def test_no_attack_on_a_running_job_succeeds(tmp_path: Path) -> None:
    with network() as hosts:
        rows = attacks_on_elastic_run(tmp_path / "elastic", hosts)
    assert [row for row in rows if row.succeeded] == []
    assert all(row.tried > 0 for row in rows)


def test_hosts_listen_on_the_loopback_and_at_one_gate(tmp_path: Path) -> None:
    found = sockets_of_hosts(tmp_path / "nodes")
    assert found.open_ones == []
    assert found.gate in {each.port for each in found.listeners}


def test_measuring_links_listens_on_the_loopback() -> None:
    found = sockets_of_links()
    assert found.open_ones == []
    assert found.listeners
