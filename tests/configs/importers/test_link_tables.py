"""DT-FM's regions and Galvatron's tables: units, fits, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import DocumentError, UnknownNameError
from heterps_configs.importers import galvatron
from heterps_configs.importers.regions import load_region_links

PAIR = {"a": "Oregon", "b": "Ohio", "delay_ms": 49.0, "bandwidth_gbps": 1.6}


def write(tmp_path: Path, content: Any) -> Path:
    """A JSON file."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    return path


def test_milliseconds_and_gigabits_become_seconds_and_bytes_both_ways(tmp_path: Path) -> None:
    other = {**PAIR, "b": "Tokyo"}
    links = load_region_links(write(tmp_path, [PAIR, other]))
    assert links.regions == {"Oregon", "Ohio", "Tokyo"}
    assert links.between("Ohio", "Oregon") == links.between("Oregon", "Ohio")
    assert links.between("Oregon", "Ohio").latency_s == pytest.approx(0.049)
    assert links.between("Oregon", "Ohio").bandwidth_bytes_per_s == pytest.approx(2e8)
    with pytest.raises(UnknownNameError, match="unknown region 'Oregano'; did you mean Oregon"):
        links.between("Oregano", "Ohio")
    with pytest.raises(UnknownNameError, match="unknown pair of regions 'Ohio - Tokyo'"):
        links.between("Ohio", "Tokyo")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([PAIR, {**PAIR, "a": "Ohio", "b": "Oregon"}], r"1: the pair Ohio - Oregon stands twice"),
        ([{**PAIR, "bandwidth_gbps": 0}], r"0\.bandwidth_gbps: must be larger than 0, got 0"),
        ([{"a": "Oregon"}], r"0: 'b' is missing; it has a"),
        ({"a": 1}, "must be a list"),
    ],
)
def test_malformed_regions_are_named_with_their_place(
    tmp_path: Path, content: Any, message: str
) -> None:
    with pytest.raises(DocumentError, match=message):
        load_region_links(write(tmp_path, content))


def test_the_time_of_a_layer_is_the_slope_over_the_layers(tmp_path: Path) -> None:
    table = {
        "layernum[2]_bsz4_seq8": 30.0,
        "layernum[4]_bsz4_seq8": 50.0,
        "layertype_0_bsz4_seq8": 7,
    }
    times = galvatron.load_forward_times(write(tmp_path, table))
    fitted = times[galvatron.GalvatronBatch(4, 8)]
    assert fitted == pytest.approx((0.010, 0.010))
    del table["layernum[4]_bsz4_seq8"]
    with pytest.raises(DocumentError, match="batch size 4, sequence length 8: one number of"):
        galvatron.load_forward_times(write(tmp_path, table))


def test_bandwidths_are_read_by_group(tmp_path: Path) -> None:
    reduces = galvatron.load_all_reduce_bandwidths(
        write(tmp_path, {"allreduce_size_8_consec_0": 20.5, "allreduce_size_8_consec_1": 155})
    )
    assert reduces == {(8, False): 20.5e9, (8, True): 155e9}
    sends = galvatron.load_point_to_point_bandwidths(write(tmp_path, {"pp_size_4": 2}))
    assert sends == {4: 2e9}
    with pytest.raises(DocumentError, match="pp_length_4: expected a key of the form pp_size_"):
        galvatron.load_point_to_point_bandwidths(write(tmp_path, {"pp_length_4": 2}))
