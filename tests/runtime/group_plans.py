"""Plans with tensor-parallel groups around small models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hypothesis import strategies as st

from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from tests.runtime.small_runs import DEVICES, plan_of


def grouped(
    problem: Problem,
    groups: Mapping[str, Sequence[str]],
    shares: Sequence[float] = (),
    *,
    are_replicas: bool = False,
) -> Plan:
    """A chain of stages on groups, or replicas of the whole model."""
    num_layers = problem.profile.num_layers
    if are_replicas:
        spans = dict.fromkeys(groups, (0, num_layers - 1))
    else:
        cuts = [num_layers * i // len(groups) for i in range(len(groups) + 1)]
        spans = {name: (cuts[i], cuts[i + 1] - 1) for i, name in enumerate(groups)}
    every = range(problem.job.num_micro_batches)
    routes: dict[tuple[str, ...], Sequence[int]] | None = None
    if are_replicas:
        routes = {(name,): every[i::2] for i, name in enumerate(groups)}
    alone = plan_of(problem, {name: (*spans[name], own[0]) for name, own in groups.items()}, routes)
    return alone.changed(
        stages=tuple(
            stage.changed(
                devices=tuple(groups[stage.name]),
                tensor_shares=tuple(shares) if len(groups[stage.name]) == len(shares) else (),
            )
            for stage in alone.stages
        )
    )


def sharing(plan: Plan) -> Plan:
    """The same where replicas share the optimizer's state of all layers."""
    return plan.changed(sharded_state=(LayerRange(first_layer=0, last_layer=plan.num_layers - 1),))


def keeping(plan: Plan, whole_layers: Collection[int], batch_layers: Collection[int] = ()) -> Plan:
    """The same where no group splits some layers, and of others only the samples."""
    return plan.changed(
        stages=tuple(
            stage.changed(
                whole_layers=[own for own in stage.layers if own in whole_layers],
                batch_layers=[own for own in stage.layers if own in batch_layers],
            )
            if stage.degree > 1
            else stage
            for stage in plan.stages
        )
    )


@st.composite
def group_plans(draw: st.DrawFn, problem: Problem) -> Plan:
    """A chain of groups of any sizes, or replicas in two groups; like ones may share state.

    Groups may keep layers whole, or split them by batch, but none that shares parameters with
    another one.
    """
    ties = problem.profile.tied_layers
    free = set(range(problem.profile.num_layers)).difference(ties, *ties.values())
    some = st.sets(st.sampled_from(sorted(free)))
    whole = draw(some) if draw(st.booleans()) else set()
    by_batch = draw(some) - whole if _splits_samples(problem) and draw(st.booleans()) else set()
    # The ends are several modules with the model's own code between them.
    by_batch -= {0, problem.profile.num_layers - 1}
    return keeping(draw(_split_groups(problem)), whole, by_batch)


def _splits_samples(problem: Problem) -> bool:
    """Whether no layer normalises over a batch."""
    return not any(layer.buffer_bytes for layer in problem.profile.layers)


@st.composite
def _split_groups(draw: st.DrawFn, problem: Problem) -> Plan:
    devices = draw(st.permutations(DEVICES))
    shares = st.integers(1, 3)
    if draw(st.booleans()):
        size = draw(st.integers(1, 2))
        parts = [draw(shares) for _ in range(size)]
        other = draw(st.integers(1, 2))
        groups = {"a": devices[:size], "b": devices[size : size + other]}
        even = [part / sum(parts) for part in parts]
        plan = grouped(problem, groups, even if size > 1 else (), are_replicas=True)
        return sharing(plan) if other == size and draw(st.booleans()) else plan
    first = draw(st.integers(1, 3))
    parts = [draw(shares) for _ in range(first)]
    groups = {"a": devices[:first], "b": devices[first : draw(st.integers(first, 4))]}
    return grouped(
        problem,
        {name: own for name, own in groups.items() if own},
        [part / sum(parts) for part in parts] if first > 1 else (),
    )
