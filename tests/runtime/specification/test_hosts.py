"""Which host starts which devices, what it needs to know, and how launchers of several agree."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.errors import HeterpsError
from heterps_runtime.network import host_board
from heterps_runtime.network.dial import dial
from heterps_runtime.network.secret import VARIABLE
from heterps_runtime.run import host_group
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.rank_errors import LostConnectionError
from heterps_runtime.specification.hosts import Hosts, gloo_environment, machine_identity
from tests.runtime.elastic.small_runs import wait_until
from tests.runtime.networks import SECRET, free_port


def _cluster(*counts: int) -> Cluster:
    link = Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    return Cluster(
        name="nodes",
        nodes=tuple(
            Node(
                name=f"n{i}",
                devices=(DeviceGroup(name=f"n{i}", type="V100-16G", count=count),),
                link=link,
            )
            for i, count in enumerate(counts)
        ),
        inter_node_link=link,
    )


def _hosts(num_hosts: int, rank: int = 0, port: int = 29400, timeout_s: float = 20) -> Hosts:
    return Hosts(num_hosts, rank, "127.0.0.1", port, SECRET.encode(), timeout_s)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_every_device_is_started_by_one_host_and_no_node_is_split(
    counts: list[int], data: st.DataObject
) -> None:
    cluster = _cluster(*counts)
    every = [device.name for device in cluster.devices]
    names = data.draw(st.permutations(every))
    num_hosts = data.draw(st.integers(1, len(counts)))
    found = _hosts(num_hosts).devices(cluster, names)
    assert sorted(name for own in found for name in own) == sorted(every)
    assert all(found)
    node_of = {device.name: device.node for device in cluster.devices}
    nodes = [{node_of[name] for name in own} for own in found]
    assert sum(map(len, nodes)) == len(set().union(*nodes))


def test_nodes_that_the_plan_leaves_out_need_no_host() -> None:
    cluster = _cluster(1, 1, 2)
    assert _hosts(2).devices(cluster, ["n2-1", "n0"]) == [("n0",), ("n2-1",)]


def test_more_hosts_than_nodes_are_refused() -> None:
    with pytest.raises(HeterpsError, match=r"uses 1 node\(s\).*cannot be split"):
        _hosts(2).devices(_cluster(4), ["n0-0", "n0-1"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((2, 0, None), "missing: --rendezvous"),
        ((None, None, "a:1"), "missing: --nodes, --node-rank"),
        ((2, 2, "a:1"), r"allowed: 0\.\.1"),
        ((2, 1, "10.0.0.1"), "expected HOST:PORT"),
        ((2, 1, "a:70000"), "expected HOST:PORT"),
        ((2, 1, ":29400"), "expected HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: tuple[int | None, int | None, str | None], expected: str
) -> None:
    with pytest.raises(HeterpsError, match=expected):
        Hosts.parse(*options)


def test_one_host_needs_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    assert Hosts.parse(None, None, None) is None
    assert Hosts.parse(1, 0, "a:1") is None
    assert Hosts.parse(2, 1, "[::1]:29400") == Hosts(2, 1, "::1", 29400, SECRET.encode())


def test_the_interface_towards_the_loopback_is_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert gloo_environment(_hosts(2)) in ({"GLOO_SOCKET_IFNAME": "lo"}, {})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert gloo_environment(_hosts(2)) == {}, "a user's own choice stays"


def test_a_machine_is_itself() -> None:
    assert machine_identity() == machine_identity() != ""


# -- launchers together


def _together(*parts: Callable[[HostGroup], object]) -> list[object]:
    """What each host's part returns, or its error; every part runs in a thread."""
    port = free_port()
    found: list[object] = [None] * len(parts)

    def run(rank: int) -> None:
        try:
            with HostGroup(_hosts(len(parts), rank, port)) as group:
                found[rank] = parts[rank](group)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def _agrees(facts: dict[str, str]) -> Callable[[HostGroup], object]:
    def part(group: HostGroup) -> str:
        group.agree(facts)
        return group.share("what runs" if group.hosts.rank == 0 else None)

    return part


def test_hosts_that_agree_learn_what_runs() -> None:
    facts = {"plan": "1", "--steps": "10"}
    assert _together(_agrees(facts), _agrees(facts), _agrees(facts)) == ["what runs"] * 3


def test_a_host_with_another_plan_is_one_error_on_all_hosts() -> None:
    found = _together(
        _agrees({"plan": "a", "--steps": "10"}),
        _agrees({"plan": "b", "--steps": "10"}),
        _agrees({"plan": "a", "--steps": "10"}),
    )
    expected = "host 1 was started for another run than host 0: plan: b here, a on host 0"
    assert [str(error) for error in found] == [expected] * 3


def test_a_host_that_comes_late_hears_why_there_is_no_run() -> None:
    port, found = free_port(), list[str]()

    def run(rank: int, wait_s: float) -> None:
        time.sleep(wait_s)
        try:
            with HostGroup(_hosts(3, rank, port)) as group:
                _agrees({"plan": "b" if rank == 1 else "a"})(group)
        except HeterpsError as error:
            found.append(str(error))

    threads = [threading.Thread(target=run, args=(rank, 1.0 * (rank == 2))) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (
        found == ["host 1 was started for another run than host 0: plan: b here, a on host 0"] * 3
    )


def _fails(error: Exception) -> Callable[[HostGroup], object]:
    def part(group: HostGroup) -> None:
        raise error

    return part


def test_an_error_of_one_host_reaches_those_that_wait() -> None:
    found = _together(_agrees({}), _fails(HeterpsError("plan.yaml: cannot be read")))
    assert [str(error) for error in found] == [
        "host 1: plan.yaml: cannot be read",
        "plan.yaml: cannot be read",
    ]


def test_a_host_that_only_lost_its_connections_reports_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _together(
        _fails(LostConnectionError("rank 0: Connection closed by peer", rank="0")),
        _fails(HeterpsError("rank 1 (d1): ValueError: no")),
    )
    assert [str(error) for error in found] == [
        "host 1: rank 1 (d1): ValueError: no",
        "rank 1 (d1): ValueError: no",
    ]
    monkeypatch.setattr(host_group, "CAUSE_S", 0.3)
    found = _together(_fails(LostConnectionError("lost", rank="0")), lambda group: None)
    assert str(found[0]) == "lost", "where nobody knows the cause, that is the error"


def test_a_second_host_of_one_rank_is_refused_and_the_first_goes_on() -> None:
    port = free_port()
    with HostGroup(_hosts(2, 0, port)) as host_0, HostGroup(_hosts(2, 1, port)) as host_1:
        with (
            pytest.raises(HeterpsError, match=r"another host .* --node-rank 1"),
            HostGroup(_hosts(2, 1, port)) as second,
        ):
            second.agree({})
        with pytest.raises(HeterpsError, match=f"--rendezvous 127.*{port}: is in use"):
            HostGroup(_hosts(2, 0, port)).__enter__()
        agreeing = threading.Thread(target=host_1.agree, args=({},))
        agreeing.start()
        host_0.agree({})
        agreeing.join(10)


def test_a_silent_host_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected, and stopped."""
    monkeypatch.setattr(host_board, "SILENCE_S", 0.5)
    monkeypatch.setattr(host_board, "BEAT_S", 0.1)
    monkeypatch.setattr(host_group, "CAUSE_S", 0.1)
    hello = {"service": host_board.SERVICE, "host": 1}
    with HostGroup(_hosts(2, 0, port := free_port())) as group:
        connection = dial(_hosts(2, 1, port).host_0, hello)
        with pytest.raises(HeterpsError, match=r"host 1 has gone: it has been silent for 0\.5 s"):
            group.agree({})
        connection.release()


def test_a_host_whose_connection_breaks_is_noticed_at_once() -> None:
    hello = {"service": host_board.SERVICE, "host": 1}
    with HostGroup(_hosts(2, 0, port := free_port())) as group:
        dial(_hosts(2, 1, port).host_0, hello).release()
        began_s = time.monotonic()
        with pytest.raises(HeterpsError, match="host 1 has gone: its connection broke"):
            group.agree({})
    assert time.monotonic() - began_s < 2


def test_who_is_waited_for_is_said_at_once() -> None:
    said: list[str] = []
    with (
        pytest.raises(HeterpsError, match=r"host 1 has not come, after 0\.3 s"),
        HostGroup(_hosts(2, 0, port := free_port(), 0.3), said.append) as group,
    ):
        group.agree({})
    assert said == [f"waiting for host 1 of 2 at 127.0.0.1:{port} (0 s)"]
    said.clear()
    with (
        pytest.raises(HeterpsError, match="host 0 does not answer"),
        HostGroup(_hosts(2, 1, port, 0.3), said.append),
    ):
        pass
    assert said == [f"waiting for host 0 at 127.0.0.1:{port} (0 s)"]


def test_a_host_with_another_secret_hears_it_and_host_0_goes_on_waiting() -> None:
    said: list[str] = []
    with HostGroup(_hosts(2, 0, port := free_port()), said.append):
        other = Hosts(2, 1, "127.0.0.1", port, b"another secret of 16 bytes")
        with pytest.raises(HeterpsError, match="has another secret than this host"):
            HostGroup(other).__enter__()
        wait_until(lambda: bool(said), 5)
    assert said == [
        f"--rendezvous 127.0.0.1:{port}: 127.0.0.1 does not know this run's secret; "
        "it was turned away"
    ]


def test_results_of_all_ranks_come_to_host_0(tmp_path: Path) -> None:
    def part(group: HostGroup) -> list[str]:
        rank = group.hosts.rank
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / f"result-{rank}.json").write_text(json.dumps({"device": f"d{rank}"}))
        group.collect(folder, 2)
        return sorted(path.name for path in folder.glob("*.json"))

    found = _together(part, part)
    assert found == [["result-0.json", "result-1.json"], ["result-1.json"]]
    text = (tmp_path / "0" / "result-1.json").read_text()
    assert json.loads(text) == {"device": "d1"}
