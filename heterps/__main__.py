"""The process of the `heterps` command, which `python -m heterps` is, too."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys

# New objects until the garbage collector looks at them, of those that are not freed by then.
COLLECT_AFTER = 20_000
_left_with = {"code": 1}


def _leave() -> None:
    """Ends the process without taking apart what the system frees at once.

    Python would go through millions of objects, and torch and numba through all that they compiled
    and registered: a second, and several on a busy machine, after all is done.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # As Python itself ends where its output cannot be written.
        os._exit(_left_with["code"] or 120)
    os._exit(_left_with["code"])


def entry() -> None:
    """Runs one command, and ends the process."""
    # Documents, tables and plans are many small objects in no cycles: to look for some among them
    # at every thousandth takes a twentieth of a command's time, and frees nothing.
    gc.set_threshold(COLLECT_AFTER)
    # Called after all that register later: what they end or write comes first.
    atexit.register(_leave)
    try:
        from heterps.cli.app import main

        main()
    except KeyboardInterrupt:
        # While the command line itself was loaded.
        _left_with["code"] = 130
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except SystemExit as stop:
        _left_with["code"] = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    _left_with["code"] = 0


if __name__ == "__main__":
    entry()
