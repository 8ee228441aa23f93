"""`heterps profile`: measure, merge, links; what does not go together is refused."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.cli.app import main
from heterps.run_commands.links import (
    new_cluster,
    node_of_this_machine,
    with_collectives,
    with_measured,
)
from heterps_configs.documents.cluster import Cluster, Collective, HostTimes, Link
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile

LINK = Link(latency_s=1e-4, bandwidth_bytes_per_s=2e9)
HOST = HostTimes(action_s=5e-5, step_s=3e-4, slowdown_together=(1.0, 1.2))


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["profile", *arguments])
    return int(end.value.code or 0)


@pytest.mark.slow
def test_a_model_is_measured_merged_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, both = (tmp_path / f"{name}.yaml" for name in ("one", "two", "both"))
    assert _run("perceptron", "--device", "cpu", "--micro-batch", "2", "-o", str(one)) == 0
    shown = capsys.readouterr().out
    assert "forward ms" in shown
    assert "Linear" in shown
    assert not one.with_name("one.yaml.partial").exists()
    profile = load_profile(one)
    other = profile.measurements[-1].changed(device_type="other")
    profile.changed(measurements=(other,)).to_file(two)
    assert _run("--merge", str(one), str(two), "-o", str(both), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {entry["device_type"] for entry in printed["measurements"]} == {"host-cpu", "other"}
    assert load_profile(both).measurements[0].num_repeats > 0


@pytest.mark.slow
def test_layers_are_explained_and_what_groups_cannot_do_with_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run("resnet-50", "--explain-layers") == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ 9-13 .* 1\.12 M +1\.31 G +2\.31 MiB +784 KiB +256 channels", shown, re.M)
    assert "and 16 more: a group cannot split it by batch: it normalises over the samples" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one MODEL, got 0"),
        (("perceptron", "ctr"), "expected one MODEL, got 2"),
        (("--merge", "perceptron"), "--merge needs at least two profile files"),
        (("--merge", "--links"), "do not go together"),
        (("--merge", "perceptron", "ctr-tiny"), "another model than perceptron: layer 0"),
        (("--links", "perceptron"), "takes no MODEL, got 'perceptron'"),
        (("--links", "--device", "cpu"), "--device does not go with --links"),
        (("perceptron", "--cluster", "gpu-cpu"), "--cluster belongs to --links"),
        (("perceptron", "--dtype", "bfloat16"), "--dtype needs --device"),
        (("perceptron", "--device", "cpu", "--dtype", "int8"), "--dtype 'int8': allowed are"),
        (("perceptron", "--device", "cuda:0"), "needs --device-type"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_the_new_cluster_loads_and_holds_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    new_cluster(3, LINK, HOST).to_file(path)
    cluster = load_cluster(path)
    assert [device.type.name for device in cluster.devices] == ["host-cpu"] * 3
    assert cluster.nodes[0].link == LINK
    assert cluster.nodes[0].host == HOST


def test_a_given_cluster_keeps_all_but_link_and_host_times() -> None:
    before = load_cluster("local-emulated")
    after = with_measured(before, node_of_this_machine(before, "local-emulated"), LINK, HOST)
    assert after.nodes[0].link == LINK
    assert after.nodes[0].host == HOST
    assert [device.name for device in after.devices] == [device.name for device in before.devices]
    own_link = before.nodes[0].link
    assert own_link is not None
    restored = with_measured(after, after.nodes[0], own_link, before.nodes[0].host)
    assert restored == before
    sums = Collective(kind="all-reduce", devices=2, latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    known = with_collectives(before, before.nodes[0].name, [sums])
    assert Cluster.from_mapping(known.to_mapping()).nodes[0].collectives == (sums,)
    assert with_collectives(known, before.nodes[0].name, []) == before


def test_the_node_of_this_machine_is_found_by_its_name() -> None:
    cluster = load_cluster("a100-v100")
    assert len(cluster.nodes) > 1
    with pytest.raises(HeterpsError, match="no node has that name; nodes: "):
        node_of_this_machine(cluster, "a100-v100")
    first = cluster.nodes[0].changed(name=platform.node())
    named = Cluster.model_construct(**{**dict(cluster), "nodes": (first, *cluster.nodes[1:])})
    assert node_of_this_machine(named, "x") == first


def test_a_device_type_that_nobody_knows_is_a_warning(heterps: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match=r"--device-type: unknown device type 'A100-40'.*A100-40G"):
        heterps("profile", "nosuchmodel", "--device", "cpu", "--device-type", "A100-40")


def test_a_micro_batch_that_memory_cannot_hold_is_refused_before_it_is_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run("llama-7b", "--device", "cpu", "--micro-batch", "1,1000000000") == 2
    assert "a layer of llama-7b takes" in capsys.readouterr().err
