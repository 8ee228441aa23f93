"""Kinds of links: the shipped numbers are what their sources say, and clusters may name them."""

import re
from typing import Any

import numpy as np
import pytest

from heterps_configs.documents.cluster import NO_LINK, Cluster, Link
from heterps_configs.documents.link_kinds import LinkKind, shipped_link_kinds
from heterps_configs.errors import DocumentError

NUMBERS = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
NEEDED = {
    *("nvlink2", "nvlink3", "nvlink4", "nvlink5", "pcie3", "pcie4", "pcie5"),
    *("infiniband-edr", "infiniband-hdr", "infiniband-ndr"),
    *(f"ethernet-{gigabits}" for gigabits in (1, 10, 25, 40, 100, 200, 400)),
    *("same-region", "same-continent", "between-continents"),
}
MEASURED = [name for name, kind in shipped_link_kinds().items() if kind.measured]
SAME_AS = re.compile(r"latency.* of (?P<other>[a-z0-9-]+) \((?P<share>0\.\d+)\)")


def two_nodes(**links: Any) -> dict[str, Any]:
    """Two nodes of two devices each, with the numbers of a link wherever none is given."""
    nodes = [
        {
            "name": name,
            "devices": [{"name": f"{name}-gpu", "type": "T4", "count": 2}],
            "link": links.get("inside", NUMBERS),
        }
        for name in ("first", "second")
    ]
    return {"name": "mine", "nodes": nodes, "inter_node_link": links.get("between", NUMBERS)}


def link_of(kind: str) -> Link:
    known = shipped_link_kinds()[kind]
    return Link(latency_s=known.latency_s, bandwidth_bytes_per_s=known.bandwidth_bytes_per_s)


def test_the_promised_kinds_are_there() -> None:
    assert set(shipped_link_kinds()) >= NEEDED


@pytest.mark.parametrize("name", MEASURED)
def test_measured_kinds_are_the_least_squares_fit_to_their_points(name: str) -> None:
    kind = shipped_link_kinds()[name]
    sizes = np.array([each.message_bytes for each in kind.measured], float)
    seconds = sizes / np.array([each.bandwidth_bytes_per_s for each in kind.measured])
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency_s, inverse), *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    assert kind.latency_s == pytest.approx(latency_s, rel=0.005)
    assert kind.bandwidth_bytes_per_s == pytest.approx(1 / inverse, rel=0.005)


@pytest.mark.parametrize("name", MEASURED)
def test_the_fits_miss_published_bandwidths_by_about_a_quarter_at_most(name: str) -> None:
    error = shipped_link_kinds()[name].fit_error()
    assert error is not None
    assert error <= 0.26


def test_a_kind_without_measurements_has_no_fit_error() -> None:
    assert shipped_link_kinds()["nvlink4"].fit_error() is None


def test_the_fit_error_is_that_of_the_worst_message() -> None:
    kind = LinkKind.from_mapping(
        {
            "name": "wire",
            "description": "two cans",
            "latency_s": 1,
            "bandwidth_bytes_per_s": 10,
            "measured": [
                {"message_bytes": 10, "bandwidth_bytes_per_s": 5},
                {"message_bytes": 30, "bandwidth_bytes_per_s": 10},
            ],
            "source": "this test",
        }
    )
    assert kind.bandwidth_at(10) == 5
    assert kind.fit_error() == pytest.approx(0.25)


@pytest.mark.parametrize("name", shipped_link_kinds())
def test_kinds_stay_below_nominal_and_follow_the_rule_that_they_state(name: str) -> None:
    kind = shipped_link_kinds()[name]
    nominal = kind.nominal_bandwidth_bytes_per_s
    if nominal is not None:
        assert 0.5 * nominal < kind.bandwidth_bytes_per_s < nominal
    stated = SAME_AS.search(kind.source)
    assert bool(stated) == (kind.source.startswith("rule: "))
    if stated:
        other = shipped_link_kinds()[stated["other"]]
        assert other.nominal_bandwidth_bytes_per_s
        assert nominal
        share = other.bandwidth_bytes_per_s / other.nominal_bandwidth_bytes_per_s
        assert float(stated["share"]) == pytest.approx(share, abs=6e-4)
        assert kind.latency_s == other.latency_s
        assert kind.bandwidth_bytes_per_s == pytest.approx(share * nominal, rel=0.006)


def test_a_kind_stands_wherever_a_cluster_gives_a_link() -> None:
    data = two_nodes(inside="nvlink4", between="infiniband-ndr")
    data["nodes"][0]["reverse_link"] = "pcie5"
    data["inter_region_link"] = "same-continent"
    data["link_overrides"] = [
        {"between": ["first", "second"], "link": "ethernet-10", "reverse_link": "ethernet-1"}
    ]
    cluster = Cluster.from_mapping(data)
    assert cluster.nodes[0].link == link_of("nvlink4")
    assert cluster.nodes[0].reverse_link == link_of("pcie5")
    assert cluster.inter_node_link == link_of("infiniband-ndr")
    assert cluster.inter_region_link == link_of("same-continent")
    assert cluster.link_overrides[0].link == link_of("ethernet-10")
    assert cluster.link_overrides[0].reverse_link == link_of("ethernet-1")


def test_a_named_link_is_written_as_its_numbers_and_means_the_same() -> None:
    named = Cluster.from_mapping(two_nodes(inside="nvlink3", between="none"))
    assert named.inter_node_link == NO_LINK
    assert named.to_mapping()["nodes"][0]["link"] == link_of("nvlink3").to_mapping()
    again = Cluster.from_mapping(named.to_mapping())
    assert (again, again.fingerprint()) == (named, named.fingerprint())


@pytest.mark.parametrize("wrong", ["nvlink9", "NVLink4", ""])
def test_an_unknown_kind_is_one_line_with_its_field_and_all_kinds(wrong: str) -> None:
    with pytest.raises(DocumentError) as caught:
        Cluster.from_mapping(two_nodes(inside=wrong), "mine.yaml")
    known = ", ".join(["none", *shipped_link_kinds()])
    line = f"link: unknown kind of link {wrong!r}; known: {known}"
    assert caught.value.problems == (f"nodes.0.{line}", f"nodes.1.{line}")


def test_a_number_is_no_kind() -> None:
    with pytest.raises(DocumentError, match=r"inter_node_link: must be a mapping with latency_s"):
        Cluster.from_mapping(two_nodes(between=4))
