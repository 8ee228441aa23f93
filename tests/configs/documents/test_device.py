"""The shipped device catalogue: complete, dated, and in plausible proportions."""

import re

import pytest

from heterps_configs.documents.device import device_type_named, shipped_device_types
from heterps_configs.errors import UnknownNameError

NEEDED = [
    *("H100-80G", "A100-40G", "A100-80G", "V100-16G", "V100-32G", "T4", "L4", "A10G", "P100"),
    *("RTX-3090", "RTX-4090", "cpu-core", "cpu-socket", "host-cpu"),
    *("emulated-4x", "emulated-2x", "emulated-1x"),
]


@pytest.mark.parametrize("name", NEEDED)
def test_the_catalogue_has_the_promised_types(name: str) -> None:
    assert device_type_named(name).name == name


@pytest.mark.parametrize("name", shipped_device_types())
def test_every_number_has_a_source(name: str) -> None:
    entry = shipped_device_types()[name]
    assert entry.specification_source
    assert entry.price_source
    if entry.price_usd_per_hour:
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", entry.price_date)


@pytest.mark.parametrize("name", shipped_device_types())
def test_every_type_computes_in_float32(name: str) -> None:
    assert "float32" in shipped_device_types()[name].peak_flops_per_s


@pytest.mark.parametrize("name", ["V100-16G", "V100-32G", "T4", "P100"])
def test_cards_without_bfloat16_run_it_at_their_float32_rate(name: str) -> None:
    entry = device_type_named(name)
    assert "bfloat16" not in entry.peak_flops_per_s
    assert entry.peak("bfloat16") == entry.peak("float32") < entry.peak("float16")


def test_peaks_are_dense_not_sparse() -> None:
    assert device_type_named("A100-40G").peak("bfloat16") == 312e12
    assert device_type_named("H100-80G").peak("float16") == 989e12


@pytest.mark.parametrize(("name", "speed"), [("4x", 4), ("2x", 2), ("1x", 1)])
def test_emulated_types_are_slower_hosts_in_the_named_proportion(name: str, speed: int) -> None:
    entry, host = device_type_named(f"emulated-{name}"), device_type_named("host-cpu")
    assert entry.emulation is not None
    assert entry.emulation.host_device_type == host.name
    assert entry.emulation.slowdown == 16 / speed
    assert entry.peak("float32") == host.peak("float32") / entry.emulation.slowdown
    assert entry.memory_bandwidth_bytes_per_s * entry.emulation.slowdown == (
        host.memory_bandwidth_bytes_per_s
    )


def test_an_unknown_type_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown device type 'V100'; did you mean V100-16G"):
        device_type_named("V100")


def test_the_shared_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        shipped_device_types()["T4"] = device_type_named("L4")  # type: ignore[index]
