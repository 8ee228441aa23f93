"""The system `autohete`: keep, recompute or offload each layer, so that the model fits and is fast.

Zeng et al., AutoHete: An automatic and efficient heterogeneous training system for LLMs, arXiv
2503.01890, 2025. The abstract, and notes on the method, were reachable; neither its formulas nor
code. In the paper a profile and an integer programme choose for each block whether activations
are computed again, whether parameters are in host memory, and whether the optimizer is; a scheduler
then overlaps copies, the host's optimizer and the device across steps. Decided here:

- Activations may be offloaded, too: keep, recompute or offload for each layer is what plans say.
  Where state is in host memory is the method's own: no plan says it. The answer is the best plan
  without, and the note says what more would give.
- A copy hides behind the work of its own layer, both directions at a time. The optimizer step stays
  on the device and its state comes and goes, since clusters do not say how fast hosts compute or
  what memory they have. Nothing overlaps across steps.
- It is a method for one box of like devices, all with the whole model. So each device is a replica,
  and micro-batches go round them; unlike devices get equally many, and ways of their own. Where the
  model has no room even so, its blocks are cut evenly over two, three, ... devices, of as many as
  divide all of them, and these pipelines are the replicas.
- Own cost: passes and optimizer step of the slowest replica; it has no term for messages and sums.
  Memory is counted as under 1F1B, or GPipe.
"""

from __future__ import annotations

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.autohete.box import BoxPlan, PlacedPart, box_plan
from heterps_agents.systems.autohete.ways import WAYS, WAYS_OF_PLANS
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("autohete")
class AutoHete(System):
    """A way for each layer by an integer programme; replicas of the model, as far as it fits."""

    name = "autohete"
    own_way = "computes layers again or offloads them by its own cost"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The best plan; its note says what state in host memory would give.

        Raises:
            InfeasibleError: No plan fits by the method's own count of memory.
        """
        budget.spend()
        found = box_plan(problem, WAYS_OF_PLANS)
        more = box_plan(problem, WAYS)
        if found is None:
            raise InfeasibleError(_why_none(more))
        plan = self._plan(problem, found)
        return SystemAnswer(plan, OwnCost(found.seconds, STEP, _note(found, more)))

    def _plan(self, problem: Problem, found: BoxPlan) -> Plan:
        number = problem.job.num_micro_batches
        chains = [
            [
                _stage(placed, name, index, place)
                for place, (placed, name) in enumerate(zip(chain, names, strict=True))
            ]
            for index, (chain, names) in enumerate(zip(found.pipelines, found.devices, strict=True))
        ]
        pipelines = tuple(
            Pipeline(
                stages=tuple(stage.name for stage in chain),
                micro_batches=tuple(range(index, number, len(chains))),
            )
            for index, chain in enumerate(chains)
        )
        stages = tuple(stage for chain in chains for stage in chain)
        return plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)


def _stage(placed: PlacedPart, device: str, pipeline: int, place: int) -> Stage:
    layers = placed.part.layers
    done = {layer: way.activations for layer, way in zip(layers, placed.ways, strict=True)}
    prefix = f"p{pipeline}" if placed.part.num_pipelines > 1 else ""
    return Stage(
        name=f"{prefix}s{place}",
        first_layer=layers[0],
        last_layer=layers[-1],
        devices=(device,),
        recompute_layers=tuple(each for each in layers if done[each] == "recompute"),
        offloaded_layers=tuple(each for each in layers if done[each] == "offload"),
    )


def _away(found: BoxPlan) -> int:
    """Layers of the replica that has most of them whose state is not all on a device."""
    return max(
        sum(way.away != "nothing" for placed in chain for way in placed.ways)
        for chain in found.pipelines
    )


def _why_none(more: BoxPlan | None) -> str:
    if more is None:
        return "no device has room for its part of the model, even with all state in host memory"
    return (
        f"needs optimizer state or weights of {_away(more)} layers in host memory (a step of "
        f"{more.seconds:.4g} s by its own cost), which plans do not say"
    )


def _note(found: BoxPlan, more: BoxPlan | None) -> str:
    """What state in host memory would give; empty where the method keeps all on the devices."""
    if more is None or _away(more) == 0:
        return ""
    return (
        f"AutoHete's own answer has optimizer state or weights of {_away(more)} layers in host "
        f"memory, which plans do not say: by its own cost {more.seconds:.4g} s a step, and "
        f"{found.seconds:.4g} s without"
    )
