"""The shipped device catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

from heterps_configs.documents.device import DeviceCatalogue, DeviceType
from heterps_configs.documents.yaml_files import parse_yaml, read_text
from heterps_configs.errors import UnknownNameError


@lru_cache(maxsize=1)
def shipped_device_types() -> Mapping[str, DeviceType]:
    """All shipped device types by name (read once, so read-only)."""
    file = files("heterps_configs") / "devices" / "catalogue.yaml"
    catalogue = DeviceCatalogue.from_mapping(
        parse_yaml(read_text(file, file.name), file.name), file.name
    )
    return MappingProxyType({entry.name: entry for entry in catalogue.device_types})


def device_type_named(name: str, also_known: Iterable[str] = ()) -> DeviceType:
    """The shipped device type called `name`.

    Raises:
        UnknownNameError: With near names.
    """
    types = shipped_device_types()
    if name not in types:
        raise UnknownNameError("device type", name, [*types, *also_known])
    return types[name]
