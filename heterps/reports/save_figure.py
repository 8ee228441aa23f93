"""Figures become files in one move, as documents do."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_configs.documents.yaml_files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 150


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that the file's ending says.

    Raises:
        HeterpsError: The file cannot be written.
    """
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    write_bytes(path, content.getvalue())
