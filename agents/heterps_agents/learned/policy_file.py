"""The file of a trained policy: weights and plain data in one .npz, read without torch."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_configs import library
from heterps_configs.documents.yaml_files import write_bytes
from heterps_configs.errors import HeterpsError

_META = "meta"


def finite_or_none(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Scores as JSON has them: null in place of infinity, where some problem has no placement."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def read_policy_file(
    reference: str | os.PathLike[str],
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Weights by torch's names, and the plain data beside them.

    Args:
        reference: Path of a .npz file, or a name that `heterps_configs.library.find` knows.

    Raises:
        HeterpsError: Nothing of that name, or not a policy.
    """
    content = library.find("policies", reference).read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            meta = json.loads(str(archive[_META]))
            weights = {name: archive[name] for name in archive.files if name != _META}
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        raise HeterpsError(
            f"{os.fspath(reference)}: is not a policy that `heterps train` wrote"
        ) from None
    return weights, meta


def check_feature_version(
    reference: str | os.PathLike[str], meta: Mapping[str, Any], *versions: int
) -> None:
    """Refuses a policy that was trained on other features than those of this heterps.

    Raises:
        HeterpsError: The versions differ.
    """
    if meta.get("feature_version") not in versions:
        known = " and ".join(str(version) for version in versions)
        raise HeterpsError(
            f"{os.fspath(reference)}: was trained on features of version "
            f"{meta.get('feature_version')}; this heterps has version {known}: train it again"
        )


def write_policy_file(
    path: str | os.PathLike[str], weights: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Writes a policy in one move.

    Raises:
        HeterpsError: The file cannot be written.
    """
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {_META: np.array(json.dumps(meta)), **weights}
    np.savez_compressed(buffer, **arrays)
    write_bytes(path, buffer.getvalue())
