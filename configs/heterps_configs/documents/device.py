"""Device types: what one card or one CPU can do, and what it costs; the shipped catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from heterps_configs.documents.base import Document, Dtype, NumberFormat, compute_format
from heterps_configs.documents.numbers import (
    BytesPerSecond,
    Factor,
    FlopsPerSecond,
    MemoryBytes,
    Name,
    Number,
    UsdPerHour,
)
from heterps_configs.documents.yaml_files import parse_yaml, read_text
from heterps_configs.errors import UnknownNameError


class Emulation(Document):
    """An emulated device: it computes for real, then sleeps up to `slowdown` times that.

    Attributes:
        host_device_type: Type whose measured layer times are multiplied.
        slowdown: How many times slower than one host process; at least 1.
    """

    host_device_type: Name
    slowdown: Factor = Field(ge=1)


class DeviceType(Document):
    """One row of the catalogue.

    Attributes:
        memory_bytes: Usable memory of one device.
        peak_flops_per_s: Dense peak for each number format (no sparsity, no boost tricks).
        memory_bandwidth_bytes_per_s: Peak memory bandwidth.
        price_usd_per_hour: On-demand price of one device; 0 for a machine that is already paid for.
        price_source: Who asks that price.
        price_date: When it was read (YYYY-MM or YYYY-MM-DD).
        power_w: What the board may take; with `process_nm`, how long products take where the power
            limit holds them back. None: not known.
        process_nm: Nominal size of its transistors.
        vendor: Who makes it; with `architecture`, which types are alike.
        architecture: In lower case: ampere, cdna3, zen4, ...
        links: Kinds of links that it has (`link_kinds`), the fastest first. Shown only: a cluster
            says which one its devices use.
        host_bandwidth_bytes_per_s: Between the device and host memory, one way, both ways at a
            time; None: activations cannot be offloaded.
        emulation: Set for emulated devices only.
        fragmentation_share: Of a real GPU's memory, what lies idle in the blocks of PyTorch's
            caching allocator. Host memory and the limits of emulated devices have no such blocks.
    """

    name: Name
    kind: Literal["gpu", "cpu"] = "gpu"
    vendor: Literal["nvidia", "amd", "intel", "other"] = "other"
    architecture: str = Field(default="", pattern=r"^[a-z0-9-]*$", max_length=100)
    links: tuple[Name, ...] = ()
    memory_bytes: MemoryBytes
    peak_flops_per_s: Mapping[NumberFormat, FlopsPerSecond] = Field(min_length=1)
    memory_bandwidth_bytes_per_s: BytesPerSecond
    price_usd_per_hour: UsdPerHour
    price_source: str = ""
    price_date: str = ""
    specification_source: str = ""
    power_w: Number | None = Field(default=None, gt=0, le=1e5)
    process_nm: Number | None = Field(default=None, ge=1, le=1000)
    host_bandwidth_bytes_per_s: BytesPerSecond | None = None
    emulation: Emulation | None = None
    fragmentation_share: Number = Field(default=0.02, ge=0, lt=1)

    def peak(self, dtype: Dtype) -> float:
        """Peak FLOP/s in `dtype`; a type without that format runs it at its float32 rate."""
        return self.peak_flops_per_s.get(compute_format(dtype)) or self.peak_flops_per_s.get(
            "float32", min(self.peak_flops_per_s.values())
        )


class DeviceCatalogue(Document):
    """A file of device types."""

    device_types: tuple[DeviceType, ...]


@lru_cache(maxsize=1)
def shipped_device_types() -> Mapping[str, DeviceType]:
    """All shipped device types by name (read once, so read-only)."""
    catalogues = files("heterps_configs") / "devices"
    found: dict[str, DeviceType] = {}
    names = sorted(file.name for file in catalogues.iterdir() if file.name.endswith(".yaml"))
    for file in (catalogues / name for name in names):
        catalogue = DeviceCatalogue.from_mapping(
            parse_yaml(read_text(file, file.name), file.name), file.name
        )
        for entry in catalogue.device_types:
            assert entry.name not in found, f"{entry.name} stands twice"
            found[entry.name] = entry
    return MappingProxyType(found)


def device_type_named(name: str, also_known: Iterable[str] = ()) -> DeviceType:
    """The shipped device type called `name`.

    Raises:
        UnknownNameError: With near names.
    """
    types = shipped_device_types()
    if name not in types:
        raise UnknownNameError("device type", name, [*types, *also_known])
    return types[name]
