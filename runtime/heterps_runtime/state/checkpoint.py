"""Checkpoints by parameter name: saved under one plan, loaded under any other, or without heterps.

    state = load_state_dict("checkpoints")
    model.load_state_dict(state.model)
    optimizer.load_state_dict(optimizer_state_dict(state, model, optimizer))

Keys are `model.NAME` for parameters and persistent buffers, and `optimizer.NAME.KEY` for the
optimizer's tensors, with names of the whole model; a tied parameter is saved once. Of replicas, the
one with the smallest rank writes. Where parameters have a smaller format than float32, their
float32 master weights are part of the optimizer's state.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heterps_runtime.stages.loss_scale import LOSS_SCALE
from heterps_runtime.stages.master_weights import MASTER, MasterWeights
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.checkpoint_files import CheckpointDocument, find_checkpoint
from heterps_runtime.state.checkpoint_storage import SavedTensors, StoredTensors
from heterps_runtime.state.layout import (
    VALUE,
    State,
    checkpoint_key,
    keys_by_name,
    split_checkpoint_key,
    state_of_keys,
    without_value,
)
from heterps_runtime.state.migrate import held_by
from heterps_runtime.state.remote_checkpoint import newest_remote
from heterps_runtime.state.remote_storage import RemoteStorage, is_url
from heterps_runtime.state.stored_files import LocalFiles, RemoteFiles, StoredFiles
from heterps_runtime.tensor_parallel.slices import TensorSlice


class TrainingState(NamedTuple):
    """A whole checkpoint in memory.

    Attributes:
        model: Parameters and persistent buffers; tied ones under all their names.
        optimizer: The optimizer's tensors by the parameter's (first) name.
        document: Steps that are done, seed, plan and learning rate.
    """

    model: dict[str, Tensor]
    optimizer: State
    document: CheckpointDocument

    @property
    def float32_model(self) -> dict[str, Tensor]:
        """`model` with the float32 master weights of parameters in a smaller format."""
        aliases = self.document.tied_names
        states = {name: self.optimizer.get(aliases.get(name, name), {}) for name in self.model}
        return {name: states[name].get(MASTER, tensor) for name, tensor in self.model.items()}


def load_state_dict(folder: str | os.PathLike[str]) -> TrainingState:
    """Reads a whole checkpoint; needs no process group and no plan.

    Args:
        folder: A checkpoint, or a folder of them: then the newest. A path or a URL.

    Raises:
        HeterpsError: There is none, or a file of it is missing or damaged.
    """
    document, saved = _opened(folder)
    tensors = {key: saved.blank(key) for key in saved.names}
    saved.read(tensors)
    found = state_of_keys(tensors)
    model = {name: state[VALUE] for name, state in found.items()}
    for alias, name in document.tied_names.items():
        if name in model:
            model[alias] = model[name]
    optimizer = {name: without_value(state) for name, state in found.items() if len(state) > 1}
    return TrainingState(model, optimizer, document)


def check_tables(checkpoint: str) -> None:
    """Reads what a complete checkpoint says of itself and of its tensors, and none of these.

    Args:
        checkpoint: Path or URL.

    Raises:
        HeterpsError: A file is missing or damaged.
    """
    _opened(checkpoint)


def optimizer_state_dict(
    state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """What `optimizer.load_state_dict` takes, for an optimizer over parameters of `model`.

    Master weights are in it where the optimizer keeps any (`MasterWeights`); for a model in float32
    they are in `TrainingState.float32_model`.
    """
    left_out = () if isinstance(optimizer, MasterWeights) else (MASTER, LOSS_SCALE)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    saved = state.optimizer
    return {
        "state": {
            index: {k: v for k, v in saved[names[id(parameter)]].items() if k not in left_out}
            for index, parameter in enumerate(parameters)
            if names.get(id(parameter)) in saved
        },
        "param_groups": optimizer.state_dict()["param_groups"],
    }


def owned_tensors(owned: OwnedStages, buffers: Iterable[str]) -> dict[str, Tensor]:
    """Copies, on the CPU, of what this rank saves.

    Args:
        owned: The rank's stages.
        buffers: Names of the buffers that it saves.
    """
    tensors: dict[str, Tensor] = {
        checkpoint_key(name, VALUE): parameter
        for name, parameter in owned.parameters.items()
        if owned.stands_for(name)
    }
    for name, parameter in owned.stepped.items():
        if owned.optimizer is None or not owned.saves_state_of(name):
            continue  # a rank whose layers are all frozen has no optimizer
        for key, value in owned.optimizer.state.get(parameter, {}).items():
            is_count = key == LOSS_SCALE or value.shape != parameter.shape
            if isinstance(value, Tensor) and (not is_count or owned.saves_counts_of(name)):
                tensors[checkpoint_key(name, key)] = value
    held = buffers_of(owned)
    tensors.update((checkpoint_key(name, VALUE), held[name]) for name in buffers)
    return {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}


def counts_elsewhere(owned: OwnedStages) -> dict[str, Tensor]:
    """Copies of counts that belong to state which this rank saves, and that another one saves.

    A memory copy of a checkpoint has them, too: whoever goes on from it knows that they exist.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in owned.stepped.items():
        if owned.optimizer is None or not owned.saves_state_of(name):
            continue
        for key, value in owned.optimizer.state.get(parameter, {}).items():
            is_count = key == LOSS_SCALE or value.shape != parameter.shape
            if isinstance(value, Tensor) and is_count and not owned.saves_counts_of(name):
                found[checkpoint_key(name, key)] = value.detach().to("cpu", copy=True)
    return found


def pieces_of(owned: OwnedStages, keys: Iterable[str]) -> dict[str, TensorSlice]:
    """The places of those tensors of a checkpoint that are pieces of larger ones, by key."""
    held = held_by(owned)
    places = {text: held.place(*split_checkpoint_key(text)) for text in keys}
    return {text: place for text, place in places.items() if place is not None}


def buffers_of(owned: OwnedStages) -> dict[str, Tensor]:
    """Persistent buffers of all stages of a rank."""
    stages = owned.modules.values()
    return {name: buffer for stage in stages for name, buffer in stage.buffers_by_name().items()}


class Places(NamedTuple):
    """What of a model a rank holds in slices, and what its optimizer steps.

    Attributes:
        slices: The places of parameters and buffers that are slices of the whole model's.
        stepped: What the optimizer steps, by name; None: the parameters.
        state_slices: The places of those that are slices.
    """

    slices: Mapping[str, TensorSlice] = {}
    stepped: Mapping[str, nn.Parameter] | None = None
    state_slices: Mapping[str, TensorSlice] = {}


def restore_stages(checkpoint: str, owned: OwnedStages) -> CheckpointDocument:
    """`restore` for the stages of a rank, freshly built."""
    buffers = [module.buffers_by_name() for module in owned.modules.values()]
    places = Places(owned.slices, owned.stepped, owned.state_slices)
    return restore(checkpoint, owned.parameters, buffers, owned.optimizer, places)


def restore(
    checkpoint: str,
    parameters: Mapping[str, nn.Parameter],
    buffers: Iterable[Mapping[str, Tensor]],
    optimizer: torch.optim.Optimizer | None,
    places: Places = Places(),
) -> CheckpointDocument:
    """Fills parameters and buffers in place, and gives a fresh optimizer its state.

    Nothing else of the checkpoint is read.

    Args:
        checkpoint: Path or URL of a complete one.
        parameters: By name in the whole model.
        buffers: Of each stage, by name.
        optimizer: Over these parameters; None where there are none.
        places: Which of them are slices; by default all are whole.

    Returns:
        What the checkpoint says of itself.

    Raises:
        HeterpsError: A tensor is missing or differs in shape, or a file is missing or damaged.
    """
    document, saved = _opened(checkpoint)
    targets = {checkpoint_key(n, VALUE): parameter.detach() for n, parameter in parameters.items()}
    copies: list[tuple[Tensor, Tensor]] = []
    for stage in buffers:
        for name, buffer in stage.items():
            # Two stages of a rank may have a buffer each.
            blank = torch.empty_like(buffer, device="cpu")
            arrived = targets.setdefault(checkpoint_key(name, VALUE), blank)
            copies.append((buffer, arrived))
    wanted = {checkpoint_key(name, VALUE): piece for name, piece in places.slices.items()}
    if optimizer is not None:
        stepped = parameters if places.stepped is None else places.stepped
        blank_state = _blank_optimizer_state(saved, stepped, optimizer, places.state_slices)
        targets.update({key: tensor for key, (tensor, _) in blank_state.items()})
        wanted.update({key: piece for key, (_, piece) in blank_state.items() if piece})
    saved.read(targets, wanted)
    for buffer, arrived in copies:
        buffer.copy_(arrived)
    return document


def _blank_optimizer_state(
    saved: SavedTensors,
    stepped: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    slices: Mapping[str, TensorSlice],
) -> dict[str, tuple[Tensor, TensorSlice | None]]:
    """Gives an optimizer uninitialised state; returns it with its place, by key in the folder."""
    targets: dict[str, tuple[Tensor, TensorSlice | None]] = {}
    keys = keys_by_name(saved.names)
    for name, parameter in stepped.items():
        state: dict[str, Tensor] = {}
        own = slices.get(name)
        for part, key in keys.get(name, {}).items():
            if part == VALUE:
                continue
            is_part = own is not None and part != LOSS_SCALE and saved.shape(key) == own.shape
            piece = own if is_part else None
            blank = saved.blank(key, piece)
            # Counters of steps stay on the CPU, as the optimizer makes them.
            state[part] = blank if part == "step" else blank.to(parameter.device)
            targets[key] = state[part], piece
        if state:
            optimizer.state[parameter] = state
    return targets


def _opened(checkpoint: str | os.PathLike[str]) -> tuple[CheckpointDocument, SavedTensors]:
    """What a checkpoint, or the newest of a folder, says of itself, and its tensors."""
    text = os.fspath(checkpoint)
    files: StoredFiles
    if is_url(text):
        files = RemoteFiles(RemoteStorage(newest_remote(text)))
    else:
        files = LocalFiles(find_checkpoint(text))
    return CheckpointDocument.read(files), StoredTensors(files)
