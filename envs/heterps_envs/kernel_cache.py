"""Compiled kernels: where they are kept, and word of it when some have to be compiled.

numba keeps them beside the sources, or in the user's cache folder where the sources cannot be
written. Where neither can, it would refuse to load: then they last as long as the process.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VARIABLE = "NUMBA_CACHE_DIR"


def choose_folder() -> None:
    """Names a folder of this process to numba where there is none that lasts."""
    if sys.platform == "win32" or os.environ.get(_VARIABLE):
        return
    if _is_writable(_sources()) or _is_writable(_user_folder()):
        return
    # Never a name that others know: what lies there is executed.
    folder = tempfile.mkdtemp(prefix="heterps-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[_VARIABLE] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder
    warnings.warn(
        f"compiled kernels cannot be kept, for neither {_sources()} nor {_user_folder()} can be "
        f"written: every command compiles anew; set {_VARIABLE} to a folder of yours",
        stacklevel=2,
    )


def tell_when_compiling(tell: Callable[[], None]) -> None:
    """Calls once, before the first kernel that is in no cache is compiled by this process."""
    from numba.core import event

    class Listener(event.Listener):
        is_told = False

        def on_start(self, event: Any) -> None:
            if not self.is_told:
                self.is_told = True
                tell()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


def _sources() -> Path:
    return Path(__file__).parent


def _user_folder() -> Path:
    """Where numba's own rules lead."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "numba"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"


def _is_writable(folder: Path) -> bool:
    """Or could be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
