"""Numbers and names of documents: which are physically possible, and fit on a line.

Every number is finite, and a truth value is none: YAML reads `yes` as true, which Python would
count as 1. The limits are far beyond any real device, model or run; but products of a few of them
still have room in a float, and what is counted still fits into memory.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from heterps_configs.units import CONTROL

Value = TypeVar("Value")

# 32 years; a petabyte; more samples than any step takes.
MOST_SECONDS, MOST_BYTES, MOST_COUNT = 1e9, 10**15, 10**9
MOST_LAYERS = 2**16
MOST_MEMORY_BYTES = 2**60
MOST_LATENCY_S = 1e6
LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 1e-3, 1e18
LEAST_FLOPS_PER_S, MOST_FLOPS = 1.0, 1e24
# Smaller prices would drown in what planners add to prefer the faster of two plans of one price.
LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR = 1e-3, 1e6
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e6


def _is_number(value: Value) -> Value:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "must be a number")
    return value


def _is_whole_number(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "must be a whole number")
    # pydantic has a message of its own for those that no 64 bits hold.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_a_price(value: float) -> float:
    if 0 < value < LEAST_USD_PER_HOUR:
        raise PydanticCustomError(
            "too_cheap", f"must be 0, or {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:g}"
        )
    return value


Number = Annotated[float, BeforeValidator(_is_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_is_whole_number)]

# Of what was counted or computed, however large it came out.
NotNegative = Annotated[Whole, Field(ge=0)]
Seconds = Annotated[Number, Field(ge=0, le=MOST_SECONDS)]
PositiveSeconds = Annotated[Number, Field(gt=0, le=MOST_SECONDS)]
# Of a sum less its parts, below 0 where the parts took longer.
SignedSeconds = Annotated[Number, Field(ge=-MOST_SECONDS, le=MOST_SECONDS)]
# Of what was measured or predicted to something else, less 1 or not.
Ratio = Annotated[Number, Field(ge=-1e12, le=1e12)]
# Of operators, which planners also make of whole steps.
Amount = Annotated[Number, Field(ge=0, le=MOST_FLOPS)]
Latency = Annotated[Number, Field(ge=0, le=MOST_LATENCY_S)]
Bytes = Annotated[Number, Field(ge=0, le=MOST_BYTES)]
WholeBytes = Annotated[Whole, Field(ge=0, le=MOST_BYTES)]
MemoryBytes = Annotated[Whole, Field(gt=0, le=MOST_MEMORY_BYTES)]
BytesPerSecond = Annotated[Number, Field(ge=LEAST_BYTES_PER_S, le=MOST_BYTES_PER_S)]
Flops = Annotated[Number, Field(ge=0, le=MOST_FLOPS)]
FlopsPerSecond = Annotated[Number, Field(ge=LEAST_FLOPS_PER_S, le=MOST_FLOPS)]
UsdPerHour = Annotated[Number, Field(ge=0, le=MOST_USD_PER_HOUR), AfterValidator(_is_a_price)]
# How many times as long something takes.
Factor = Annotated[Number, Field(ge=LEAST_FACTOR, le=MOST_FACTOR)]
Share = Annotated[Number, Field(ge=0, le=1)]
# Of training: steps of a gradient, weights of terms.
Rate = Annotated[Number, Field(gt=0, le=10.0)]
Weight = Annotated[Number, Field(ge=0, le=1e3)]
Count = Annotated[Whole, Field(ge=0, le=MOST_COUNT)]
PositiveCount = Annotated[Whole, Field(gt=0, le=MOST_COUNT)]
Threads = Annotated[Whole, Field(ge=1, le=1024)]
Parameters = Annotated[Whole, Field(ge=0, le=MOST_BYTES)]
# Far above any model; a slip must not build a list of that many.
LayerIndex = Annotated[Whole, Field(ge=0, lt=MOST_LAYERS)]
LayerCount = Annotated[Whole, Field(gt=0, le=MOST_LAYERS)]
# Kept as an int64 by all that draws random numbers.
Seed = Annotated[Whole, Field(ge=0, lt=2**63)]


def _is_one_line(value: str) -> str:
    if CONTROL.search(value):
        raise PydanticCustomError("control_character", "must have no control characters")
    return value


# Shown in tables and messages, which a control character could rewrite.
Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_is_one_line)]


def _stands_alone(value: str) -> str:
    between = [text for text in ("->", ",") if text in value]
    if between:
        raise PydanticCustomError(
            "device_name", f"must have no {between[0]!r}, which stands between names of devices"
        )
    return value


# Stands in names of links (`fast->medium`) and in lists (`--devices fast,medium`).
DeviceName = Annotated[Name, AfterValidator(_stands_alone)]
