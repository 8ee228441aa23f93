"""The planner `heterps-lstm`: for every problem a new LSTM, trained by REINFORCE. Imports torch.

The idea of HeterPS (Liu et al., FGCS 148, 2023) as far as its abstract and its authors' patents
give it: a network is trained for one model on one cluster; it reads the layers in order and answers
with a type of device for each; neighbouring layers of one type are a stage; then every stage gets
its number of devices, and what the provisioned placement costs is the (negative) reward.

Unverified against the paper, and chosen here: the size of the network, that the choice for the
layer before is one of its inputs, the features, the learning rate, how many samples a round has,
the logarithm in the reward, the entropy bonus, how the moving average of the rewards (the baseline)
moves, and that a type without a free device begins no stage. Provisioning is that of
`heterps_envs.environments.layer.provisioning`; the paper's is made for its own cost model, see
`heterps_agents.systems.heterps.provisioning`. Two stages of one type cannot stand side by side, so
some problems have no placement that this planner could find.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import register
from heterps_agents.interface.search_planner import SearchPlanner
from heterps_agents.interface.system import System, SystemAnswer
from heterps_agents.interface.torch_threads import one_thread
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.closed_form.objective import DOES_NOT_FIT, MISSES_FLOOR, code_cost
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.layer.provisioning import provision
from heterps_envs.problem import Problem

DEFAULT_EVALUATIONS = 2048
SAMPLES_PER_ROUND, HIDDEN, LEARNING_RATE = 32, 64, 3e-3
BASELINE_RATE, ENTROPY_WEIGHT, LARGEST_GRADIENT = 0.2, 0.01, 1.0
# Rewards of placements that miss the floor, and of those that do not fit, begin here.
MISSED_REWARD, MISFIT_REWARD = -6.0, -8.0


@register("heterps-lstm")
class HeterpsLstm(System):
    """The best of what the network found and of the best simple placement."""

    name = "heterps-lstm"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The plan of `lstm_code`, by our cost: the network has none of its own.

        That cost counts with as many micro-batches in flight as help.
        """
        planner = SearchPlanner(self.name, lstm_code, simple_start, self.seed)
        plan = choose_in_flight(problem, planner.plan(problem, budget), Budget())
        return SystemAnswer(plan, None)


def lstm_code(question: Question) -> Code | None:
    """Code of the best sample of all rounds.

    A provisioned placement is one evaluation. The network makes nothing of a start.
    """
    budget, best, best_cost = question.budget, question.start, question.cost(question.start)
    spent, most = 0, math.inf if budget.is_limited else DEFAULT_EVALUATIONS
    if math.isinf(lower_bound(question.tables)):
        return best
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(question.seed)
        trainer = _Trainer(question)
        while not budget.is_exhausted and spent < most:
            left = budget.evaluations_left
            count = SAMPLES_PER_ROUND if left is None else min(SAMPLES_PER_ROUND, left)
            codes, costs = trainer.round(count)
            budget.spend(count)
            spent += count
            chosen = int(costs.argmin())
            if costs[chosen] < min(best_cost, MISSES_FLOOR):
                best, best_cost = codes[chosen].copy(), float(costs[chosen])
                question.found(best, best_cost)
    return best


class _Trainer:
    """One network, its optimizer and its baseline, for one problem."""

    def __init__(self, question: Question) -> None:
        tables, self.kernel, self.goal, *_ = question
        self.network = LayerSequence(
            torch.from_numpy(layer_features(tables)), torch.from_numpy(tables.device_count)
        )
        self.optimizer = torch.optim.Adam(self.network.parameters(), LEARNING_RATE)
        self.baseline: float | None = None
        self.reference = lower_bound(tables)
        if self.goal.is_price:
            self.reference *= max(float(tables.price_usd_per_hour.max()), 1e-9)

    def round(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Samples placements and learns from them; (count, L) codes and (count,) costs."""
        kinds, log_probability, entropy = self.network.sample(count)
        codes = provision(kinds, self.kernel, self.goal)
        costs = np.array([code_cost(code, self.kernel, self.goal) for code in codes])
        rewards = reward_of(costs, self.reference)
        mean = float(rewards.mean())
        if self.baseline is None:
            self.baseline = mean
        advantage = (rewards - self.baseline) / max(float(rewards.std()), 1e-3)
        self.baseline += BASELINE_RATE * (mean - self.baseline)
        weights = torch.from_numpy(advantage.astype(np.float32))
        loss = -(weights * log_probability).mean() - ENTROPY_WEIGHT * entropy
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), LARGEST_GRADIENT)
        self.optimizer.step()
        return codes, costs


class LayerSequence(nn.Module):
    """Types for the layers of one model, front to back.

    Args:
        features: (L, F) float32 of the layers.
        device_count: (T,) devices of each type.
    """

    def __init__(self, features: Tensor, device_count: Tensor) -> None:
        super().__init__()
        self.features, self.device_count = features, device_count
        self.cell = nn.LSTMCell(features.shape[1] + len(device_count), HIDDEN)
        self.head = nn.Linear(HIDDEN, len(device_count))

    def sample(self, count: int) -> tuple[NDArray[np.int64], Tensor, Tensor]:
        """Draws (count, L) types; with (count,) log-probabilities and the mean entropy."""
        types = len(self.device_count)
        hidden = memory = torch.zeros(count, HIDDEN)
        before, begun = torch.zeros(count, types), torch.zeros(count, types)
        log_probability, entropy, kinds = torch.zeros(count), torch.zeros(()), []
        for layer in self.features:
            entered = torch.cat([layer.expand(count, -1), before], dim=1)
            hidden, memory = self.cell(entered, (hidden, memory))
            taken = (begun >= self.device_count) & (before == 0)
            logits = self.head(hidden).masked_fill(taken, -1e8)
            scores = torch.log_softmax(logits, dim=1)
            kind = torch.multinomial(scores.detach().exp(), 1)
            log_probability = log_probability + scores.gather(1, kind)[:, 0]
            entropy = entropy - (scores.exp() * scores.clamp(min=-50.0)).sum(dim=1).mean()
            chosen = torch.zeros_like(before).scatter(1, kind, 1.0)
            begun, before = begun + chosen * (1.0 - before), chosen
            kinds.append(kind[:, 0])
        return torch.stack(kinds, dim=1).numpy(), log_probability, entropy / len(kinds)


def layer_features(tables: CostTables) -> NDArray[np.float32]:
    """(L, 2 T + 4): index; seconds, memory on each type; bytes sent on, kept, reduced."""
    seconds = tables.compute_s
    columns = [
        np.linspace(0.0, 1.0, tables.num_layers)[:, None],
        np.log1p(seconds / max(float(seconds.mean()), 1e-30)),
        np.log1p(10.0 * tables.state_bytes[:, None] / tables.memory_bytes),
    ]
    for amount in (tables.output_bytes, tables.activation_bytes, tables.gradient_bytes):
        columns.append((amount / max(float(amount.max()), 1e-30))[:, None])
    return np.concatenate(columns, axis=1).astype(np.float32)


def reward_of(costs: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """Minus the logarithm of the costs over a reference; graded below that where nothing fits."""
    usable = np.maximum(-np.log(np.maximum(costs, 1e-300) / reference), MISSED_REWARD)
    missed = MISSED_REWARD - np.log(np.maximum(costs / MISSES_FLOOR, 1.0))
    misfit = MISFIT_REWARD - np.log(np.maximum(costs / DOES_NOT_FIT, 1.0))
    conditions = [costs < MISSES_FLOOR, costs < DOES_NOT_FIT]
    return np.select(conditions, [usable, np.maximum(missed, MISFIT_REWARD)], misfit)
