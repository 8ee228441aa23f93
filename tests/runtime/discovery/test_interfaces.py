"""Networks that lead to other hosts."""

from __future__ import annotations

from heterps_runtime.discovery.interfaces import Interface, interfaces_of
from tests.runtime.discovery.recorded import INFINIBAND


def test_active_ports_of_infiniband_come_first() -> None:
    found = interfaces_of(
        {"infiniband": INFINIBAND, "interfaces": "enp1s0 type=1 state=up speed=100000"}
    )
    assert found == (
        Interface("mlx5_0", "infiniband", 400),
        Interface("enp1s0", "ethernet", 100),
    )


def test_the_fastest_interface_that_is_up_counts() -> None:
    lines = [
        "eno1 type=1 state=up speed=1000",
        "ens5 type=1 state=up speed=25000",
        "ens6 type=1 state=down speed=100000",
        "docker0 type=1 state=up speed=200000",
        "ib0 type=32 state=up speed=400000",
    ]
    found = interfaces_of({"interfaces": "\n".join(lines)})
    assert found == (Interface("ens5", "ethernet", 25),)


def test_a_virtual_card_has_a_network_of_unknown_speed() -> None:
    for speed in ("-1", "", "0", "4294967295"):
        found = interfaces_of({"interfaces": f"eth0 type=1 state=up speed={speed}"})
        assert [entry.gbit_per_s for entry in found] in ([None], []), speed
    assert interfaces_of({"interfaces": "eth0 type=1 state=up speed=-1"})[0].name == "eth0"
