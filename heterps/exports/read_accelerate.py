"""accelerate's `device_map`, read back: which layer of a profile is at which place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.yaml_files import parse_json
from heterps_configs.errors import HeterpsError

Place = int | str


def read_device_map(text: str, source: str) -> dict[str, Place]:
    """Module path -> GPU number or `cpu`.

    Raises:
        HeterpsError: It is something else, or keeps modules on a disk.
    """
    data = parse_json(text, source, is_unique=True)
    if not isinstance(data, dict) or not data:
        raise HeterpsError(f"{source}: expected a mapping of modules to devices")
    return {str(path): _place(place, str(path), source) for path, place in data.items()}


def _place(found: object, path: str, source: str) -> Place:
    number = found.removeprefix("cuda:") if isinstance(found, str) else found
    if isinstance(number, str) and number.isdecimal():
        return int(number)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    if found == "cpu":
        return "cpu"
    raise HeterpsError(
        f"{source}: {path!r} is on {found!r}; expected the number of a GPU, cuda:N, or cpu"
    )


def places_of_layers(
    profile: ModelProfile, device_map: Mapping[str, Place], source: str
) -> list[Place]:
    """Of each layer from front to back.

    accelerate keeps modules together that share a parameter: of a layer that shares one, such a
    module is where the other layer is, and the layer is where its other modules are.

    Raises:
        HeterpsError: A layer is at no place, or at two.
    """
    _warn_of_unknown(profile, device_map, source)
    found = [_modules_at(layer.name, device_map) for layer in profile.layers]
    for owner, users in profile.tied_layers.items():
        for user in users:
            elsewhere = {p: path for p, path in found[user].items() if p not in found[owner]}
            found[user] = elsewhere or found[user]
    return [
        _only_place(layer.name, places, source)
        for layer, places in zip(profile.layers, found, strict=True)
    ]


def _warn_of_unknown(profile: ModelProfile, device_map: Mapping[str, Place], source: str) -> None:
    parts = [part for layer in profile.layers for part in layer.name.split("+")]
    # Beside layers a model has modules that are none, such as tables of positions.
    known = {part.partition(".")[0] for part in parts}
    unknown = [path for path in device_map if path and path.partition(".")[0] not in known]
    if unknown:
        names = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        warnings.warn(f"{source}: {names}: no layer of {profile.name} is there", stacklevel=4)


def _modules_at(name: str, device_map: Mapping[str, Place]) -> dict[Place, str]:
    """The places of all modules that a layer is made of, with one of each; `a+b` are two."""
    found = dict[Place, str]()
    for part in name.split("+"):
        above = [path for path in device_map if _is_in(part, path)]
        if above:
            path = max(above, key=len)
            found.setdefault(device_map[path], path or "the model")
        for path in device_map:
            if path != part and path and _is_in(path, part):
                found.setdefault(device_map[path], path)
    return found


def _only_place(name: str, found: Mapping[Place, str], source: str) -> Place:
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise HeterpsError(f"{source}: has no device for {name}")
    words = " and ".join(f"{path} on {place}" for place, path in found.items())
    raise HeterpsError(f"{source}: {name} is one layer of the profile, and has {words}")


def _is_in(path: str, other: str) -> bool:
    """Whether a module is another one, or inside of it; the empty path is the whole model."""
    return other == "" or path == other or path.startswith(f"{other}.")
