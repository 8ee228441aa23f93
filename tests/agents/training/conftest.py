"""Runs of a second, one of each kind, that the tests of this room look at."""

from typing import NamedTuple

import pytest

from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy
from heterps_agents.training.run import TrainingProgress, TrainingResult
from heterps_agents.training.train import train
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig

AnyConfig = ChainTrainingConfig | GraphTrainingConfig

CHAINS = ChainTrainingConfig(
    total_steps=256,
    layers=(6, 10),
    classes=(2, 3),
    pool_size=18,
    refreshed_per_update=2,
    imitation_passes=2,
    imitation_problems=16,
    imitation_refreshed=4,
    hidden=16,
    num_environments=16,
    steps_per_update=8,
    minibatch_size=64,
    evaluation_problems=3,
    curve_problems=1,
    evaluation_every_s=1000.0,
    checkpoint_every_s=0.001,
)
# Prices are judged by the planner's search, which takes longer.
PRICES = CHAINS.changed(
    objective="price", imitation_passes=0, evaluation_problems=2, curve_problems=0
)
# More problems than one update searches, none of which an exact solver has time for.
EXPERT = CHAINS.changed(
    algorithm="expert-iteration", imitation_passes=6, imitation_refreshed=0, longest_exact_s=1e-9
)
GRAPHS = GraphTrainingConfig(
    problems="graphs",
    total_steps=400,
    nodes=(8, 12),
    devices=(2, 3),
    first_nodes=10,
    hidden=16,
    node_width=8,
    message_rounds=1,
    problems_per_update=5,
    rollouts=4,
    minibatch_size=64,
    polish_evaluations=50,
    evaluation_problems=4,
    evaluation_every_s=0.001,
    checkpoint_every_s=0.001,
)
CONFIGS: dict[str, AnyConfig] = {
    "chains": CHAINS,
    "imitation": CHAINS.changed(algorithm="imitation"),
    "expert": EXPERT,
    "price": PRICES,
    "budget": PRICES.changed(objective="budget"),
    "graphs": GRAPHS,
}


class Trained(NamedTuple):
    """A run that was not stopped, and all that its progress showed."""

    result: TrainingResult[Policy] | TrainingResult[GraphPolicy]
    seen: list[TrainingProgress]


class Runs:
    """One run of each kind, made when a test first asks for it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._runs = factory, dict[str, Trained]()

    def __getitem__(self, kind: str) -> Trained:
        if kind not in self._runs:
            seen: list[TrainingProgress] = []
            folder = self._factory.mktemp(kind)
            command = "heterps train x"
            result = train(CONFIGS[kind], folder, progress=seen.append, command=command)
            self._runs[kind] = Trained(result, seen)
        return self._runs[kind]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory)
