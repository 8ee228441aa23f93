"""What a stage holds of the whole model: its own parameters and buffers, and nothing of others.

The module stays whole, since its `forward` runs on every stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from heterps_runtime.models.initialise import place
from heterps_runtime.models.recording import Recording, TensorSpec, canonical_names, zeros_of
from heterps_runtime.stages.start_values import StartValues, sliced_values
from heterps_runtime.tensor_parallel.slices import TensorSlice


def aliases_of(module: nn.Module) -> dict[str, str]:
    """Other names of tied parameters, with their first."""
    canonical = canonical_names(module)
    return {
        name: canonical[id(parameter)]
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name != canonical[id(parameter)]
    }


def hold_only(
    module: nn.Module,
    own: set[str],
    calls: range,
    recording: Recording,
    start: StartValues,
    slices: Mapping[str, TensorSlice],
    device: str,
) -> dict[str, nn.Parameter]:
    """Gives a module its own parameters; those of other stages become plain meta tensors.

    A plain tensor answers questions of the model's glue (`weight.dtype`) but is no parameter.
    Where glue computes with a foreign parameter, it finds zeros of no memory.

    Args:
        module: The whole model, its parameters on the meta device.
        own: Names of those that the stage has.
        calls: The stage's, in the recording.
        recording: Of the model.
        start: Gives the values.
        slices: Of parameters that the rank's group splits, which part it holds.
        device: Where to hold them.

    Returns:
        The own parameters by name.
    """
    canonical = canonical_names(module)
    before = list(module.parameters())  # keeps their ids taken
    values = sliced_values(start, module, own, slices)
    moved = {name: value.to(device) for name, value in values.items()}
    held = place(module, moved, canonical)
    for part in module.modules():
        for attribute, parameter in list(part._parameters.items()):
            name = canonical.get(id(parameter))
            if parameter is None or name is None:
                continue
            is_read = name in recording.glue_parameters
            del part._parameters[attribute]
            part.__dict__[attribute] = (
                zeros_of(TensorSpec.of(parameter), device) if is_read else parameter.detach()
            )
    del before
    _hold_own_buffers(module, calls, recording, device)
    return held


def _hold_own_buffers(module: nn.Module, calls: range, recording: Recording, device: str) -> None:
    """Those of other stages become plain tensors."""
    units = recording.modules(module)
    own_paths = {recording.calls[number].path for number in calls}
    paths = {call.path for call in recording.calls if call.function is None}
    for path in paths - own_paths:
        for part in units[path].modules():
            for attribute, buffer in list(part._buffers.items()):
                del part._buffers[attribute]
                part.__dict__[attribute] = None if buffer is None else buffer.to(device)
    for part in module.modules():
        for attribute, buffer in part._buffers.items():
            part._buffers[attribute] = None if buffer is None else buffer.to(device)
