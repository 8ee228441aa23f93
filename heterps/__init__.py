"""heterps: which layer of a neural network runs on which device of a mixed cluster.

The Python front door; every name is loaded when it is first used:

    from heterps import load_problem, place
    result = place(load_problem("llama-7b", "a100-v100-t4"))
    print(result.summary())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps.micro_batches.place_result import PlaceResult as PlaceResult
    from heterps.planning.compare import compare as compare
    from heterps.planning.comparison import Comparison as Comparison
    from heterps.planning.frontier import frontier as frontier
    from heterps.planning.modules import Example as Example
    from heterps.planning.place import place as place
    from heterps.planning.place_code import place_code as place_code
    from heterps.planning.problems import load_problem as load_problem
    from heterps.run_commands.from_python import run as run
    from heterps_agents.interface.planner import Budget as Budget
    from heterps_agents.interface.registry import planner_named as planner_named
    from heterps_configs.documents.job import Strategy as Strategy
    from heterps_configs.errors import HeterpsError as HeterpsError
    from heterps_runtime.own_loop.trainer import PipelineTrainer as PipelineTrainer
    from heterps_runtime.training.program import TrainingProgram as TrainingProgram

__version__ = "0.1.0"

_HOMES = {
    "Budget": "heterps_agents.interface.planner",
    "Comparison": "heterps.planning.comparison",
    "Example": "heterps.planning.modules",
    "HeterpsError": "heterps_configs.errors",
    "PipelineTrainer": "heterps_runtime.own_loop.trainer",
    "PlaceResult": "heterps.micro_batches.place_result",
    "Strategy": "heterps_configs.documents.job",
    "TrainingProgram": "heterps_runtime.training.program",
    "compare": "heterps.planning.compare",
    "frontier": "heterps.planning.frontier",
    "load_problem": "heterps.planning.problems",
    "place": "heterps.planning.place",
    "place_code": "heterps.planning.place_code",
    "planner_named": "heterps_agents.interface.registry",
    "run": "heterps.run_commands.from_python",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use (PEP 562), so that `import heterps` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'heterps' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__} - {"annotations", "import_module", "TYPE_CHECKING", "Any"})
