"""torch, imported so that what its C++ code merely warns of stays off the terminal.

The store of an elastic run warns of every device that goes in the midst of an answer, for which it
has words that nobody can use; the run says itself that the device is lost.
"""

from __future__ import annotations

import os

_VARIABLE = "TORCH_CPP_LOG_LEVEL"


def import_torch() -> None:
    """Imports torch, unless a user has chosen a level.

    torch reads the level once. Processes that are started later have the usual one: their warnings
    stand in their logs.
    """
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "ERROR"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
