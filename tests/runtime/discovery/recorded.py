"""What tools print on hosts of several kinds, in their own formats; whole answers made of it."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_runtime.discovery.asking import Answer

# -- nvidia-smi --query-gpu=index,name,memory.total,uuid,pcie.link.gen.max,pcie.link.width.max,
# mig.mode.current --format=csv,noheader,nounits


def queried(
    name: str,
    mebibytes: int,
    count: int,
    *,
    first: int = 0,
    pcie: str = "4, 16",
    mig: str = "[N/A]",
) -> str:
    """Lines of equal cards."""
    return "\n".join(
        f"{index}, {name}, {mebibytes}, GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd, {pcie}, {mig}"
        for index in range(first, first + count)
    )


# -- nvidia-smi topo -m: its head is underlined in files, too, and columns are divided by tabs.

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def topology(rows: Sequence[Sequence[str]]) -> str:
    """The matrix of some GPUs and one network card."""
    names = [f"GPU{index}" for index in range(len(rows))]
    head = [*names, "NIC0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    lines = ["\t\x1b[4m" + "\t".join(head) + "\x1b[0m"]
    for name, row in zip(names, rows, strict=True):
        ways = "\t".join(" X " if way.strip() == "X" else way for way in row)
        lines.append(f"{name}\t{ways}\tPXB\t0-55,112-167\t0\t\tN/A")
    lines.append("NIC0\t" + "\t".join(["PXB"] * len(rows)) + "\t X \t\t\t\t")
    return "\n".join(lines) + "\n" + _LEGEND


def all_to_all(count: int, way: str) -> str:
    """The matrix of cards with one way between any two."""
    return topology([[" X " if i == j else way for j in range(count)] for i in range(count)])


def in_pairs(count: int, bridge: str, else_way: str) -> str:
    """The matrix of cards of which neighbours have a bridge."""
    return topology(
        [
            [" X " if i == j else bridge if i // 2 == j // 2 else else_way for j in range(count)]
            for i in range(count)
        ]
    )


# DGX-1: a cube of NVLinks; the cards that have none between them go through the sockets.
_DGX1 = """
X NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X SYS SYS SYS NV1
NV2 SYS SYS SYS X NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""
DGX1_TOPOLOGY = topology([line.split() for line in _DGX1.strip().splitlines()])


# -- nvidia-smi nvlink --status


def nvlinks(name: str, count: int, links: int, speed: str) -> str:
    """The links of some cards; one more is inactive."""
    lines = []
    for index in range(count):
        lines.append(f"GPU {index}: {name} (UUID: GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd)")
        lines += [f"\t Link {link}: {speed} GB/s" for link in range(links)]
        lines.append(f"\t Link {links}: <inactive>")
    return "\n".join(lines)


# -- the rest of a host

H100_HOST_PROCESSORS = "\n".join(
    f"processor\t: {index}\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n"
    f"physical id\t: {index // 56 % 2}\ncore id\t\t: {index % 56}"
    for index in range(224)
)
LAPTOP_LSCPU = """{
   "lscpu": [
      {"field": "Architecture:", "data": "aarch64", "children": [
         {"field": "CPU(s):", "data": "8"},
         {"field": "Vendor ID:", "data": "ARM", "children": [
            {"field": "Model name:", "data": "Neoverse-N1"}]}]}
   ]
}"""
INFINIBAND = "\n".join(
    [f"mlx5_{index}|InfiniBand|4: ACTIVE|400 Gb/sec (4X NDR)" for index in range(8)]
    + ["mlx5_8|Ethernet|4: ACTIVE|100 Gb/sec (4X EDR)", "mlx5_9|InfiniBand|1: DOWN|10 Gb/sec (4X)"]
)
ROCM = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status
{"card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297971712",
 "Card Series": "AMD Instinct MI300X", "Card Model": "0x74a1", "GFX Version": "gfx942"},
 "card1": {"VRAM Total Memory (B)": "206141652992", "Card series": "AMD Instinct MI300X"},
 "system": {"Driver version": "6.7.0"}}"""
ROCM_TOPOLOGY = (
    '{"system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI", "x": "PCIE"}}'
)


def answer(asked: str = "localhost", **changed: str) -> Answer:
    """An answer of a small host without GPU; sections are replaced or added by their names."""
    sections = {
        "host": "node-1\nLinux",
        "boot": "d18018e7-32d2-4ca6-9722-9a447141ca39",
        "memory": "MemTotal:       16384000 kB",
        "processors": "\n".join(
            f"processor\t: {index}\nmodel name\t: AMD EPYC 7763\nphysical id\t: 0\n"
            f"core id\t\t: {index}"
            for index in range(4)
        ),
        "affinity": "Cpus_allowed_list:\t0-3",
        "interfaces": "eth0 type=1 state=up speed=25000",
    }
    sections |= {name.replace("_", "-"): text for name, text in changed.items()}
    parts = [f"\n@heterps {name}\n{text}\n" for name, text in sections.items()]
    return Answer(asked, "Welcome! This is a banner.\n" + "".join(parts) + "\n@heterps end\n")


def h100_answer(asked: str = "localhost", name: str = "h100-1", **changed: str) -> Answer:
    """Eight H100 on an NVSwitch, with InfiniBand."""
    sections = {
        "host": f"{name}\nLinux",
        "boot": name,
        "memory": "MemTotal:       2113398604 kB",
        "processors": H100_HOST_PROCESSORS,
        "affinity": "Cpus_allowed_list:\t0-223",
        "interfaces": "enp1s0 type=1 state=up speed=100000\nib0 type=32 state=up speed=400000",
        "infiniband": INFINIBAND,
        "nvidia": queried("NVIDIA H100 80GB HBM3", 81559, 8, pcie="5, 16", mig="Disabled"),
        "nvidia_topology": all_to_all(8, "NV18"),
        "nvidia_nvlink": nvlinks("NVIDIA H100 80GB HBM3", 8, 18, "26.562"),
    }
    return answer(asked, **sections | changed)
