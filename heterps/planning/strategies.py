"""What a user lets planners choose: how stages are carried out, and the size of micro-batches."""

from __future__ import annotations

from heterps_configs.documents.job import Strategy, leaves_size_open
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_job_fields

# What is left to planners where nobody says otherwise. Host memory is no device's own, and its
# links are seldom known: that it may be used has to be said.
OPEN = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto", chooses_micro_batch=True)
# What messages call fields of a strategy.
STRATEGY_OPTIONS = "strategy options"


def strategy_of(
    tensor_parallel: str | None = None,
    recompute: str | None = None,
    shard_state: str | None = None,
    offload: str | None = None,
    micro_batch: str | None = None,
    *,
    job_file: str | None = None,
) -> Strategy:
    """The strategy that options of a command ask for; what none of them names stays open.

    Args:
        tensor_parallel: `auto`, or degrees with commas.
        recompute: See `Strategy`.
        shard_state: See `Strategy`.
        offload: See `Strategy`.
        micro_batch: `auto`, or samples; None: open, unless the job file names a size.
        job_file: A job document.

    Raises:
        HeterpsError: A degree is no whole number, or a word is none of those allowed.
    """
    given = {"recompute": recompute, "shard_state": shard_state, "offload": offload}
    fields: dict[str, object] = {name: word for name, word in given.items() if word is not None}
    fields["chooses_micro_batch"] = _is_size_open(micro_batch, job_file)
    try:
        if tensor_parallel is not None:
            words = () if tensor_parallel == "auto" else tensor_parallel.split(",")
            fields["tensor_parallel"] = tuple(map(int, words))
    except ValueError:
        raise HeterpsError(
            f"--tensor-parallel {tensor_parallel}: expected auto, or degrees such as 1,2,4"
        ) from None
    return Strategy.from_mapping(
        {**OPEN.to_mapping(), **fields},
        source=STRATEGY_OPTIONS,
    )


def is_left_open(strategy: Strategy) -> bool:
    """Whether ways to carry out stages are those that are open where nobody says otherwise."""
    return strategy.changed(chooses_micro_batch=True) == OPEN


def micro_batch_size(text: str | None) -> int | None:
    """Samples of `--micro-batch`; None where it is left open, or to the planner.

    Raises:
        HeterpsError: It is neither a whole number nor `auto`.
    """
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise HeterpsError(
            f"--micro-batch {text}: expected auto, or a whole number of samples"
        ) from None


def _is_size_open(micro_batch: str | None, job_file: str | None) -> bool:
    """Whether the size of micro-batches is left to the planner: nobody has named one."""
    if micro_batch is None and job_file is not None:
        return leaves_size_open(load_job_fields(job_file))
    return micro_batch in (None, "auto")
