"""The planners by name. Naming one imports its module only, so that a command stays quick."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from heterps_agents.planner import Planner
from heterps_configs.errors import UnknownNameError

PlannerFactory = Callable[[int], Planner]

# In the order in which tables show them.
_MODULES = {
    "auto": "heterps_agents.auto",
    "exact": "heterps_agents.exact_planner",
    "ppo": "heterps_agents.ppo",
    "annealing": "heterps_agents.annealing",
    "genetic": "heterps_agents.genetic",
    "cross-entropy": "heterps_agents.cross_entropy",
    "greedy": "heterps_agents.greedy",
    "random": "heterps_agents.random_search",
    "even": "heterps_agents.proportional",
    "memory-proportional": "heterps_agents.proportional",
    "speed-proportional": "heterps_agents.proportional",
}
_FACTORIES: dict[str, PlannerFactory] = {}


def register(name: str) -> Callable[[PlannerFactory], PlannerFactory]:
    """Decorator that makes a planner known under a name.

    The decorated class, or function, takes a seed and returns a `Planner`. A name that is
    registered again is replaced.
    """

    def decorate(factory: PlannerFactory) -> PlannerFactory:
        _FACTORIES[name] = factory
        return factory

    return decorate


def planner_names() -> tuple[str, ...]:
    """All names: the shipped planners first, then those that were registered since."""
    return tuple(dict.fromkeys([*_MODULES, *_FACTORIES]))


def planner_named(name: str, seed: int = 0) -> Planner:
    """The planner called `name`.

    Args:
        name: One of `planner_names`.
        seed: Equal seeds give equal plans, as long as no limit in seconds cuts a search short.

    Raises:
        UnknownNameError: With near names.
    """
    if name not in planner_names():
        raise UnknownNameError("planner", name, planner_names())
    if name not in _FACTORIES:
        import_module(_MODULES[name])
    return _FACTORIES[name](seed)
