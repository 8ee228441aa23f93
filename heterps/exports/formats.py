"""What an export is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Exported(NamedTuple):
    """Files of an export.

    Attributes:
        files: Name -> content.
        remarks: What the target does not do as the plan says, and what that costs.
    """

    files: Mapping[str, str]
    remarks: tuple[str, ...] = ()
