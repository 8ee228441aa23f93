"""What callers of public functions pass, checked at the door: Python's own error would come late.

Front doors check the types of what they keep or hand on; documents check themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral, Real

from heterps_configs.errors import HeterpsError

PATH = (str, os.PathLike)
MOST_SEED = 2**63 - 1


def check_type(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Refuses a value of another type.

    Args:
        name: Of the argument.
        value: What was passed.
        kinds: Any of them will do.
        allowed: The same in words, for the message.

    Raises:
        HeterpsError: With all of them.
    """
    if not isinstance(value, kinds):
        raise wrong_type(name, value, allowed)


def check_callable(name: str, value: object, allowed: str) -> None:
    """Refuses what cannot be called, see `check_type`."""
    if not callable(value):
        raise wrong_type(name, value, allowed)


def check_whole(name: str, value: object, allowed: str) -> None:
    """Refuses what is no whole number, see `check_type`; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_type(name, value, allowed)


def check_number(name: str, value: object, allowed: str) -> None:
    """Refuses what is no real number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(name, value, allowed)


def check_seed(seed: int) -> None:
    """Refuses what no plan could keep as its seed.

    Raises:
        HeterpsError: With what is allowed.
    """
    allowed = f"a whole number from 0 to {MOST_SEED}"
    check_whole("seed", seed, allowed)
    if not 0 <= seed <= MOST_SEED:
        raise HeterpsError(f"seed: is {seed}; allowed: {allowed}")


def check_range(name: str, limits: object, least: int) -> None:
    """Refuses what is no pair of whole numbers, the smaller one first.

    Args:
        name: Of the argument.
        limits: What was passed.
        least: That the first may be.

    Raises:
        HeterpsError: With what is allowed.
    """
    allowed = f"two whole numbers from {least} on, the smaller one first"
    if not isinstance(limits, Sequence) or isinstance(limits, str) or len(limits) != 2:
        raise wrong_type(name, limits, allowed)
    for limit in limits:
        check_whole(name, limit, allowed)
    if not least <= limits[0] <= limits[1]:
        raise HeterpsError(f"{name}: is {tuple(limits)}; allowed: {allowed}")


def wrong_type(name: str, value: object, allowed: str) -> HeterpsError:
    """The error about a value of a type that is not allowed."""
    found = "None" if value is None else f"of type {type(value).__name__}"
    if isinstance(value, type):
        found = f"the class {value.__name__}"
    return HeterpsError(f"{name}: is {found}; allowed: {allowed}")
