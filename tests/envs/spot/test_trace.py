"""Spot traces: what the file may say, what it does to a cluster, and traces that are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Cluster
from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.library import load_cluster
from heterps_envs.spot.availability import mean_available_devices, num_changes, spot_moments
from heterps_envs.spot.generator import SpotDraw, SpotRates, draw_spot_trace
from heterps_envs.spot.trace import parse_spot_trace, read_spot_trace, spot_trace_text

HEADER = "time_s,scope,name,event,count,price_usd_per_hour\n"


def cluster() -> Cluster:
    return load_cluster("spot-two-regions")


def available(text: str) -> list[int]:
    return [len(m.available) for m in spot_moments(parse_spot_trace(HEADER + text), cluster())]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    rate=st.floats(0, 3),
    node_rate=st.floats(0, 1),
    absence_s=st.floats(1, 10**5),
)
def test_a_drawn_trace_reads_back_as_itself(
    seed: int, rate: float, node_rate: float, absence_s: float
) -> None:
    draw = SpotDraw(
        duration_s=10_000,
        device=SpotRates(rate, absence_s),
        node=SpotRates(node_rate, absence_s),
    )
    trace = draw_spot_trace(cluster(), draw, seed)
    read = parse_spot_trace(spot_trace_text(trace, ["made up"]))
    assert [replace(event, line=0) for event in read.events] == list(trace.events)
    assert read.duration_s == trace.duration_s
    moments = spot_moments(read, cluster())
    assert [m.time_s for m in moments] == sorted({m.time_s for m in moments})
    assert min(min(m.price_usd_per_hour.values()) for m in moments) > 0


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_a_drawn_device_is_there_when_neither_it_nor_its_node_is_away(seed: int) -> None:
    rates = SpotRates(2.0, 1500.0)
    both = SpotDraw(duration_s=20_000, device=rates, node=rates, price_spread=0)
    alone = SpotDraw(duration_s=20_000, device=rates, node=SpotRates(0, 1), price_spread=0)
    nodes = SpotDraw(duration_s=20_000, device=SpotRates(0, 1), node=rates, price_spread=0)
    histories = [
        spot_moments(draw_spot_trace(cluster(), draw, seed), cluster())
        for draw in (both, alone, nodes)
    ]
    for time_s in sorted({m.time_s for history in histories for m in history}):
        there = [
            set([m for m in history if m.time_s <= time_s][-1].available) for history in histories
        ]
        assert there[0] == there[1] & there[2]


def test_rates_are_those_that_were_asked_for() -> None:
    draw = SpotDraw(
        duration_s=3 * 10**6, device=SpotRates(0.5, 3600), node=SpotRates(0, 1), price_spread=0
    )
    moments = spot_moments(draw_spot_trace(cluster(), draw, 1), cluster())
    # Up for 2 h and down for 1 h on average.
    assert mean_available_devices(moments, 3 * 10**6) / 16 == pytest.approx(2 / 3, rel=0.02)
    assert num_changes(moments)[0] == pytest.approx(16 * 3 * 10**6 / 3600 / 3, rel=0.05)


def test_a_type_with_rates_of_its_own_is_lost_more_often() -> None:
    draw = SpotDraw(by_type={"T4": SpotRates(5.0, 600)}, device=SpotRates(0.01, 600))
    events = draw_spot_trace(cluster(), draw).events
    lost = [event.name for event in events if event.event == "lost" and event.scope == "device"]
    assert sum("t4" in name for name in lost) > 10 * sum("t4" not in name for name in lost)
    with pytest.raises(UnknownNameError, match="T4"):
        draw_spot_trace(cluster(), SpotDraw(by_type={"T5": SpotRates(1, 1)}))
    with pytest.raises(HeterpsError, match="must be above 0"):
        SpotDraw(duration_s=0)


def test_counted_devices_go_from_the_end_and_come_back_from_the_front() -> None:
    text = "10,type,A10G,lost,3,\n20,type,A10G,back,1,\n30,type,A10G,available,4,\n"
    moments = spot_moments(parse_spot_trace(HEADER + text), cluster())
    a10g = [[n for n in m.available if "a10g" in n] for m in moments]
    assert a10g == [
        [f"us-a10g-{i}" for i in numbers] for numbers in ([0, 1, 2, 3], [0], [0, 1], [0, 1, 2, 3])
    ]


def test_events_of_one_time_are_one_moment_and_what_changes_nothing_is_none() -> None:
    assert available("5,node,us-t4-node,lost,,\n5,device,us-a10g-0,lost,,\n") == [16, 11]
    assert available("5,device,us-a10g-0,back,,\n6,type,T4,price,,0.2\n") == [16, 16]
    assert available("0,type,T4,available,0,\n9,trace,,end,,\n") == [8]


def test_prices_change_with_the_rows_that_name_one() -> None:
    text = "10,type,T4,price,,0.5\n20,device,us-t4-1,lost,,0.7\n"
    moments = spot_moments(parse_spot_trace(HEADER + text), cluster())
    assert [m.price_usd_per_hour["us-t4-1"] for m in moments] == [0.2, 0.5, 0.7]
    assert [m.price_usd_per_hour["eu-t4-1"] for m in moments] == [0.22, 0.5, 0.5]
    assert mean_available_devices(moments, 40) == 15.5
    assert num_changes(moments) == (1, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line must name the columns time_s, scope"),
        ("time_s,device\n", "found: time_s, device"),
        (HEADER, "has no events"),
        (HEADER + "x,type,T4,lost,,\n", "line 2, time_s: must be a number of seconds"),
        (HEADER + "1,kind,T4,lost,,\n", "line 2, scope: must be one of device, node, type, trace"),
        (HEADER + "1,type,T4,gone,,\n", "line 2, event: must be one of lost, back, available"),
        (HEADER + "1,type,,lost,,\n", "line 2, name: is missing; expected the name of a type"),
        (HEADER + "1,type,T4,lost,-1,\n", "line 2, count: must be a whole number of devices"),
        (HEADER + "1,device,a,lost,2,\n", "line 2, count: belongs to the events lost, back and"),
        (HEADER + "1,type,T4,available,,\n", "line 2, count: the event 'available' needs"),
        (HEADER + "1,type,T4,price,,\n", "line 2, price_usd_per_hour: is missing"),
        (HEADER + "1,type,T4,price,,nan\n", "line 2, price_usd_per_hour: must be a number"),
        (HEADER + "1,type,T4,price,,inf\n", "line 2, price_usd_per_hour: must be a number"),
        (HEADER + "1,type,T4,price,,-1\n", "line 2, price_usd_per_hour: must be a number"),
        (HEADER + "1_0,type,T4,lost,,\n", "line 2, time_s: must be a number of seconds"),
        (HEADER + "\u0661,type,T4,lost,,\n", "line 2, time_s: must be a number of seconds"),
        (HEADER + "1,type,T4,lost,\u0661,\n", "line 2, count: must be a whole number of devices"),
        (HEADER + "1,type,T4,price,,1\u2028\n", "line 2: must have no control characters"),
        (HEADER + "1,trace,,lost,,\n", "line 2, event: 'end' and the scope 'trace' belong"),
        (HEADER + "1,type,T4,lost,,,7\n", "line 2: has 7 cells for 6 columns"),
        (
            HEADER + "# a remark\n9,type,T4,lost,,\n\n1,type,T4,back,,\n",
            "line 5, time_s: 1 lies before 9 of line 3",
        ),
        (HEADER + "1,trace,,end,,\n2,type,T4,lost,,\n", "line 3: stands after the row 'end'"),
    ],
)
def test_what_is_wrong_is_said_by_line_and_column(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse_spot_trace(text, "spot.csv")
    assert str(error.value).startswith("spot.csv: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,type,T5,lost,,", "line 2, name: the cluster has no type 'T5'; did you mean T4"),
        ("1,node,xyz,lost,,", "known: eu-t4-node, eu-v100-node"),
        ("1,type,T4,lost,9,", "line 2, count: 9 devices of 'T4' lost, but 8 of 8 are there"),
        ("1,type,T4,back,1,", "line 2, count: 1 devices of 'T4' back, but 8 of 8 are there"),
        ("1,type,T4,available,9,", "line 2, count: 9 devices of 'T4' available"),
    ],
)
def test_a_trace_of_another_cluster_is_refused_by_line(row: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        spot_moments(parse_spot_trace(HEADER + row), cluster())
    assert message in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"spot\.csv: cannot be read"):
        read_spot_trace(tmp_path / "spot.csv")
    (tmp_path / "spot.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeterpsError, match="not a text file"):
        read_spot_trace(tmp_path / "spot.csv")


@pytest.mark.parametrize(
    "draw",
    [
        SpotDraw(duration_s=3.6e12),
        SpotDraw(device=SpotRates(1e9, 60)),
        SpotDraw(price_every_s=1e-6),
    ],
    ids=["1e9 hours", "1e9 interruptions", "a price each microsecond"],
)
def test_a_trace_of_endless_rows_is_counted_and_not_drawn(draw: SpotDraw) -> None:
    with pytest.raises(HeterpsError, match="rows; at most 500000 are drawn"):
        draw_spot_trace(cluster(), draw)


@pytest.mark.parametrize("cell", ["nan", "inf", "1e300", "-1"])
def test_a_time_that_no_trace_has_is_refused_with_the_range(cell: str) -> None:
    with pytest.raises(DocumentError, match=r"line 2, time_s: must be .* 0 to 1e\+09, got"):
        parse_spot_trace(f"{HEADER}{cell},node,a,lost,,\n")
