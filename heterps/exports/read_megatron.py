"""Megatron-LM's arguments, read back: which blocks are on which pipeline rank, in which groups."""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from heterps_configs.errors import HeterpsError

# Sizes that change where layers are, in ways that a plan does not know.
_UNKNOWN = (
    "--context-parallel-size", "--expert-model-parallel-size", "--expert-tensor-parallel-size",
    "--pipeline-model-parallel-split-rank",
)  # fmt: skip
_FLAGS = frozenset(("--use-distributed-optimizer", "--recompute-activations"))
# All that is looked at.
_READ = frozenset(_UNKNOWN) | _FLAGS | {
    "--num-layers", "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
    "--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank", "--micro-batch-size", "--global-batch-size",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
}  # fmt: skip
# How alike a name is that was meant for one of these.
_NEAR = 0.9
_REPEATED = re.compile(r"\(([^()]*)\)(?:\*(\d+))?|([A-Za-z])\*(\d+)")
# More stages, or blocks, than a plan can have.
_LONGEST_LAYOUT = 20_000


class MegatronArguments(NamedTuple):
    """What a plan follows from.

    Attributes:
        tensor_parallel: Devices of a group.
        pipeline: Ranks of a pipeline.
        blocks: Of each stage from front to back, how many; several stages of a rank come in turns.
        micro_batch_size: Samples; None: not said.
        global_batch_size: The same.
        recomputed: Of each stage, so many of its first blocks are computed again.
        shards_state: Replicas share the optimizer's state.
    """

    tensor_parallel: int
    pipeline: int
    blocks: tuple[int, ...]
    micro_batch_size: int | None
    global_batch_size: int | None
    recomputed: int
    shards_state: bool


def read_megatron(text: str, num_blocks: int, source: str) -> MegatronArguments:
    """Reads arguments, one for each line or all in one; other arguments do not matter.

    Args:
        text: As they stand on a command line.
        num_blocks: Of the model.
        source: Where they are from, for messages.

    Raises:
        HeterpsError: They contradict the model or one another, or say what no plan can.
    """
    given = _given(text, source)
    for name in _UNKNOWN:
        if given.get(name, "1") != "1":
            raise HeterpsError(f"{source}: {name} {given[name]}: a plan has no such groups")
    size = _number(given, "--pipeline-model-parallel-size", source) or 1
    told = _number(given, "--num-layers", source)
    if told not in (None, num_blocks):
        raise HeterpsError(f"{source}: --num-layers {told}; the model has {num_blocks} blocks")
    layout = given.get("--pipeline-model-parallel-layout")
    if layout is None:
        blocks = _without_layout(given, size, num_blocks, source)
    else:
        blocks = _of_layout(layout, source)
    if len(blocks) % size:
        raise HeterpsError(
            f"{source}: --pipeline-model-parallel-layout has {len(blocks)} stages, which "
            f"--pipeline-model-parallel-size {size} ranks cannot share equally"
        )
    if sum(blocks) != num_blocks:
        raise HeterpsError(
            f"{source}: its stages have {sum(blocks)} blocks; the model has {num_blocks}"
        )
    return MegatronArguments(
        _number(given, "--tensor-model-parallel-size", source) or 1,
        size,
        blocks,
        _number(given, "--micro-batch-size", source),
        _number(given, "--global-batch-size", source),
        _recomputed(given, num_blocks, source),
        "--use-distributed-optimizer" in given,
    )


def _given(text: str, source: str) -> dict[str, str]:
    """Values by name; a flag has none."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise HeterpsError(f"{source}: is no list of arguments: {error}") from None
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        has_next = not equals and name not in _FLAGS and not following.startswith("--")
        found[name] = following if has_next else value
    if not found.keys() & _READ:
        none = "none that says where layers are" if found else "no arguments"
        raise HeterpsError(f"{source}: has {none}; expected such as --num-layers 32")
    for name in found.keys() - _READ:
        meant = difflib.get_close_matches(name, sorted(_READ), 1, _NEAR)
        if meant:
            warnings.warn(f"{source}: {name} is not read; {meant[0]} would be", stacklevel=3)
    return found


def _number(given: Mapping[str, str], name: str, source: str) -> int | None:
    if name not in given:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", given[name]):
        raise HeterpsError(f"{source}: {name} {given[name]!r}: expected a whole number from 1 on")
    return int(given[name])


def _recomputed(given: Mapping[str, str], num_blocks: int, source: str) -> int:
    """Blocks of a stage that are computed again; what is neither block nor embedding never is."""
    granularity = given.get("--recompute-granularity")
    if "--recompute-activations" in given or granularity == "selective":
        warnings.warn(
            f"{source}: attention alone is computed again there, and a plan knows whole layers: "
            "this one keeps all activations",
            stacklevel=2,
        )
        return 0
    if granularity != "full":
        return 0
    together = _number(given, "--recompute-num-layers", source) or 1
    if given.get("--recompute-method") == "block":
        return together
    if together > 1:
        warnings.warn(
            f"{source}: --recompute-num-layers {together}: {together} blocks together keep one "
            "input there, and a plan keeps the input of each block that is computed again: this "
            "one holds more",
            stacklevel=2,
        )
    return num_blocks


def _of_layout(layout: str, source: str) -> tuple[int, ...]:
    """Blocks of each stage: `Et*3|(tt|)*2L` is 3, 2, 2 and the head alone."""
    text, before = layout.replace(",", "").replace(" ", ""), ""
    while text != before:
        before, text = text, _REPEATED.sub(_repeated, text)
        if len(text) > _LONGEST_LAYOUT:
            raise HeterpsError(
                f"{source}: --pipeline-model-parallel-layout is too long: written out, at most "
                f"{_LONGEST_LAYOUT} characters are read"
            )
    if set(text) - set("EtL|") or text.count("E") != 1 or text.count("L") != 1:
        raise HeterpsError(
            f"{source}: --pipeline-model-parallel-layout {layout!r}: expected one E (embedding), "
            "one L (loss), t for each block, | between stages, such as Et*3|t*4|t*3L"
        )
    if not text.startswith("E") or not text.endswith("L"):
        raise HeterpsError(
            f"{source}: --pipeline-model-parallel-layout {layout!r}: E comes first, and L last"
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def _repeated(found: re.Match[str]) -> str:
    inside, times, letter, letter_times = found.groups()
    count = min(int(times or letter_times or 1), _LONGEST_LAYOUT)
    return str((inside if letter is None else letter) * count)


def _without_layout(
    given: Mapping[str, str], size: int, num_blocks: int, source: str
) -> tuple[int, ...]:
    """As many on each rank, but for what is said of the first and the last one."""
    first = _number(given, "--decoder-first-pipeline-num-layers", source)
    last = _number(given, "--decoder-last-pipeline-num-layers", source)
    front, back = [first] if first else [], [last] if last else []
    middle = size - len(front) - len(back)
    rest = num_blocks - sum(front) - sum(back)
    if middle < 0:
        raise HeterpsError(
            f"{source}: one rank is both the first and the last, and has two numbers"
        )
    if rest < 0:
        raise HeterpsError(
            f"{source}: the first and the last rank are to have {num_blocks - rest} blocks, and "
            f"the model has {num_blocks}"
        )
    if rest % middle if middle else rest:
        raise HeterpsError(
            f"{source}: {rest} blocks cannot be dealt equally to {middle} ranks; "
            "--pipeline-model-parallel-layout says which has which"
        )
    ranks = (*front, *([rest // middle] * middle), *back)
    virtual = _stages_of_rank(given, size, num_blocks, source)
    if any(own % virtual for own in ranks):
        raise HeterpsError(
            f"{source}: ranks with {', '.join(map(str, sorted(set(ranks))))} blocks cannot each "
            f"deal them equally to {virtual} stages"
        )
    return tuple(own // virtual for own in ranks) * virtual


def _stages_of_rank(given: Mapping[str, str], size: int, num_blocks: int, source: str) -> int:
    """How many stages each rank takes in turns."""
    each = _number(given, "--num-layers-per-virtual-pipeline-stage", source)
    if each is None:
        return _number(given, "--num-virtual-stages-per-pipeline-rank", source) or 1
    virtual, left = divmod(num_blocks, size * each)
    if left:
        raise HeterpsError(
            f"{source}: --num-layers-per-virtual-pipeline-stage {each}: {num_blocks} blocks on "
            f"{size} ranks are no whole number of such stages for each"
        )
    return virtual
