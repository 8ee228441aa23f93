"""Trained policies: weights and plain data in one .npz file, read without torch."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heterps_configs import library
from heterps_configs.documents.yaml_files import write_bytes
from heterps_configs.errors import HeterpsError

Weights = NDArray[np.float32]
_META = "meta"
LARGEST_POLICY_BYTES = 2**28
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class StoredPolicy(ABC):
    """A trained network as NumPy arrays.

    Attributes:
        weights: Parameters by torch's names: `layer.weight` (out, in), `layer.bias` (out,).
        meta: Plain data: feature version, training config, seed, command, scores.
        problems: What the file calls the problems that it places; None: chains of layers.
        wrong_problems: What is said of a policy for other problems.
        feature_versions: Of the features that policies of this class may read.
    """

    problems: ClassVar[str | None]
    wrong_problems: ClassVar[str]
    feature_versions: ClassVar[tuple[int, ...]]

    def __init__(self, weights: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        self.weights = {
            name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()
        }
        self.meta = dict(meta)
        self._transposed = {
            name.removesuffix(".weight"): np.ascontiguousarray(value.T)
            for name, value in self.weights.items()
            if name.endswith(".weight")
        }

    @property
    @abstractmethod
    def feature_version(self) -> int:
        """Of the features that it reads."""

    @property
    def hidden(self) -> int:
        """Width of the layers that score candidates."""
        return int(self.weights["candidate_hidden.weight"].shape[0])

    @property
    def num_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(value.size for value in self.weights.values())

    @classmethod
    def load(cls, reference: str | os.PathLike[str]) -> Self:
        """Reads a policy.

        Args:
            reference: Path of a .npz file, or a name that `heterps_configs.library.find` knows.

        Raises:
            HeterpsError: Nothing of that name, not a policy for such problems, or one for other
                features.
        """
        weights, meta = _read(reference)
        name = os.fspath(reference)
        if meta.get("problems") != cls.problems:
            raise HeterpsError(f"{os.fspath(reference)}: {cls.wrong_problems}")
        if meta.get("feature_version") not in cls.feature_versions:
            known = " and ".join(str(version) for version in cls.feature_versions)
            raise HeterpsError(
                f"{os.fspath(reference)}: was trained on features of version "
                f"{meta.get('feature_version')}; this heterps has version {known}: train it again"
            )
        hidden = weights.get("candidate_hidden.bias", np.empty(0)).size
        _check_weights(name, weights, cls.shapes(hidden, meta["feature_version"], weights))
        return cls(weights, meta)

    @classmethod
    @abstractmethod
    def shapes(
        cls, hidden: int, feature_version: int, weights: Mapping[str, NDArray[Any]]
    ) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter: compiled searches read them without looking.

        Args:
            hidden: Width of the layers that score candidates.
            feature_version: Of the features that the policy reads.
            weights: What the file has; some other widths follow from it.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy in one move.

        Raises:
            HeterpsError: The file cannot be written.
        """
        kind = {} if self.problems is None else {"problems": self.problems}
        meta = {**self.meta, **kind, "feature_version": self.feature_version}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {_META: np.array(json.dumps(meta)), **self.weights}
        np.savez_compressed(buffer, **arrays)
        write_bytes(path, buffer.getvalue())

    def _product(self, layer: str, values: Weights) -> Weights:
        return np.asarray(values @ self._transposed[layer], np.float32)

    def _linear(self, layer: str, values: Weights) -> Weights:
        out = self._product(layer, values)
        bias = self.weights.get(f"{layer}.bias")
        return out if bias is None else out + bias


def problems_of(reference: str | os.PathLike[str]) -> str | None:
    """What a policy file calls the problems that it places; None: chains of layers.

    Raises:
        HeterpsError: Nothing of that name, or no policy.
    """
    problems = _read(reference)[1].get("problems")
    return None if problems is None else str(problems)


def finite_or_none(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Scores as JSON has them: null in place of infinity, where some problem has no placement."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def _read(reference: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Weights by torch's names, and the plain data beside them."""
    try:
        content = library.find("policies", reference).read_bytes()
        _check_sizes(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            meta = json.loads(str(archive[_META]))
            weights = {name: archive[name] for name in archive.files if name != _META}
    except HeterpsError:
        raise
    except Exception:
        # zipfile, zlib and NumPy each have errors of their own for bytes that are none of theirs.
        raise HeterpsError(
            f"{os.fspath(reference)}: is not a policy that `heterps train` wrote"
        ) from None
    if not isinstance(meta, dict):
        raise HeterpsError(f"{os.fspath(reference)}: is not a policy that `heterps train` wrote")
    return weights, meta


def _check_sizes(content: bytes) -> None:
    """Refuses arrays that are larger than policies are, by their headers.

    Raises:
        ValueError: An array has too many bytes, or holds anything but numbers and text.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        total = 0
        for entry in archive.infolist():
            with archive.open(entry) as file:
                read = _HEADERS[np.lib.format.read_magic(file)]
                shape, _, dtype = read(file)
            total += math.prod(shape) * dtype.itemsize
            if dtype.kind not in "fiuU" or not 0 <= total <= LARGEST_POLICY_BYTES:
                raise ValueError("is no policy")


def _check_weights(
    name: str, weights: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuses weights that are missing, of another shape, or no numbers."""
    for layer, shape in shapes.items():
        if layer not in weights:
            raise HeterpsError(f"{name}: the weights {layer!r} are missing")
        found = weights[layer].shape
        if found != shape:
            raise HeterpsError(
                f"{name}: the weights {layer!r} have the shape {found}; it must be {shape}"
            )
    for layer, values in weights.items():
        with np.errstate(over="ignore"):  # of float64
            is_finite = values.dtype.kind in "fiu" and np.isfinite(values.astype(np.float32)).all()
        if not is_finite:
            raise HeterpsError(f"{name}: the weights {layer!r} are not all finite numbers")
