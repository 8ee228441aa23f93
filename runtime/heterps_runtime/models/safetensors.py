"""Weights from a folder of safetensors files, as Hugging Face's `save_pretrained` writes it.

    FOLDER/config.json
           model.safetensors, or several files and model.safetensors.index.json

Only the headers of the files are read in whole; of the tensors each rank reads its own, one after
another. A tied parameter may be stored under any of its names. What a base model saved (without the
head) is found with and without the prefix that the model with a head puts in front.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX_FILE = "model.safetensors.index.json"
_MOST_NAMED = 5
# What old checkpoints call the parameters of a layer normalisation.
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


class SafetensorsFolder:
    """The tensors of a folder, by key.

    Args:
        folder: Holds `*.safetensors`.

    Attributes:
        file_of: The file of each key.

    Raises:
        HeterpsError: The folder has none, one that its index names is missing, one cannot be read,
            or the safetensors library is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of = {key: path for path in _files(folder) for key in _keys(path)}
        self._prefix = ""
        self._unexpected: dict[str, list[str]] | None = None

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """Reads some parameters of a model.

        Args:
            module: The whole model, its parameters on the meta device.
            names: Canonical names (a tied parameter has its first name).

        Returns:
            CPU tensors in the format of the model's parameters.

        Raises:
            HeterpsError: A parameter is in no file, or has another shape.
        """
        self._prefix = base_prefix(module)
        if self._unexpected is None:
            self._unexpected = self._unknown_keys(module)
        wanted = {name: p for name, p in module.named_parameters() if name in names}
        keys = self._stored(module, wanted)
        # Copies: what the library returns is the file itself, mapped into memory.
        return {
            name: self._read(keys[name], parameter.shape, name).to(parameter.dtype, copy=True)
            for name, parameter in wanted.items()
        }

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """Reads persistent buffers; those that no file has keep what the constructor gave them."""
        for name, buffer in buffers.items():
            key = self._key(name)
            if key is not None:
                buffer.copy_(self._read(key, buffer.shape, name))

    def remarks(self) -> list[str]:
        """Which keys the model has no use for, a line for each file."""
        return [
            f"{self.folder / name}: the model has no use for {shown(keys)}"
            for name, keys in (self._unexpected or {}).items()
        ]

    def _unknown_keys(self, module: nn.Module) -> dict[str, list[str]]:
        """Keys without a parameter or buffer, by file name."""
        names = [*module.state_dict(), *(name for name, _ in module.named_buffers())]
        known = {self._key(name) for name in names}
        # Some architectures say which keys of old checkpoints mean nothing.
        old = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
        found: dict[str, list[str]] = {}
        for key, path in self.file_of.items():
            if key not in known and not any(re.search(pattern, key) for pattern in old):
                found.setdefault(path.name, []).append(key)
        return found

    def _stored(self, module: nn.Module, wanted: Mapping[str, nn.Parameter]) -> dict[str, str]:
        """The key of each wanted parameter."""
        names = {id(parameter): name for name, parameter in wanted.items()}
        keys: dict[str, str] = {}
        for alias, parameter in module.named_parameters(remove_duplicate=False):
            name = names.get(id(parameter))
            key = self._key(alias) if name is not None else None
            if name is not None and key is not None:
                keys.setdefault(name, key)
        missing = [name for name in wanted if name not in keys]
        if missing:
            raise HeterpsError(
                f"{self._where()}: has no weights for {shown(missing)}; is it another model?"
            )
        return keys

    def _key(self, name: str) -> str | None:
        """The key that a name of the model is stored under."""
        old = name
        for new, before in _OLD_NAMES.items():
            old = old.replace(new, before)
        for spelling in (name, old):
            for key in (spelling, spelling.removeprefix(self._prefix), self._prefix + spelling):
                if key in self.file_of:
                    return key
        return None

    def _read(self, key: str, shape: torch.Size, name: str) -> Tensor:
        path = self.file_of[key]
        with _opened(path) as file:
            found = tuple(file.get_slice(key).get_shape())
            if found != tuple(shape):
                raise HeterpsError(
                    f"{path}: {key} has shape {found}, and {name} of the model {tuple(shape)}"
                )
            tensor: Tensor = file.get_tensor(key)
        return tensor

    def _where(self) -> str:
        """The file to blame for what is in none."""
        files = sorted(set(self.file_of.values()))
        return str(files[0] if len(files) == 1 else self.folder / INDEX_FILE)


class StateDict(SafetensorsFolder):
    """The tensors of a `state_dict`, which this process has.

    Args:
        tensors: By key, as a folder's.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.folder = Path()
        self.file_of = dict.fromkeys(tensors, Path("state_dict"))
        self._tensors = tensors
        self._prefix = ""
        self._unexpected = None

    def _read(self, key: str, shape: torch.Size, name: str) -> Tensor:
        tensor = self._tensors[key].detach()
        if tensor.shape != shape:
            raise HeterpsError(
                f"state_dict: {key} has shape {tuple(tensor.shape)}, and {name} of the model "
                f"{tuple(shape)}"
            )
        return tensor.cpu()

    def _where(self) -> str:
        return "state_dict"


def base_prefix(module: nn.Module) -> str:
    """What a Hugging Face model with a head puts in front of the names of its base model."""
    prefix = getattr(module, "base_model_prefix", "")
    return f"{prefix}." if isinstance(prefix, str) and prefix else ""


def shown(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if index.is_file():
        content = read_yaml(index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(weight_map, dict):
            raise HeterpsError(f"{index}: weight_map: expected a file for each tensor")
        names = sorted({str(name) for name in weight_map.values()})
        outside = next((name for name in names if name != Path(name).name or "\0" in name), None)
        if outside is not None:
            raise HeterpsError(f"{index}: names {outside!r}, which is no file of the folder")
        files = [folder / name for name in names]
        for path in files:
            if not path.is_file():
                raise HeterpsError(f"{index}: names {path.name}, which is not in the folder")
        return files
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise HeterpsError(
            f"{folder}: has no weights; expected *.safetensors, as save_pretrained writes them"
        )
    return files


def _keys(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise HeterpsError(
            "weights are read by the safetensors library: pip install 'heterps[hf]'"
        ) from None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise HeterpsError(f"{path}: cannot be read: {error}") from None
