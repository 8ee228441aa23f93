"""Papers behind planners and systems, and which of their published numbers are reproduced here."""

from __future__ import annotations

from typing import NamedTuple


class Paper(NamedTuple):
    """Where a method was published."""

    title: str
    authors: str
    year: int
    venue: str

    def __str__(self) -> str:
        return f"{self.authors}, {self.year}: {self.title}, {self.venue}"


class Evidence(NamedTuple):
    """Published numbers that a test or a benchmark of this project reproduces.

    Attributes:
        numbers: Which numbers.
        where: The file, from the project's root; a benchmark needs the published files.
    """

    numbers: str
    where: str


_HETERPS = Paper(
    "HeterPS: Distributed deep learning with reinforcement learning based scheduling in "
    "heterogeneous environments",
    "Liu et al.", 2023, "Future Generation Computer Systems 148",
)  # fmt: skip

PAPERS: dict[str, Paper] = {
    "annealing": Paper(
        "Optimization by simulated annealing", "Kirkpatrick, Gelatt and Vecchi", 1983, "Science 220"
    ),
    "genetic": Paper(
        "The GENITOR algorithm and selection pressure", "Whitley", 1989, "ICGA"
    ),
    "cross-entropy": Paper(
        "The cross-entropy method for combinatorial and continuous optimization",
        "Rubinstein", 1999, "Methodology and Computing in Applied Probability 1",
    ),
    "layer-ppo": Paper(
        "Proximal policy optimization algorithms", "Schulman et al.", 2017, "arXiv 1707.06347"
    ),
    "heterps-lstm": _HETERPS,
    "heterps-price": _HETERPS,
    "pipedream": Paper(
        "PipeDream: Generalized pipeline parallelism for DNN training",
        "Narayanan et al.", 2019, "SOSP",
    ),
    "piper": Paper(
        "Piper: Multidimensional planner for DNN parallelization",
        "Tarnawski, Narayanan and Phanishayee", 2021, "NeurIPS",
    ),
    "pipeedge": Paper(
        "PipeEdge: Pipeline parallelism for large-scale model inference on heterogeneous edge "
        "devices",
        "Hu et al.", 2022, "Euromicro Conference on Digital System Design",
    ),
    "oobleck": Paper(
        "Oobleck: Resilient distributed training of large models using pipeline templates",
        "Jang et al.", 2023, "SOSP",
    ),
    "malleus": Paper(
        "Malleus: Straggler-resilient hybrid parallel training of large-scale models via "
        "malleable data and model parallelization",
        "Li et al.", 2024, "arXiv 2410.13333",
    ),
    "sailor": Paper(
        "Sailor: Automating distributed training over dynamic, heterogeneous, and geo-distributed "
        "clusters",
        "Strati et al.", 2025, "SOSP",
    ),
    "whale": Paper(
        "Whale: Efficient giant model training over heterogeneous GPUs",
        "Jia et al.", 2022, "USENIX ATC",
    ),
    "amp": Paper(
        "AMP: Automatically finding model parallel strategies with heterogeneity awareness",
        "Li et al.", 2022, "NeurIPS",
    ),
    "metis": Paper(
        "Metis: Fast automatic distributed training on heterogeneous GPUs",
        "Um et al.", 2024, "USENIX ATC",
    ),
    "dt-fm": Paper(
        "Decentralized training of foundation models in heterogeneous environments",
        "Yuan et al.", 2022, "NeurIPS",
    ),
    "harp": Paper(
        "HARP: Orchestrating automated parallel training on heterogeneous GPU clusters",
        "Liang et al.", 2026, "EuroSys (first as HAPT, arXiv 2509.24859)",
    ),
    "hetpipe": Paper(
        "HetPipe: Enabling large DNN training on (whimpy) heterogeneous GPU clusters through "
        "integration of pipelined model parallelism and data parallelism",
        "Park et al.", 2020, "USENIX ATC",
    ),
    "cephalo": Paper(
        "Cephalo: Harnessing heterogeneous GPU clusters for training transformer models",
        "Guo et al.", 2025, "ICS",
    ),
    "autohete": Paper(
        "AutoHete: An automatic and efficient heterogeneous training system for LLMs",
        "Zeng et al.", 2025, "arXiv 2503.01890",
    ),
    "tangram": Paper(
        "Tangram: Hiding GPU heterogeneity for efficient LLM parallelization",
        "Tao et al.", 2026, "arXiv 2606.16907",
    ),
    "hexiscale": Paper(
        "HexiScale: Accommodating large language model training over heterogeneous environment",
        "Yan et al.", 2024, "arXiv 2409.01143",
    ),
    "hap": Paper(
        "HAP: SPMD DNN training on heterogeneous GPU clusters with automated program synthesis",
        "Zhang et al.", 2024, "EuroSys",
    ),
}  # fmt: skip

# A system that is not named here reproduces no published number.
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "pipedream": (
        Evidence(
            "seconds of the slowest stage that the published optimizer finds for its own graphs",
            "benchmarks/published/pipedream.py",
        ),
    ),
    "piper": (
        Evidence(
            "seconds per sample that Piper's planner finds for BERT-32 on 8 to 512 devices",
            "benchmarks/published/piper.py",
        ),
    ),
    "pipeedge": (
        Evidence(
            "the schedule of ViT on four MinnowBoards and four RCC-VEs, and its optimum",
            "benchmarks/published/pipeedge.py",
        ),
    ),
    "oobleck": (
        Evidence(
            "times of templates, numbers of template sets and shares of the batch of its code",
            "tests/agents/systems/oobleck/test_templates.py",
        ),
        Evidence(
            "regrouping after losses, by its code of 2023 and its rewrite of 2026",
            "tests/agents/systems/oobleck/test_recovery.py",
        ),
    ),
    "malleus": (
        Evidence(
            "its planner's seconds with stragglers among 16 GPUs (256, 288, 297)",
            "tests/agents/systems/malleus/test_straggler.py",
        ),
    ),
    "sailor": (
        Evidence(
            "its simulator's seconds of the authors' measured runs, and two exact optima",
            "benchmarks/published/sailor.py",
        ),
        Evidence(
            "its finding that 128 V100 beside 128 A100 can best stay idle, on a case of ours",
            "tests/agents/systems/sailor/test_goal.py",
        ),
    ),
    "hap": (
        Evidence(
            "shares by speed to the last digit, roundings of its code, where shares jump",
            "tests/agents/systems/hap/test_ratios.py",
        ),
        Evidence(
            "from where grouped gathers win with the bandwidths that its authors measured",
            "tests/agents/systems/hap/test_collectives.py",
        ),
    ),
    "cephalo": (
        Evidence(
            "milliseconds of its code's shares of 64 samples on four GPUs, and of equal ones",
            "tests/agents/systems/cephalo/test_batches.py",
        ),
    ),
    "dt-fm": (
        Evidence(
            "costs of its five networks of 64 devices, at or below those that its program reached",
            "benchmarks/published/dtfm.py",
        ),
    ),
    "harp": (
        Evidence(
            "the cost and the launch counts of the plan that its README prints",
            "tests/agents/systems/harp/test_cost.py",
        ),
    ),
}
