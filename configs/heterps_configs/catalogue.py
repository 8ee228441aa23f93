"""The shipped device catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from heterps_configs.device import DeviceCatalogue, DeviceType
from heterps_configs.document import parse_yaml
from heterps_configs.errors import UnknownNameError


@lru_cache(maxsize=1)
def shipped_device_types() -> dict[str, DeviceType]:
    """All shipped device types by name."""
    file = files("heterps_configs") / "devices" / "catalogue.yaml"
    catalogue = DeviceCatalogue.from_mapping(parse_yaml(file.read_text(), "catalogue"), "catalogue")
    return {entry.name: entry for entry in catalogue.device_types}


def device_type_named(name: str, also_known: Iterable[str] = ()) -> DeviceType:
    """The shipped device type called `name`.

    Raises:
        UnknownNameError: With near names.
    """
    types = shipped_device_types()
    if name not in types:
        raise UnknownNameError("device type", name, [*types, *also_known])
    return types[name]
