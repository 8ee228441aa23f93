"""Command lines of the examples that are programs: what is wrong with one is said in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from heterps_configs.errors import HeterpsError


class ExampleParser(argparse.ArgumentParser):
    """Reads the arguments of an example.

    Args:
        text: Docstring of the example; its first indented line says how it is started.
    """

    def __init__(self, text: str) -> None:
        starts = [line.strip() for line in text.splitlines() if line.startswith("    ")]
        super().__init__(
            usage=starts[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Ends the process with code 2."""
        self.exit(2, f"error: {message}; {self.format_usage()}")


def positive_count(text: str) -> int:
    """A number of steps, as the type of an argument."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What a user can mend ends the process with code 2 and without a traceback."""
    try:
        yield
    except (HeterpsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
