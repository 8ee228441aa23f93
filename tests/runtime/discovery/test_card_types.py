"""Names of cards, as drivers write them, and the catalogue's types."""

from __future__ import annotations

import pytest

from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_runtime.discovery.card_types import match_card

SHIPPED = shipped_device_types()


def row(name: str, gigabytes: int, source: str = "") -> DeviceType:
    return SHIPPED["L4"].changed(
        name=name, memory_bytes=gigabytes * 10**9, specification_source=source
    )


# A catalogue with forms of one model, as it may become.
FORMS = {
    entry.name: entry
    for entry in [
        SHIPPED["H100-80G"],
        row("H100-80G-PCIe", 80),
        row("H100-94G-NVL", 94),
        row("A100-80G", 80, "data sheet, 80GB SXM"),
        row("A100-80G-PCIe", 80),
        row("RTX-A6000", 48),
        row("RTX-6000-Ada", 48),
        row("MI300X", 192),
        row("MI250X-GCD", 64),
        row("GH200-96G", 96),
    ]
}


@pytest.mark.parametrize(
    ("card", "mebibytes", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80G"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80G"),
        ("A100-SXM4-40GB", 40536, "A100-40G"),
        ("Tesla V100-SXM2-32GB", 32510, "V100-32G"),
        ("Tesla V100-SXM2-16GB", 16160, "V100-16G"),
        ("Tesla P100-PCIE-16GB", 16276, "P100"),
        ("Tesla T4", 15109, "T4"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA A10G", 22731, "A10G"),
        ("NVIDIA GeForce RTX 3090", 24576, "RTX-3090"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090"),
    ],
)
def test_cards_of_the_shipped_catalogue_are_found(card: str, mebibytes: int, name: str) -> None:
    match = match_card(card, mebibytes * 2**20, SHIPPED)
    assert (match.type.name, match.is_exact) == (name, True)


@pytest.mark.parametrize(
    ("card", "mebibytes", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80G"),
        ("NVIDIA H100 PCIe", 81559, "H100-80G-PCIe"),
        ("NVIDIA H100 NVL", 95830, "H100-94G-NVL"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80G"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80G-PCIe"),
        ("NVIDIA RTX A6000", 49140, "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada"),
        ("AMD Instinct MI300X", 196592, "MI300X"),
        ("AMD INSTINCT MI250X (MCM) OAM AC MBA", 65520, "MI250X-GCD"),
        ("NVIDIA GH200 480GB", 97871, "GH200-96G"),
    ],
)
def test_forms_of_one_model_are_told_apart(card: str, mebibytes: int, name: str) -> None:
    match = match_card(card, mebibytes * 2**20, FORMS)
    assert (match.type.name, match.is_exact) == (name, True)


@pytest.mark.parametrize(
    ("card", "mebibytes", "nearest", "why"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "RTX-3090", "no type has its name"),
        ("NVIDIA GeForce RTX 4090 D", 24564, "RTX-4090", "no type has its name"),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX-3090", "no type has its name"),
        ("NVIDIA A100-SXM-64GB", 65000, "A100-80G", "it has another memory"),
        ("Tesla V100-PCIE-16GB", 16160, "V100-16G", "it is of another form, PCIe"),
        ("GRID A100-10C", 10240, None, "no type has its name"),
        ("Graphics Device", 8000, None, "no type has its name"),
        ("NVIDIA A100", None, "A100-80G", "its memory is not reported"),
    ],
)
def test_a_near_card_is_no_equal_one(
    card: str, mebibytes: int | None, nearest: str | None, why: str
) -> None:
    types = {name: SHIPPED[name] for name in (
        "A100-80G", "A100-40G", "V100-32G", "V100-16G", "T4", "RTX-3090", "RTX-4090", "cpu-socket",
    )}  # fmt: skip
    match = match_card(card, mebibytes and mebibytes * 2**20, types)
    assert (match.is_exact, match.why_not) == (False, why)
    assert nearest in (None, match.type.name)
    assert match.type.kind == "gpu"


def test_of_equally_near_types_the_slowest_lends_its_peaks() -> None:
    types = {name: SHIPPED[name] for name in ("RTX-3090", "RTX-4090", "H100-80G")}
    match = match_card("NVIDIA RTX 5000 Something", 24564 * 2**20, types)
    assert match.type.name == "RTX-3090"


def test_every_gpu_of_the_catalogue_is_found_by_its_own_name() -> None:
    """Two rows that read alike would make one of them unreachable."""
    for entry in SHIPPED.values():
        if entry.kind == "gpu":
            match = match_card(entry.name, entry.memory_bytes, SHIPPED)
            assert match.is_exact
            assert match.type.name == entry.name
