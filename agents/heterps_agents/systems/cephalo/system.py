"""The system `cephalo`: the whole model on every device, with uneven shares of the batch.

Guo et al., Cephalo: Harnessing heterogeneous GPU clusters for training transformer models, ICS 2025
(arXiv 2411.01075). The cost, the dynamic programme and its constants were known from a reading of
the published code; the paper's abstract was reachable. Cephalo is fully sharded data parallelism: a
device's samples and its part of the state are chosen apart. Decided here:

- The cost is summed over layers, since ours are not all alike. Lines of F and B go through our
  profile's seconds at the job's size of micro-batches, and at four times that.
- Micro-batches have the job's size on every device: a plan has one size for all. What Cephalo would
  predict with its own sizes stands in a note.
- What a further micro-batch takes beside its passes, 10 ms for each layer in the published code, is
  of its runtime and counts 0: our seconds of a pass are all that a micro-batch takes here.
- Collectives go over a ring of all devices in the order of the file.
- Activations are always computed again, as its cost has it; that it moves what is left to the host
  no plan of ours says beside it.
- A plan keeps weights and gradients whole on each device that gets samples, and shards the
  optimizer state evenly over these. So what is predicted of the plan has no second gathering of
  weights and collectives over these devices alone; the choice of shares counts the former, over all
  devices. Devices without room, by the memory rule of planners, get no samples, and hold nothing.
  The water-filled shares of the state stand in a note.
"""

from __future__ import annotations

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.cephalo.batches import USABLE, Answer, Case, best_answer, seconds_of
from heterps_agents.systems.cephalo.problem import case_of, collectives_of, most_counts
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# Of larger batches the answer with sizes of its own is not looked for.
MOST_SAMPLES = 1024
# What predicts no more than that is no news.
_GAIN = 0.01


@register("cephalo")
class Cephalo(System):
    """Batch shares and state shares apart, by its dynamic programme."""

    name = "cephalo"
    own_way = "computes all layers again and shards state by its own cost"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Micro-batches for every device that has room for the model with its state sharded.

        Raises:
            InfeasibleError: Neither its own rule of memory nor ours has room for the model.
            HeterpsError: There are too many combinations.
        """
        budget.spend()
        case = case_of(problem)
        answer = _within_our_memory(problem, case)
        plan = self._plan(problem, [batch.micro_batches for batch in answer.batches])
        # What a plan shards is sharded evenly, over the devices that it uses.
        collectives = collectives_of(problem, plan.devices).weights_kept()
        own_s = seconds_of(case, collectives, answer.batches)
        return SystemAnswer(plan, OwnCost(own_s, STEP, _note(case, answer)))

    def _plan(self, problem: Problem, counts: list[int]) -> Plan:
        last = problem.profile.num_layers - 1
        layers = tuple(range(last + 1))
        chains, shares, taken = [], [], 0
        for name, count in zip(problem.device_named, counts, strict=True):
            if count:
                chains.append((Column(0, last, (name,), layers),))
                shares.append(range(taken, taken + count))
                taken += count
        plan = plan_of(problem, *routed(chains, shares), planner=self.name, seed=self.seed)
        sharded = (LayerRange(first_layer=0, last_layer=last),) if len(chains) > 1 else ()
        return plan.changed(sharded_state=sharded)


def _within_our_memory(problem: Problem, case: Case) -> Answer:
    """Its answer with samples only for devices on which a plan has room for the model.

    The fewer devices share the optimizer state, the more of it each holds.
    """
    names = list(problem.device_named)
    holders = names
    while True:
        room = most_counts(problem, holders)
        if not any(room):
            raise InfeasibleError(
                "no device has room for all weights and gradients, which a plan keeps whole"
            )
        answer = best_answer(case._replace(most_counts=room))
        if answer is None:
            raise InfeasibleError(
                f"the state and micro-batches of {case.num_samples} samples do not fit in "
                f"{USABLE:.0%} of the memory, or on the devices with room for the model"
            )
        used = [n for n, batch in zip(names, answer.batches, strict=True) if batch.samples]
        if len(used) == len(holders):
            return answer
        holders = used


def _note(case: Case, answer: Answer) -> str:
    """What no plan says of Cephalo's own answer."""
    texts = []
    if len(case.times) > 1 and case.state_bytes:
        parts = [each / case.state_bytes for each in answer.state_bytes]
        texts.append(
            f"Cephalo shards weights and gradients, too, {_range(parts)} of all state on a device, "
            f"for {answer.seconds:.4g} s; a plan keeps them whole and shards the optimizer state "
            "evenly"
        )
    own = _with_own_sizes(case)
    if own is not None and own.seconds < (1 - _GAIN) * answer.seconds:
        samples = ", ".join(
            f"{batch.micro_batches} x {batch.size}" for batch in sorted(set(own.batches))
        )
        texts.append(
            f"with micro-batches of its own sizes ({samples}) it predicts {own.seconds:.4g} s"
        )
    return "; ".join(texts)


def _range(parts: list[float]) -> str:
    least, most = f"{min(parts):.3g}", f"{max(parts):.3g}"
    return least if least == most else f"{least} to {most}"


def _with_own_sizes(case: Case) -> Answer | None:
    if case.num_samples > MOST_SAMPLES:
        return None
    try:
        return best_answer(case._replace(sizes=range(1, case.num_samples + 1), most_counts=()))
    except HeterpsError:
        return None
