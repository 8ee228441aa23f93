"""What the trace of a model counts as split and a run keeps whole: found before a plan is shown."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem


def as_groups_run_it(problem: Problem, plan: Plan, *, is_traced: bool = True) -> Problem | None:
    """The problem with those layers whole that groups of a run cannot split; None: all can be.

    Takes seconds, imports torch, and is asked only where a plan has groups.

    Args:
        problem: The problem.
        plan: Of the problem.
        is_traced: Whether the profile was traced for it. What shipped ones split is known to run,
            but not what is split by batch.
    """
    if problem.profile.source is None or all(stage.degree == 1 for stage in plan.stages):
        return None
    by_batch = {layer for stage in plan.stages for layer in stage.batch_layers}
    known = by_batch and _with_known_batch_layers(problem, by_batch)
    if known:
        problem = known
    if not is_traced:
        return known or None
    profile, reasons = with_whole_layers(problem.profile, problem.job.dtype)
    if profile == problem.profile:
        return known or None
    if not reasons:
        return replace(problem, profile=profile)
    (first, reason), others = next(iter(reasons.items())), len(reasons) - 1
    more = f" and {others} more of its layers stay" if others else " stays"
    warnings.warn(
        f"{profile.name}: {first}{more} whole in tensor-parallel groups: {reason}", stacklevel=2
    )
    return replace(problem, profile=profile)


def with_whole_layers(profile: ModelProfile, dtype: Dtype) -> tuple[ModelProfile, dict[str, str]]:
    """A profile that splits what a run splits, and why its other layers stay whole, by layer.

    Where ranks of a run cannot share a head of keys and values, it stays on one of them.

    Args:
        profile: With the source of its model.
        dtype: Of the job.
    """
    from heterps_runtime.tensor_parallel.plan import find_splits

    assert profile.source is not None, "a model is built to find out"
    found = find_splits(profile.source, dtype)
    reasons = {
        layer.name: found.reasons[layer.name]
        for layer in profile.layers
        if layer.tensor_split is not None and layer.name in found.reasons
    }
    splits = {layer.name: layer.tensor_split for layer in profile.layers}
    known = {
        name: None if name in reasons else split.by_key_values()
        for name, split in splits.items()
        if split is not None and (name in reasons or name in found.not_shared)
    }
    layers = tuple(
        layer.changed(tensor_split=known[layer.name]) if layer.name in known else layer
        for layer in profile.layers
    )
    return profile.changed(layers=layers), reasons


def _with_known_batch_layers(problem: Problem, wanted: Collection[int]) -> Problem | None:
    """The problem with what can be split by batch; None where all that is wanted can be."""
    from heterps_runtime.tensor_parallel.by_batch import find_batch_calls

    profile = problem.profile
    assert profile.source is not None, "a model is built to find out"
    found = find_batch_calls(profile.source, problem.job.dtype)
    can = [found.can_stand_in_a_run(layer.name) for layer in profile.layers]
    if all(can[layer] for layer in wanted):
        return None
    layers = tuple(
        layer.changed(splits_by_batch=own) for layer, own in zip(profile.layers, can, strict=True)
    )
    return replace(problem, profile=profile.changed(layers=layers))
