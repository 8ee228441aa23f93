"""What the loss of a class of models compares its output with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from heterps_configs.documents.model.source import InputSpecification, LossName
from heterps_runtime.huggingface.inputs import TOKENS, num_frames
from heterps_runtime.huggingface.library import families_of

_NEXT_TOKENS = frozenset(
    {"CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT"}
)
_ONE_LABEL = frozenset(
    {
        "IMAGE_CLASSIFICATION",
        "SEQUENCE_CLASSIFICATION",
        "AUDIO_CLASSIFICATION",
        "VIDEO_CLASSIFICATION",
    }
)
# Frames of a sound for each letter of what is said in it.
_FRAMES_PER_LETTER = 4


class Target(NamedTuple):
    """A loss and what it compares the output with."""

    entry: InputSpecification
    loss: LossName


def natural_target(
    architecture: str, config: Any, inputs: Mapping[str, InputSpecification]
) -> Target | None:
    """The target of a class of models; None where it has no loss that is known here.

    Args:
        architecture: The class.
        config: transformers' object.
        inputs: What the model takes, by name.
    """
    families = families_of(architecture)
    tokens = next((inputs[name] for name in TOKENS if name in inputs), None)
    labels = InputSpecification(name="labels", dtype="int64", num_classes=2)
    # By what each is for first: CLIP is in a list of image classifiers, too.
    if "ZERO_SHOT_IMAGE_CLASSIFICATION" in families and "clip" in config.model_type:
        return Target(labels, "contrastive")
    if families & _NEXT_TOKENS and tokens is not None:
        return Target(_plain(tokens).changed(name="labels"), "cross_entropy")
    if families & _ONE_LABEL:
        return Target(labels.changed(num_classes=config.num_labels), "cross_entropy")
    if "TOKEN_CLASSIFICATION" in families and tokens is not None:
        classes = _plain(tokens).changed(name="labels", num_classes=config.num_labels)
        return Target(classes, "cross_entropy")
    if "CTC" in families and "input_values" in inputs:
        frames = num_frames(config, inputs["input_values"].shape[0])
        if frames is not None:
            letters = max(1, frames // _FRAMES_PER_LETTER)
            entry = labels.changed(shape=(letters,), num_classes=config.vocab_size)
            return Target(entry, "ctc")
    return None


def _plain(tokens: InputSpecification) -> InputSpecification:
    return tokens.changed(placeholder=None, num_placeholders=0)
