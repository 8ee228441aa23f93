"""State of a program that is its user's own: counters, best results, random numbers.

It is part of a checkpoint's document, as plain JSON: no file is ever unpickled. Rank 0's is saved,
and every rank gets it where a run goes on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.models.dtypes import dtype_named

# By the name that the program gives each.
Encoded = Mapping[str, Any]
# Of the steps that a process remembers the state of; an elastic run may go back to one of them.
_MOST_NOTED = 16


class Stateful(Protocol):
    """What has state that can be saved: a scheduler, a sampler, an object of the user's own."""

    def state_dict(self) -> Any:
        """Numbers, texts, tensors and arrays, in mappings, lists and tuples."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Goes on from there."""
        ...


class OwnState:
    """The state of one rank's program.

    Args:
        parts: By name.
    """

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts
        self._noted: dict[int, Encoded] = {}

    def encoded(self) -> Encoded:
        """As JSON.

        Raises:
            HeterpsError: It holds what cannot be saved.
        """
        return {name: _encoded(part.state_dict(), name) for name, part in self._parts.items()}

    def load(self, saved: Encoded) -> list[str]:
        """Goes on from what was saved; returns what there is to say of it.

        Raises:
            HeterpsError: A part refuses what was saved of it.
        """
        for name in self._parts.keys() & saved.keys():
            try:
                self._parts[name].load_state_dict(_decoded(saved[name]))
            except Exception as error:
                raise HeterpsError(
                    f"state {name!r}: cannot go on from what was saved of it: "
                    f"{type(error).__name__}: {error}"
                ) from error
        new, gone = sorted(self._parts.keys() - saved.keys()), sorted(saved.keys() - self._parts)
        return [
            *(f"the checkpoint has no state {name!r}: it begins anew" for name in new),
            *(f"the program has no state {name!r}: what was saved of it is lost" for name in gone),
        ]

    # -- in runs that lose devices

    def note(self, step: int) -> None:
        """Remembers the state after so many steps."""
        if self._parts:
            self._noted[step] = self.encoded()
            while len(self._noted) > _MOST_NOTED:
                # The first one stays: a run may go back to its beginning.
                del self._noted[sorted(self._noted)[1]]

    def go_to(
        self,
        step: int,
        gather: Callable[[tuple[int, str]], list[tuple[int, str]]],
        read: Callable[[int], Encoded | None],
    ) -> list[str]:
        """Goes to where the state was after so many steps; all ranks call it together.

        Args:
            step: Steps that are done.
            gather: What all ranks say.
            read: What a checkpoint of some step says, on the ranks that can read it.

        Returns:
            What there is to say of it.
        """
        if not self._parts:
            return []
        known = {number: state for number, state in self._noted.items() if number <= step}
        if step not in known and (saved := read(step)) is not None:
            known[step] = saved
        own = max(known, default=-1)
        newest, text = max(gather((own, json.dumps(known.get(own, {})))))
        if newest < 0:
            return []
        state = json.loads(text)
        self._noted = {number: noted for number, noted in self._noted.items() if number <= step}
        remarks = self.load(state)
        self._noted[newest] = state
        # A rank may have been lost between an update and the callbacks behind it.
        if newest < step:
            remarks.append(f"the program's state is that after step {newest}, not {step}")
        return remarks


def _encoded(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON knows neither infinity nor what is no number.
        return value if abs(value) < float("inf") else {"float": str(value)}
    if isinstance(value, np.generic):
        return _encoded(value.item(), place)
    if isinstance(value, Tensor | np.ndarray):
        return _encoded_tensor(value, place)
    if isinstance(value, list):
        return [_encoded(entry, f"{place}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": _encoded(list(value), place)}
    if isinstance(value, Mapping):
        # Keys may be numbers, which JSON would turn into texts.
        return {
            "mapping": [[_key(k, place), _encoded(v, f"{place}.{k}")] for k, v in value.items()]
        }
    raise HeterpsError(
        f"state: {place} is of type {type(value).__name__}, which is not saved; allowed: numbers, "
        "texts, None, tensors and arrays of numbers, in mappings, lists and tuples"
    )


def _key(key: Any, place: str) -> Any:
    if isinstance(key, bool | int | str):
        return key
    raise HeterpsError(f"state: {place} has a key of type {type(key).__name__}; allowed: int, str")


def _encoded_tensor(value: Tensor | np.ndarray[Any, Any], place: str) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        kind = "array"
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
        except TypeError as error:
            raise HeterpsError(f"state: {place}: {error}") from None
    else:
        kind, tensor = "tensor", value.detach().cpu()
    data = bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return {
        kind: base64.b64encode(data).decode(),
        "format": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "tuple" in value:
        return tuple(_decoded(value["tuple"]))
    if "mapping" in value:
        return {key: _decoded(entry) for key, entry in value["mapping"]}
    kind = "array" if "array" in value else "tensor"
    data = bytearray(base64.b64decode(value[kind]))
    number_format = dtype_named(value["format"])
    # An empty buffer is refused.
    flat = torch.frombuffer(data, dtype=number_format) if data else torch.empty(0).to(number_format)
    found = flat.reshape(value["shape"])
    return found.numpy() if kind == "array" else found
