"""What a class of models takes, as far as its config says so: tokens, images, sounds."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from heterps_configs.documents.model.source import InputSpecification
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.library import families_of

DEFAULT_SEQUENCE_LENGTH = 512
DEFAULT_IMAGE_SIZE = 224
# Ten seconds at the rate that speech models are trained on.
DEFAULT_SOUND_LENGTH = 160_000
TOKENS = ("decoder_input_ids", "input_ids")
# What a language model's config calls the number of its positions.
_LONGEST = ("max_position_embeddings", "max_target_positions")
# Of these families, positions begin behind that of the padding token.
_BEHIND_PADDING = ("roberta", "camembert", "longformer", "xmod")


class Sizes(NamedTuple):
    """What a user asks for; None where the config decides.

    Attributes:
        sequence_length: Tokens, those that stand for an image included.
        image_size: Pixels of a side.
    """

    sequence_length: int | None = None
    image_size: int | None = None


def natural_inputs(
    config: Any, architecture: str, main: str, sizes: Sizes
) -> Iterator[InputSpecification]:
    """The main input and what belongs to it.

    Args:
        config: transformers' object.
        architecture: The class.
        main: Its `main_input_name`.
        sizes: Of tokens and images.

    Raises:
        HeterpsError: A sequence has no room for its image.
    """
    families = families_of(architecture)
    is_pair = (
        getattr(config, "is_encoder_decoder", False) and "AUDIO_CLASSIFICATION" not in families
    )
    if main == "pixel_values":
        yield _pixels(config, sizes)
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        # Whisper: its convolutions halve the number of frames.
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
        yield InputSpecification(name=main, shape=shape)
    elif main == "input_values" and hasattr(config, "conv_kernel"):
        yield InputSpecification(name=main, shape=(DEFAULT_SOUND_LENGTH,))
    elif main == "input_values" and hasattr(config, "num_mel_bins"):
        yield InputSpecification(name=main, shape=(config.max_length, config.num_mel_bins))
    if main == "input_ids":
        yield from _with_image(config, families, sizes)
    if is_pair and "AUDIO_CLASSIFICATION" not in families:
        yield _tokens(config, sizes.sequence_length, name="decoder_input_ids")


def learned_positions(config: Any) -> int | None:
    """How many tokens have a position in its table; None where positions are computed."""
    text = config.get_text_config(decoder=True)
    if any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta", "alibi")):
        return None
    if getattr(text, "position_biased_input", True) is False:
        return None
    most = next((n for n in (getattr(text, name, None) for name in _LONGEST) if n and n > 0), None)
    if most is None or not any(name in text.model_type for name in _BEHIND_PADDING):
        return most
    return int(most - text.pad_token_id - 1)


def num_frames(config: Any, length: int) -> int | None:
    """What the convolutions of a speech model make of a sound; None where it has none."""
    if not hasattr(config, "conv_kernel"):
        return None
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        length = (length - kernel) // stride + 1
    return length


def _tokens(
    config: Any, sequence_length: int | None, name: str = "input_ids", beside: int = 0
) -> InputSpecification:
    """Tokens: as many as asked for, else 512 beside some others, or as the model has positions."""
    text = config.get_text_config()
    longest = (getattr(text, name, None) for name in _LONGEST)
    most = [n for n in (*longest, learned_positions(config)) if n and n > 0]
    length = sequence_length or min([DEFAULT_SEQUENCE_LENGTH + beside, *most])
    return InputSpecification(
        name=name, shape=(length,), dtype="int64", num_classes=text.vocab_size
    )


def _pixels(config: Any, sizes: Sizes) -> InputSpecification:
    size = sizes.image_size or getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    return InputSpecification(name="pixel_values", shape=(channels, height, width))


def _with_image(
    config: Any, families: frozenset[str], sizes: Sizes
) -> Iterator[InputSpecification]:
    """Tokens, and an image where the class compares it with them or has a place for it."""
    vision = getattr(config, "vision_config", None)
    if vision is None or not hasattr(vision, "patch_size"):
        yield _tokens(config, sizes.sequence_length)
    elif "ZERO_SHOT_IMAGE_CLASSIFICATION" in families:
        yield _tokens(config, sizes.sequence_length)
        yield _pixels(vision, sizes)
    elif hasattr(config, "vision_feature_select_strategy"):
        pixels = _pixels(vision, sizes._replace(image_size=None))
        patches = prod(size // vision.patch_size for size in pixels.shape[1:])
        count = patches + (config.vision_feature_select_strategy == "full")
        tokens = _tokens(config, sizes.sequence_length, beside=count)
        if tokens.shape[0] <= count:
            raise HeterpsError(
                f"--sequence-length {tokens.shape[0]}: {count} tokens stand for the image; more "
                "are needed"
            )
        yield tokens.changed(placeholder=config.image_token_id, num_placeholders=count)
        yield pixels
    else:
        yield _tokens(config, sizes.sequence_length)
