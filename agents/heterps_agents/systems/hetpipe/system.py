"""The system `hetpipe`: virtual workers of unlike devices, each a pipeline, side by side.

Park et al., HetPipe: Enabling large DNN training on (whimpy) heterogeneous GPU clusters through
integration of pipelined model parallelism and data parallelism, USENIX ATC 2020. The abstract and
an excerpt on waves were reachable, no code; the objective of the partition and the three policies
are from memory, and the rule of waves was derived from the excerpt. Decided here:

- NP: the devices of a node. ED: equally many of each type, for every number of workers that
  divides them all; where these are few, for other numbers, too, and some have one more of a type.
  HD: of two types each, the fastest paired with the slowest. Neighbours stay together.
- A stage's messages are those that it receives, there and back, and count into its seconds; an
  exact dynamic programme over all orders of the devices takes the place of an integer programme.
  Workers with too many orders for it have the best that swaps of two devices lead to.
- Mini-batches are our micro-batches, so many in flight in every worker as shorten a step and have
  room. A worker's micro-batches are by its throughput: the longest share takes least.
- Our plans are synchronous: all gradients are summed at the end of a step, no weights are stale,
  and none are kept in several versions. What HetPipe predicts is for wave synchronous parallelism
  with D = 0, where a wave is a worker's micro-batches of a step: a wave's updates are on their way,
  over rings of the devices that hold the same layers, while the next wave is computed. By that it
  chooses between policies; the first that fits by our simulator is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.hetpipe.allocation import allocations
from heterps_agents.systems.hetpipe.waves import most_missing
from heterps_agents.systems.hetpipe.workers import Candidate, Partitions, Worker
from heterps_agents.systems.ranked import first_that_fits
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("hetpipe")
class HetPipe(System):
    """The allocation with the highest throughput by its own prediction, each worker cut exactly."""

    name = "hetpipe"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Virtual workers by the best policy.

        Raises:
            InfeasibleError: In no allocation every virtual worker has room for the model.
        """
        partitions, found = Partitions(problem), list[Candidate]()
        for allocation in allocations(problem):
            if found and budget.is_exhausted:
                break
            budget.spend()
            candidate = partitions.best(allocation)
            if candidate is not None:
                found.append(candidate)
        if not found:
            raise InfeasibleError(
                f"by no policy (NP, ED, HD) every virtual worker has room for the model, with at "
                f"least one of {problem.tables.num_layers} layers for each device"
            )
        found.sort(key=lambda candidate: candidate.seconds)
        plans = [partial(self._plan, problem, candidate) for candidate in found]
        place, plan = first_that_fits(problem, plans, budget)
        own_cost = OwnCost(found[place].seconds, STEP, _note(found[place]))
        return SystemAnswer(plan, own_cost)

    def _plan(self, problem: Problem, candidate: Candidate) -> Plan:
        workers = [worker for worker in candidate.workers if worker.micro_batches]
        chains, shares, taken = [], [], 0
        for worker in workers:
            ends = [*worker.cuts[1:], problem.profile.num_layers]
            chains.append(
                tuple(
                    Column(first, end - 1, (device,))
                    for device, first, end in zip(worker.devices, worker.cuts, ends, strict=True)
                )
            )
            shares.append(range(taken, taken + worker.micro_batches))
            taken += worker.micro_batches
        stages, pipelines = routed(chains, shares)
        if problem.job.schedule == "1f1b":
            stages = _with_in_flight(stages, workers, candidate.in_flight)
        return plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)


def _with_in_flight(
    stages: Sequence[Stage], workers: Sequence[Worker], in_flight: int
) -> tuple[Stage, ...]:
    """Stages that hold fewer micro-batches than 1F1B would have them hold."""
    fewer = {
        device
        for worker in workers
        for behind, device in enumerate(reversed(worker.devices))
        if in_flight < min(behind + 1, worker.micro_batches)
    }
    return tuple(
        stage.changed(in_flight=in_flight) if stage.devices[0] in fewer else stage
        for stage in stages
    )


def _note(candidate: Candidate) -> str:
    """What of the method's own answer no plan says."""
    largest = max(worker.micro_batches for worker in candidate.workers)
    missing = most_missing(largest, 0) if len(candidate.workers) > 1 else 0
    if not missing:
        return ""
    return (
        f"HetPipe's waves overlap: with D = 0, weights lack up to {missing} updates of another "
        "virtual worker; a plan is synchronous, and lacks none"
    )
