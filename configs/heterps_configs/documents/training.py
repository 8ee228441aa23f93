"""Training configurations: for policies that place chains of layers, and for those of graphs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import (
    Count,
    Factor,
    Number,
    PositiveCount,
    PositiveSeconds,
    Rate,
    Seed,
    Share,
    Threads,
    Weight,
    Whole,
)

Size = Annotated[Whole, Field(ge=1, le=10**6)]
Sizes = Annotated[Whole, Field(ge=0, le=10**6)]
# Drawn one by one before training begins.
MOST_JUDGED = 10_000
Judged = Annotated[Whole, Field(ge=1, le=MOST_JUDGED)]
Width = Annotated[Whole, Field(ge=1, le=4096)]
Passes = Annotated[Whole, Field(ge=1, le=1000)]
Rounds = Annotated[Whole, Field(ge=0, le=64)]
PositiveSteps = Annotated[Whole, Field(ge=1, le=10**15)]
Algorithm = Literal["ppo", "imitation", "expert-iteration", "expert-iteration-ppo"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
FinalRate = Annotated[Number, Field(ge=0, le=10.0)]
Range = tuple[PositiveCount, PositiveCount]
MOST_LAYERS, MOST_CLASSES, MOST_REPLICAS = 4096, 16, 4096
MOST_NODES, MOST_DEVICES = 4096, 16
# Of a table of the pool: half a gigabyte.
MOST_POOL_NUMBERS = 2**26
# What a decision sees of chains are 2 kB for each device class; of graphs 64 bytes for each device.
# Four gigabytes of them are remembered at once. A placement is some eight decisions.
MOST_SEEN_CLASSES, MOST_SEEN_DEVICES, DECISIONS = 2**21, 2**26, 8


class TrainingConfig(Document):
    """When to stop, PPO, and how often a run reports. What is learned from says a subclass.

    Attributes:
        description: One line for lists.
        seed: Of problems, episodes and weights.
        budget_s: Stop after so many seconds of training; evaluation included.
        total_steps: Stop after so many decisions; makes a run repeatable.
        hidden: Width of the layers that score candidates.
        minibatch_size: Decisions of one gradient.
        epochs: Passes over the decisions of an update.
        learning_rate: At the start; falls linearly to `final_learning_rate`.
        entropy_weight: Bonus for undecided policies; falls to a tenth.
        clip_range: PPO's limit on the change of probabilities.
        evaluation_problems: Held-out problems that the policy is judged by.
        evaluation_every_s: Seconds between two evaluations.
        checkpoint_every_s: Seconds between two checkpoints.
        num_threads: Of torch. The networks are so small that a second thread seldom pays.
        fixed_fields: What weights, problems and random numbers of a checkpoint go by: these cannot
            change when a run goes on.
        range_fields: Smallest and largest of something.
        report_fields: How often a run tells of itself, and by what: nothing that is learned goes by
            them.
    """

    fixed_fields: ClassVar[tuple[str, ...]]
    range_fields: ClassVar[tuple[str, ...]]
    report_fields: ClassVar[tuple[str, ...]] = (
        "evaluation_problems",
        "evaluation_every_s",
        "checkpoint_every_s",
        "curve_problems",
        "num_threads",
    )

    description: str = ""
    seed: Seed = 0
    budget_s: PositiveSeconds | None = None
    total_steps: PositiveSteps | None = None

    hidden: Width = 64
    minibatch_size: Size
    epochs: Passes
    learning_rate: Rate = 2e-3
    final_learning_rate: FinalRate = 1e-4
    entropy_weight: Weight
    clip_range: Rate = 0.2

    evaluation_problems: Judged
    evaluation_every_s: PositiveSeconds
    checkpoint_every_s: PositiveSeconds = 30.0
    num_threads: Threads = 1

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.budget_s is None and self.total_steps is None:
            raise ValueError("budget_s or total_steps must be given: training has to end")
        for name in self.range_fields:
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the smallest, {low}, is above the largest, {high}")
        return self


class ChainTrainingConfig(TrainingConfig):
    """Chains to learn from, imitation, and episodes.

    Attributes:
        algorithm: `ppo`: PPO, after as many passes of imitation as there are. `imitation`: these
            passes alone. `expert-iteration`: the same, and between them, `expert_rounds` times, a
            search that the policy guides as it is then gives problems without a proven optimum
            better placements to imitate. `expert-iteration-ppo`: PPO after that.
        objective: What is learned: `throughput`: short steps. `price`: cheap samples under a
            throughput floor. `budget`: short steps under a limit on the price per hour.
        distribution: `even`: all sizes between these are alike. `wide`: half of the problems have
            the sizes of `even`'s defaults; of the others the logarithms of layers and devices are
            even, some have stage options, speeds are up to fifty times apart.
        layers: Fewest and most layers of a problem.
        classes: The same of device classes.
        devices_per_class: The same of devices of one class.
        target_range: Targets as multiples of the bottleneck of the best known placement.
        pool_size: Problems that are ready at any time.
        refreshed_per_update: Problems of them that each update replaces by new ones.
        prioritised_share: Share of the episodes that prefer problems which some episodes solve and
            others do not.
        imitation_passes: Before PPO, the network so often learns decisions of exact optima; only
            with the objective `throughput`.
        expert_rounds: Searches of all problems without a proven optimum, evenly between passes.
        expert_effort: Of the search in these rounds, see `heterps_configs.documents.effort`.
        imitation_problems: Problems whose optima are replayed in one such pass.
        imitation_refreshed: Problems of the pool that are replaced before each pass.
        imitation_learning_rate: At the first pass; falls to a twentieth.
        longest_exact_s: A problem whose exact optimum takes longer by prediction starts from what
            short searches find instead; its reference is then the best that any episode has found.
            With another objective than `throughput` it is left out.
        num_environments: Episodes at once.
        steps_per_update: Steps of each episode before the network is updated.
        gae_lambda: Generalised advantage estimation.
        curve_problems: Problems of each other development set whose gap is logged.
    """

    fixed_fields: ClassVar = (
        "algorithm",
        "objective",
        "distribution",
        "hidden",
        "seed",
        "layers",
        "classes",
        "devices_per_class",
        "pool_size",
        "num_environments",
    )
    range_fields: ClassVar = ("layers", "classes", "devices_per_class", "target_range")

    algorithm: Algorithm = "ppo"
    objective: Literal["throughput", "price", "budget"] = "throughput"
    distribution: Literal["even", "wide"] = "even"
    layers: Range = (8, 32)
    classes: Range = (2, 4)
    devices_per_class: Range = (1, 4)
    target_range: tuple[Factor, Factor] = (1.0, 1.12)
    pool_size: Size = 2048
    refreshed_per_update: Sizes = 8
    prioritised_share: Share = 0.3
    imitation_passes: Count = 0
    imitation_problems: Size = 4096
    imitation_refreshed: Sizes = 256
    imitation_learning_rate: Rate = 2e-3
    expert_rounds: Passes = 2
    expert_effort: Literal["fast", "normal", "high"] = "high"
    longest_exact_s: PositiveSeconds = 0.05

    num_environments: Size = 256
    steps_per_update: Size = 16
    minibatch_size: Size = 1024
    epochs: Passes = 3
    entropy_weight: Weight = 0.01
    gae_lambda: Share = Field(default=0.95, gt=0)

    evaluation_problems: Judged = 160
    curve_problems: Annotated[Whole, Field(ge=0, le=MOST_JUDGED)] = 24
    evaluation_every_s: PositiveSeconds = 20.0

    @property
    def runs_ppo(self) -> bool:
        """Whether PPO ends the run."""
        return self.algorithm in ("ppo", "expert-iteration-ppo")

    @property
    def searches(self) -> bool:
        """Whether a search gives better placements to imitate."""
        return self.algorithm.startswith("expert-iteration")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.imitation_passes > 0 and self.objective != "throughput":
            raise ValueError(
                f"imitation_passes: must be 0 with the objective {self.objective}: only the optima "
                "of the objective throughput are imitated"
            )
        least = {"ppo": 0, "imitation": 1}.get(self.algorithm, 1 + self.expert_rounds)
        if self.imitation_passes < least:
            raise ValueError(
                f"imitation_passes: the algorithm {self.algorithm} needs at least {least}, "
                f"got {self.imitation_passes}"
            )
        if self.distribution == "wide" and self.objective != "throughput":
            raise ValueError(
                f"distribution: must be even with the objective {self.objective}: the frontier of "
                "step time and price is affordable for small problems only"
            )
        if self.layers[1] > MOST_LAYERS or self.classes[1] > MOST_CLASSES:
            raise ValueError(
                f"at most {MOST_LAYERS} layers and {MOST_CLASSES} device classes can be trained on"
            )
        if self.devices_per_class[1] > MOST_REPLICAS:
            raise ValueError(
                f"devices_per_class: up to {self.devices_per_class[1]}; a stage has at most "
                f"{MOST_REPLICAS} replicas, so no more can be trained on"
            )
        numbers = self.pool_size * self.layers[1] * self.classes[1]
        if numbers > MOST_POOL_NUMBERS:
            raise ValueError(
                f"pool_size: {self.pool_size} problems of up to {self.layers[1]} layers and "
                f"{self.classes[1]} device classes take {numbers} numbers in each table of the "
                f"pool; at most {MOST_POOL_NUMBERS} are supported"
            )
        self._check_remembered()
        self._check_minibatches()
        return self

    def _check_remembered(self) -> None:
        """What an update, or a pass of imitation, holds in memory."""
        classes = self.classes[1]
        most = MOST_SEEN_CLASSES // classes
        decisions = self.num_environments * self.steps_per_update
        if decisions > most:
            raise ValueError(
                f"num_environments: {self.num_environments} episodes x steps_per_update "
                f"{self.steps_per_update} are {decisions} decisions of an update; with up to "
                f"{classes} device classes at most {most} are supported"
            )
        if self.imitation_passes and self.imitation_problems > most // DECISIONS:
            raise ValueError(
                f"imitation_problems: {self.imitation_problems} optima in one pass; with up to "
                f"{classes} device classes at most {most // DECISIONS} are supported"
            )

    def _check_minibatches(self) -> None:
        """PPO takes advantages by their standard deviation in a mini-batch: one has none."""
        decisions = self.num_environments * self.steps_per_update
        smallest = decisions % self.minibatch_size or self.minibatch_size
        if self.runs_ppo and min(smallest, decisions) < 2:
            raise ValueError(
                f"minibatch_size: of the {decisions} decisions of an update (num_environments "
                f"{self.num_environments} x steps_per_update {self.steps_per_update}) the last "
                f"mini-batch of {self.minibatch_size} would have one; PPO needs at least 2 in each"
            )


class GraphTrainingConfig(TrainingConfig):
    """Graphs to learn from, groups of placements, and examples.

    Attributes:
        problems: Always `graphs`: tells these files from those for chains of layers.
        nodes: Fewest and most nodes of a graph.
        devices: The same of devices.
        first_nodes: Most nodes at the start; the limit grows to that of `nodes`.
        growth_share: Share of the budget over which it grows.
        node_width: Width of the message passing.
        message_rounds: How often nodes hear from their producers and consumers.
        problems_per_update: Fresh problems that an update learns from.
        rollouts: Placements of each of them; they are judged against each other.
        polish_evaluations: Of the short annealing that makes an example of each problem's best
            placement; 0 for no examples.
        example_weight: Of imitating the examples, beside the policy's own experience; falls to a
            tenth.
    """

    fixed_fields: ClassVar = (
        "seed",
        "nodes",
        "devices",
        "hidden",
        "node_width",
        "message_rounds",
    )
    range_fields: ClassVar = ("nodes", "devices")

    problems: Literal["graphs"]
    nodes: Range = (24, 64)
    devices: Range = (3, 6)
    first_nodes: Size = 40
    growth_share: Share = 0.3

    node_width: Width = 32
    message_rounds: Rounds = 2
    problems_per_update: Size = 48
    rollouts: Size = Field(default=8, ge=2)
    minibatch_size: Size = 2048
    epochs: Passes = 2
    entropy_weight: Weight = 0.02
    polish_evaluations: Sizes = 1000
    example_weight: Weight = 0.5

    evaluation_problems: Judged = 60
    evaluation_every_s: PositiveSeconds = 30.0

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.nodes[1] > MOST_NODES or self.devices[1] > MOST_DEVICES:
            raise ValueError(
                f"at most {MOST_NODES} nodes and {MOST_DEVICES} devices can be trained on"
            )
        if not self.nodes[0] <= self.first_nodes <= self.nodes[1]:
            raise ValueError(
                f"first_nodes: {self.first_nodes} is not within nodes, {list(self.nodes)}"
            )
        placements, most = self.problems_per_update * self.rollouts, self._most_placements()
        if placements > most:
            raise ValueError(
                f"problems_per_update: {self.problems_per_update} problems x rollouts "
                f"{self.rollouts} are {placements} placements of an update; of up to "
                f"{self.nodes[1]} nodes on {self.devices[1]} devices at most {most} are supported"
            )
        return self

    def _most_placements(self) -> int:
        return MOST_SEEN_DEVICES // (self.nodes[1] * self.devices[1])
