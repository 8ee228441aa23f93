"""Recordings as JSON: what ranks send one another, and check before they use it.

Only what consists of tensors, plain values, tuples, lists and dictionaries can be sent. A user's
own containers cannot: they would have to be looked up by the name of their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, JsonValue, TypeAdapter
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from heterps_configs.documents.base import Document
from heterps_runtime.models.dtypes import as_json
from heterps_runtime.models.functional_calls import FunctionKey
from heterps_runtime.models.recording import (
    Call,
    Recording,
    SharedMemory,
    TensorSpec,
    UnitOutput,
    Use,
)

_Size = Annotated[int, Field(ge=0, le=2**60)]
_Plain = None | bool | int | float | str
# What a unit returned: leaves, and containers of containers of them.
_LEAF = 0
# What functions with several results return, such as the largest numbers and where they are.
_NAMED = "torch.return_types"
_DEEPEST = 50


class _Use(Document):
    """`Use`."""

    sources: tuple[tuple[_Size, _Size], ...]
    is_identity: bool
    is_stale: bool = False


class _Leaf(Document):
    """A tensor or a plain value."""

    tensor: TensorSpec | None = None
    value: _Plain = None


class _Call(Document):
    """`Call`."""

    name: str
    path: str
    occurrence: int
    kind: str
    structure: JsonValue
    leaves: tuple[_Leaf, ...]
    uses: tuple[_Use, ...]
    parameters: frozenset[str]
    overwritten: frozenset[_Size]
    function: tuple[int, str, int] | None = None
    passed: tuple[tuple[_Size, _Size], ...] = ()
    written: tuple[_Size, ...] = ()
    multiplies: bool = False
    is_random: bool = False
    entry: str = ""


class _SharedMemory(Document):
    """`SharedMemory`."""

    objects: tuple[tuple[tuple[_Size, _Size], int], ...]
    last_write: int


class _Recording(Document):
    """`Recording`."""

    units: tuple[str, ...]
    calls: tuple[_Call, ...]
    output_uses: tuple[_Use, ...]
    output: TensorSpec | None
    sequence_ends: tuple[int, ...]
    glue_parameters: frozenset[str]
    is_random: bool
    shared_memory: tuple[_SharedMemory, ...] = ()
    hidden: frozenset[str] = frozenset()


_RECORDINGS = TypeAdapter(tuple[_Recording, ...])


def packed(recordings: Sequence[Recording]) -> bytes | None:
    """Recordings as JSON; None where they hold what cannot be sent."""
    try:
        content = as_json(list(map(_sent, recordings)))
        # Whatever JSON does not keep, a user's own class or a number that is none, differs now.
        return content if unpacked(content) == list(recordings) else None
    except ValueError:
        return None


def unpacked(content: bytes) -> list[Recording]:
    """Recordings from JSON.

    Raises:
        ValueError: The bytes are something else, or contradict themselves.
    """
    return [_received(found) for found in _RECORDINGS.validate_json(content)]


def _sent(recording: Recording) -> _Recording:
    return _Recording(
        units=recording.units,
        calls=tuple(
            _Call(
                name=call.name,
                path=call.path,
                occurrence=call.occurrence,
                kind=call.kind,
                structure=_plain(
                    tree_unflatten([_LEAF] * call.structure.num_leaves, call.structure)
                ),
                leaves=tuple(
                    _Leaf(tensor=leaf) if isinstance(leaf, TensorSpec) else _Leaf(value=leaf)
                    for leaf in call.leaves
                ),
                uses=_sent_uses(call.uses),
                parameters=frozenset(call.parameters),
                overwritten=frozenset(call.overwritten),
                function=call.function,
                passed=call.passed,
                written=call.written,
                multiplies=call.multiplies,
                is_random=call.is_random,
                entry=call.entry,
            )
            for call in recording.calls
        ),
        output_uses=_sent_uses(recording.output_uses),
        output=recording.output,
        sequence_ends=tuple(recording.sequence_ends),
        glue_parameters=frozenset(recording.glue_parameters),
        is_random=recording.is_random,
        shared_memory=tuple(
            _SharedMemory(
                objects=tuple((tuple(source), number) for source, number in memory.objects),
                last_write=memory.last_write,
            )
            for memory in recording.shared_memory
        ),
        hidden=frozenset(recording.hidden),
    )


def _sent_uses(uses: Sequence[Use]) -> tuple[_Use, ...]:
    return tuple(
        _Use(
            sources=tuple(sorted(tuple(s) for s in use.sources)),
            is_identity=use.is_identity,
            is_stale=use.is_stale,
        )
        for use in uses
    )


def _plain(value: Any) -> JsonValue:
    """Containers as lists behind the name of their kind."""
    if type(value) in (tuple, list):
        return [type(value).__name__, *map(_plain, value)]
    if type(value) is dict and all(type(key) is str for key in value):
        return ["dict", {key: _plain(entry) for key, entry in value.items()}]
    if type(value).__module__ == _NAMED:
        return [_NAMED, type(value).__name__, *map(_plain, value)]
    if type(value) is not int:
        raise ValueError(f"a {type(value).__name__} cannot be sent")
    return _LEAF


def _containers(value: JsonValue, depth: int = 0) -> Any:
    """The same back."""
    match value:
        case int():
            return _LEAF
        case ["tuple", *entries] if depth < _DEEPEST:
            return tuple(_containers(entry, depth + 1) for entry in entries)
        case [named, str(name), *entries] if named == _NAMED and depth < _DEEPEST:
            kind = vars(torch.return_types).get(name)
            if isinstance(kind, type) and issubclass(kind, tuple):
                return kind([_containers(entry, depth + 1) for entry in entries])
        case ["list", *entries] if depth < _DEEPEST:
            return [_containers(entry, depth + 1) for entry in entries]
        case ["dict", dict(entries)] if depth < _DEEPEST:
            return {key: _containers(entry, depth + 1) for key, entry in entries.items()}
    raise ValueError("not the structure of a result")


def _received(found: _Recording) -> Recording:
    recording = Recording(
        units=found.units,
        calls=[_received_call(call) for call in found.calls],
        output=found.output,
        sequence_ends=list(found.sequence_ends),
        glue_parameters=set(found.glue_parameters),
        is_random=found.is_random,
        shared_memory=tuple(
            SharedMemory(
                tuple((UnitOutput(*source), number) for source, number in memory.objects),
                memory.last_write,
            )
            for memory in found.shared_memory
        ),
        hidden=set(found.hidden),
    )
    recording.output_uses = _received_uses(found.output_uses, recording.calls)
    for index, (call, sent) in enumerate(zip(recording.calls, found.calls, strict=True)):
        call.uses = _received_uses(sent.uses, recording.calls[:index])
    if len(recording.sequence_ends) != len(recording.calls):
        raise ValueError("not every call has its end")
    return recording


def _received_call(sent: _Call) -> Call:
    structure: TreeSpec
    num_returned, structure = _structure(sent.structure)
    count = num_returned + len(sent.written)
    if count != len(sent.leaves) or any(leaf >= count for leaf in sent.overwritten):
        raise ValueError(f"{sent.name!r}: its structure and its leaves differ")
    return Call(
        name=sent.name,
        path=sent.path,
        occurrence=sent.occurrence,
        kind=sent.kind,
        structure=structure,
        leaves=tuple(leaf.value if leaf.tensor is None else leaf.tensor for leaf in sent.leaves),
        uses=(),
        parameters=set(sent.parameters),
        overwritten=set(sent.overwritten),
        function=None if sent.function is None else FunctionKey(*sent.function),
        passed=sent.passed,
        written=sent.written,
        multiplies=sent.multiplies,
        is_random=sent.is_random,
        entry=sent.entry,
    )


def _structure(value: JsonValue) -> tuple[int, TreeSpec]:
    leaves, structure = tree_flatten(_containers(value))
    return len(leaves), structure


def _received_uses(uses: Sequence[_Use], calls: Sequence[Call]) -> tuple[Use, ...]:
    """Of outputs of earlier calls, which are tensors."""
    for call, leaf in (source for use in uses for source in use.sources):
        leaves = calls[call].leaves if call < len(calls) else ()
        if leaf >= len(leaves) or not isinstance(leaves[leaf], TensorSpec):
            raise ValueError("something is used that no unit returned")
    return tuple(
        Use(
            frozenset(UnitOutput(*source) for source in use.sources),
            use.is_identity,
            use.is_stale,
        )
        for use in uses
    )
