"""Re-checking a plan and its bound: plain Python from the definitions, no code of any solver.

    report = check_certificate(problem, plan, plan.bound)

The plan's step time is computed anew from the formulas in the docstring of
`heterps_envs.closed_form.formula`, its devices and bytes are counted, and what the bound claims is
held against bounds of this module's own: a linear programme's dual at prices that are given or
derived here, one micro-batch through the model, and, while it ends within a number of steps, a
search that tries every placement that could be better. What could not be re-checked is said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.units import bytes_text
from heterps_envs.certificates.bound_check import (
    TOLERANCE,
    BoundCheck,
    Findings,
    TimedStages,
    rounding_of_groups_s,
    rounding_s,
)
from heterps_envs.certificates.definition import PlainStage, closed_form_s, stage_bytes
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.schedule.tied import tied_share
from heterps_envs.simulator.simulate import lacks_memory, misses_floor
from heterps_envs.stage_tables import has_strategies, replicas_are_alike, stage_tables


@dataclass(frozen=True)
class CertificateReport:
    """What was re-checked of a plan and its bound.

    Attributes:
        step_time_s: The plan's closed form; None where no placement describes it.
        lower_bound_s: What this module itself knows no placement to be below; 0: nothing.
        optimality: `proven` and `bounded` were re-checked here; `not re-checked`: the bound is
            above what this module can show; `unknown`: nothing is claimed, or no placement has room
            by the rule of planners, so that what is claimed says nothing of the plan.
        problems: What is wrong with the plan or its bound; empty for a valid certificate.
        checked: What was re-checked, one line each.
        unchecked: What was not, one line each.
    """

    step_time_s: float | None
    lower_bound_s: float
    optimality: str
    problems: tuple[str, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Nothing was found wrong."""
        return not self.problems


def check_certificate(
    problem: Problem,
    plan: Plan,
    bound: Bound | None = None,
    *,
    prices: Sequence[float] | None = None,
    max_steps: int = 100_000,
) -> CertificateReport:
    """Re-checks a plan and what is claimed of its optimality.

    Args:
        problem: What the plan answers.
        plan: The plan.
        bound: What is claimed; by default the plan's own.
        prices: (T,) of a device-second of each class, any that are not negative; by default
            those of the linear programme are derived.
        max_steps: Stages that the search for a better placement may try.
    """
    return _Check(problem, plan, bound or plan.bound).run(prices, max_steps)


class _Check:
    """Collects what is found."""

    def __init__(self, problem: Problem, plan: Plan, bound: Bound) -> None:
        self.problem, self.plan, self.bound = problem, plan, bound
        self.tables = problem.bounding_tables
        self.found = Findings()

    def run(self, prices: Sequence[float] | None, max_steps: int) -> CertificateReport:
        stages, timed = self._stages(), None
        if stages is not None:
            self._check_counts()
            own_tables, own_stages = self._own_tables(stages)
            step_time_s = closed_form_s(own_tables, own_stages)
            rounded_s = max(
                rounding_s(own_tables, own_stages), rounding_of_groups_s(self.problem, self.plan)
            )
            timed = TimedStages(stages, step_time_s, rounded_s)
            if has_strategies(self.plan):
                self._check_memory(own_tables, own_stages, stages)
            else:
                self._check_memory(self.tables, stages, stages)
            self.found.checked.append(f"closed-form step time: {step_time_s:.9g} s")
            self._check_floor(step_time_s)
        claim = BoundCheck(self.problem, self.plan, self.bound, self.found)
        own = claim.own_bound(prices)
        optimality = claim.optimality(timed, own, max_steps)
        return CertificateReport(
            None if timed is None else timed.step_time_s,
            own.step_time_s,
            optimality,
            tuple(self.found.problems),
            tuple(self.found.checked),
            tuple(self.found.unchecked),
        )

    def _own_tables(self, stages: Sequence[PlainStage]) -> tuple[CostTables, Sequence[PlainStage]]:
        """With the plan's own links, where equal nodes share classes, and its stages' ways."""
        if not self.problem.merges_nodes and not has_strategies(self.plan):
            return self.tables, stages
        ranges = [(stage.start, stage.stop - 1) for stage in stages]
        own = [stage._replace(kind=index) for index, stage in enumerate(stages)]
        return stage_tables(self.problem, self.plan, ranges), own

    def _stages(self) -> list[PlainStage] | None:
        """The plan as stages of equal replicas, front first; None where it is no such thing."""
        plan, problem = self.plan, self.problem
        unknown = [name for name in plan.devices if name not in problem.class_of]
        if unknown or plan.num_layers != self.tables.num_layers:
            self.found.problems.append(
                f"the plan names devices that the cluster lacks: {', '.join(unknown)}"
                if unknown
                else f"the plan has {plan.num_layers} layers, the model {self.tables.num_layers}"
            )
            return None
        share = Counter(
            name for pipe in plan.pipelines for name in pipe.stages for _ in pipe.micro_batches
        )
        groups: dict[tuple[int, int], list[str]] = {}
        for stage in plan.stages:
            groups.setdefault((stage.first_layer, stage.last_layer + 1), []).append(stage.name)
        ordered = sorted(groups)
        edges = [0, *(stop for _, stop in ordered)]
        micro_batches = self.tables.num_micro_batches
        kinds = [
            {problem.class_of[name] for entry in groups[part] for name in plan.stage(entry).devices}
            for part in ordered
        ]
        is_placement = (
            edges[-1] == plan.num_layers
            and all(part == edge for part, edge in zip(ordered, pairwise(edges), strict=True))
            and all(len(kind) == 1 for kind in kinds)
            and replicas_are_alike(plan)
            and not self._has_chunks()
            and all(
                share[name] <= -(-micro_batches // len(names))
                for names in groups.values()
                for name in names
            )
        )
        if not is_placement:
            self.found.unchecked.append(
                "step time and memory: the plan is no chain of stages with equal replicas, one on "
                "each device or group of devices"
            )
            return None
        self.found.checked.append("every micro-batch passes every layer once")
        return [
            PlainStage(*part, kind.pop(), len(groups[part]))
            for part, kind in zip(ordered, kinds, strict=True)
        ]

    def _has_chunks(self) -> bool:
        """Interleaved: several stages of a route are on one device, as they are meant to be."""
        names = [name for stage in self.plan.stages for name in stage.devices]
        return self.plan.job.schedule == "interleaved" and len(set(names)) < len(names)

    def _check_counts(self) -> None:
        names = [name for stage in self.plan.stages for name in stage.devices]
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            self.found.problems.append(f"several stages on one device: {', '.join(twice)}")
        used: Counter[int] = Counter()
        for entry in self.plan.stages:
            used.update(self.problem.class_of[name] for name in entry.devices)
        for kind, count in used.items():
            if count > self.tables.device_count[kind]:
                self.found.problems.append(
                    f"{count} devices of {self.problem.classes[kind].name}; there are "
                    f"{self.tables.device_count[kind]}"
                )
        for entry in self.plan.stages:
            devices = [self.problem.device_named[name] for name in entry.devices]
            if len({device.node for device in devices}) > 1:
                self.found.problems.append(
                    f"the devices of stage {entry.name!r} are on several nodes"
                )
        self.found.checked.append("every stage has devices of its own")

    def _check_memory(
        self, tables: CostTables, own: Sequence[PlainStage], stages: Sequence[PlainStage]
    ) -> None:
        """Each stage by the tables that its `kind` in `own` is of.

        They hold the rule of planners, which may count more than a stage ever holds.
        """
        behind, lacking = 0, []
        for each, stage in zip(reversed(own), reversed(stages), strict=True):
            need = self._bytes(tables, each, behind)
            room = float(tables.memory_bytes[each.kind])
            if need > room * (1 + TOLERANCE):
                lacking.append(
                    f"the layers {stage.start}..{stage.stop - 1} need "
                    f"{bytes_text(math.ceil(need))} on a "
                    f"{self.problem.classes[stage.kind].name}, "
                    f"{bytes_text(math.ceil(need - room))} more than "
                    "it has"
                )
            behind += stage.replicas
        if not lacking:
            self.found.checked.append("memory of every device")
        elif lacks_memory(self.problem, self.plan):
            self.found.problems.extend(lacking)
        else:
            self.found.unchecked.append(
                "memory: by the rule of planners some device has too little, by the simulator none"
            )

    def _bytes(self, tables: CostTables, stage: PlainStage, behind: int) -> float:
        """State and activations in flight; parameters that its layers share count once."""
        profile = self.problem.profile
        need = stage_bytes(tables, stage.start, stage.stop, stage.replicas, behind)
        here = range(stage.start, stage.stop)
        for owner, users in profile.tied_layers.items():
            tied = sorted(
                float(tables.state_bytes[user]) * tied_share(profile, user)
                for user in users
                if user in here
            )
            need -= sum(tied if owner in here else tied[:-1])
        return need

    def _check_floor(self, step_time_s: float) -> None:
        floor = self.problem.job.min_throughput_samples_per_s
        if floor is None:
            return
        reached = self.problem.job.global_batch_size / max(step_time_s, 1e-30)
        if reached >= floor * (1 - TOLERANCE):
            self.found.checked.append("the throughput floor")
        elif misses_floor(self.problem, self.plan):
            self.found.problems.append(f"{reached:.6g} samples/s; the floor is {floor:g}")
        else:  # its micro-batches are all full
            self.found.unchecked.append(
                f"the throughput floor: {reached:.6g} samples/s by the closed form are too few, "
                "by the simulator it is kept"
            )
