"""What the simulator said of plans before: planners come upon the same plan in several ways.

Each view of a problem is searched on its own, a walk begins where another one ended, and of what
they found the best is chosen. Of two plans that run alike one is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem

_STAGE_FIELDS = tuple(Stage.model_fields)


@dataclass(slots=True)
class KnownRun:
    """What is known of a plan; None: nobody has asked.

    Attributes:
        step_time_s: Of its simulation.
        has_room: Whether no device holds more than it has room for.
    """

    step_time_s: float | None = None
    has_room: bool | None = None


@dataclass(frozen=True)
class _Runs:
    """Plans by what decides how they run.

    Attributes:
        profile: That of the problem, kept so that no other one has its place in memory.
        training: The same of those that calibrate it.
    """

    profile: ModelProfile
    training: tuple[ModelProfile, ...]
    by_plan: dict[bytes, KnownRun] = field(default_factory=dict)


def known_run(problem: Problem, plan: Plan) -> KnownRun:
    """What is known of a plan, to be read and written.

    Views of a problem tell its devices apart in other ways. A single device takes and holds the
    same in all of them; a group is as slow as the slowest node of its class.

    Args:
        problem: What the plan answers.
        plan: What runs.
    """
    has_groups = any(len(stage.devices) > 1 for stage in plan.stages)
    view = (problem.nodes_apart, problem.has_fastest_links) if has_groups else None
    own = problem.degree, problem.share, problem.members, problem.strategy, problem.job
    key = known_run, id(problem.profile), id(problem.training), own, view
    runs = problem.links.derived.get(key)
    if not isinstance(runs, _Runs):
        problem.links.derived[key] = runs = _Runs(problem.profile, problem.training)
    return runs.by_plan.setdefault(_digest(plan), KnownRun())


def _digest(plan: Plan) -> bytes:
    """Equal for plans that run alike: a plan itself is megabytes."""
    stages = [[stage.__dict__[name] for name in _STAGE_FIELDS] for stage in plan.stages]
    pipelines = [(pipeline.stages, pipeline.micro_batches) for pipeline in plan.pipelines]
    state = [(part.first_layer, part.last_layer) for part in plan.sharded_state]
    whole = plan.model_fingerprint, plan.num_layers, plan.job, plan.sums_overlap
    return blake2b(repr((whole, state, stages, pipelines)).encode(), digest_size=16).digest()
