"""The shipped device catalogue: complete, dated, and in plausible proportions."""

import re

import pytest

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import device_type_named, shipped_device_types
from heterps_configs.documents.link_kinds import shipped_link_kinds
from heterps_configs.errors import DocumentError, UnknownNameError
from heterps_configs.library import load_cluster

NEEDED = [
    *("H100-80G", "A100-40G", "A100-80G", "V100-16G", "V100-32G", "T4", "L4", "A10G", "P100"),
    *("RTX-3090", "RTX-4090", "cpu-core", "cpu-socket", "host-cpu"),
    *("emulated-4x", "emulated-2x", "emulated-1x"),
    *("H100-80G-PCIe", "H100-94G-NVL", "H200-141G", "B200-180G", "GH200-96G", "A100-40G-PCIe"),
    *("A100-80G-PCIe", "L40S", "A40", "RTX-A6000", "RTX-2080-Ti", "RTX-2080-8G", "RTX-5090"),
    *("V100-16G-PCIe", "P40", "Titan-RTX", "MI250X-GCD", "MI300X", "Gaudi-2", "Gaudi-3"),
    *("skylake-core", "sapphire-rapids-core", "zen2-core", "zen3-core", "zen4-core"),
]
DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")


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


@pytest.mark.parametrize("name", ["V100-16G", "V100-32G", "T4", "P100", "Titan-RTX"])
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


@pytest.mark.parametrize("name", shipped_device_types())
def test_every_card_says_what_it_is_and_which_links_it_has(name: str) -> None:
    entry = shipped_device_types()[name]
    assert set(entry.links) <= set(shipped_link_kinds())
    if entry.kind == "gpu":
        assert entry.vendor in ("nvidia", "amd", "intel")
        assert entry.architecture
        assert any(link.startswith("pcie") for link in entry.links)


@pytest.mark.parametrize("name", shipped_device_types())
def test_host_bandwidths_are_those_of_the_cards_pcie(name: str) -> None:
    entry = shipped_device_types()[name]
    if entry.kind == "cpu" or name == "GH200-96G":
        return
    (pcie,) = (link for link in entry.links if link.startswith("pcie"))
    assert entry.host_bandwidth_bytes_per_s == pytest.approx(
        0.8 * {"pcie3": 16e9, "pcie4": 32e9, "pcie5": 64e9}[pcie]
    )


@pytest.mark.parametrize("name", shipped_device_types())
def test_formats_are_those_that_the_hardware_has(name: str) -> None:
    entry = shipped_device_types()[name]
    old = entry.architecture in ("pascal", "volta", "turing")
    if entry.vendor == "nvidia":
        assert ("bfloat16" in entry.peak_flops_per_s) != old


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("A100-80G-PCIe", "A100-80G"),
        ("H100-80G-PCIe", "H100-80G"),
        ("H100-94G-NVL", "H100-80G"),
        ("H100-80G", "B200-180G"),
        ("V100-16G-PCIe", "V100-16G"),
        ("RTX-2080-Ti", "RTX-3090"),
        ("RTX-4090", "RTX-5090"),
        ("MI250X-GCD", "MI300X"),
    ],
)
def test_slower_cards_are_slower(shorter: str, longer: str) -> None:
    slow, fast = device_type_named(shorter), device_type_named(longer)
    assert slow.peak("float16") <= fast.peak("float16")
    assert slow.peak("float32") <= fast.peak("float32")


# What plans of existing clusters follow from: memory, peaks in float32, float16 and bfloat16,
# memory bandwidth, price.
FROZEN = {
    "H100-80G": (80e9, 67e12, 989e12, 989e12, 3.35e12, 6.88),
    "A100-80G": (80e9, 19.5e12, 312e12, 312e12, 2.039e12, 3.431),
    "A100-40G": (40e9, 19.5e12, 312e12, 312e12, 1.555e12, 2.745),
    "V100-32G": (32e9, 15.7e12, 125e12, 15.7e12, 900e9, 3.9),
    "V100-16G": (16e9, 15.7e12, 125e12, 15.7e12, 900e9, 3.06),
    "P100": (16e9, 9.3e12, 18.7e12, 9.3e12, 732e9, 1.46),
    "T4": (16e9, 8.1e12, 65e12, 8.1e12, 320e9, 0.526),
    "L4": (24e9, 30.3e12, 121e12, 121e12, 300e9, 0.805),
    "A10G": (24e9, 35e12, 70e12, 70e12, 600e9, 1.006),
    "RTX-3090": (24e9, 35.6e12, 71e12, 71e12, 936e9, 0.22),
    "RTX-4090": (24e9, 82.6e12, 165.2e12, 165.2e12, 1008e9, 0.34),
    "cpu-core": (8e9, 185.6e9, 185.6e9, 185.6e9, 6.4e9, 0.096),
    "cpu-socket": (256e9, 5.94e12, 5.94e12, 5.94e12, 204.8e9, 3.072),
}


@pytest.mark.parametrize("name", FROZEN)
def test_types_of_earlier_versions_keep_their_numbers(name: str) -> None:
    entry = device_type_named(name)
    assert FROZEN[name] == (
        entry.memory_bytes,
        *(entry.peak(dtype) for dtype in DTYPES),
        entry.memory_bandwidth_bytes_per_s,
        entry.price_usd_per_hour,
    )


OWN_TYPE = {
    "name": "card",
    "memory_bytes": 1,
    "peak_flops_per_s": {"float32": 1},
    "memory_bandwidth_bytes_per_s": 1,
    "price_usd_per_hour": 1,
}
LINK = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}
NODE = {"name": "n", "devices": [{"name": "g", "type": "card", "count": 2}], "link": LINK}


def test_clusters_of_earlier_versions_keep_their_fingerprints() -> None:
    data = {"name": "mine", "device_types": [OWN_TYPE], "nodes": [NODE]}
    assert Cluster.from_mapping(data).fingerprint() == "8ccd8000004dd8e1"
    assert load_cluster("h100-pod").fingerprint() == "98f8858f3cf8d524"


def test_a_type_of_ones_own_may_say_what_it_is() -> None:
    own = {**OWN_TYPE, "vendor": "amd", "architecture": "cdna3", "links": ["infinity-fabric4"]}
    cluster = Cluster.from_mapping({"name": "mine", "device_types": [own], "nodes": [NODE]})
    assert cluster.device_types[0].architecture == "cdna3"
    assert Cluster.from_mapping(cluster.to_mapping()) == cluster


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"links": ["nvlink3", "wire"]}, r"device_types\.0\.links\.1: unknown kind of link 'wire'"),
        ({"architecture": "Ampere"}, r"device_types\.0\.architecture: .*'Ampere'"),
        ({"vendor": "acme"}, r"device_types\.0\.vendor: must be 'nvidia', 'amd', 'intel' or"),
    ],
)
def test_what_a_type_is_has_known_words(wrong: dict[str, object], problem: str) -> None:
    own = {**OWN_TYPE, **wrong}
    with pytest.raises(DocumentError, match=problem):
        Cluster.from_mapping({"name": "mine", "device_types": [own], "nodes": [NODE]})
