"""Planners and systems by name. Naming one imports its module only, so that a command is quick."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from heterps_agents.interface.planner import Planner
from heterps_configs.arguments import check_seed, check_type, wrong_type
from heterps_configs.errors import UnknownNameError

PlannerFactory = Callable[[int], Planner]

# In the order in which tables show them.
_MODULES = {
    "auto": "heterps_agents.auto.planner",
    "exact": "heterps_agents.exact.planner",
    "ppo": "heterps_agents.learned.planner",
    "unlearned-beam": "heterps_agents.learned.unlearned_beam",
    "annealing": "heterps_agents.search.annealing",
    "genetic": "heterps_agents.search.genetic",
    "cross-entropy": "heterps_agents.search.cross_entropy",
    "asymmetric": "heterps_agents.asymmetric.planner",
    "heterps-lstm": "heterps_agents.systems.heterps.lstm",
    "layer-ppo": "heterps_agents.search.layer_ppo",
    "greedy": "heterps_agents.search.greedy",
    "random": "heterps_agents.search.random",
    "even": "heterps_agents.search.proportional",
    "memory-proportional": "heterps_agents.search.proportional",
    "speed-proportional": "heterps_agents.search.proportional",
    "uniform-3d": "heterps_agents.search.uniform",
}
# Systems of papers: planners too, but shown only where they are asked for.
_SYSTEMS = {
    "heterps-price": "heterps_agents.systems.heterps.system",
    "pipedream": "heterps_agents.systems.pipedream.system",
    "piper": "heterps_agents.systems.piper.system",
    "pipeedge": "heterps_agents.systems.pipeedge.system",
    "oobleck": "heterps_agents.systems.oobleck.system",
    "malleus": "heterps_agents.systems.malleus.system",
    "sailor": "heterps_agents.systems.sailor.system",
    "hap": "heterps_agents.systems.hap.system",
    "whale": "heterps_agents.systems.whale.system",
    "amp": "heterps_agents.systems.amp.system",
    "metis": "heterps_agents.systems.metis.system",
    "dt-fm": "heterps_agents.systems.dtfm.system",
    "harp": "heterps_agents.systems.harp.system",
    "hetpipe": "heterps_agents.systems.hetpipe.system",
    "cephalo": "heterps_agents.systems.cephalo.system",
    "autohete": "heterps_agents.systems.autohete.system",
    "tangram": "heterps_agents.systems.tangram.system",
    "hexiscale": "heterps_agents.systems.hexiscale.system",
}
_FACTORIES: dict[str, PlannerFactory] = {}

# Planners that train a network for every problem, with torch: seconds of a processor for one
# evaluation of one layer, and those until the first evaluation, most of them imports.
SECONDS_PER_LAYER = {"heterps-lstm": 2.5e-5, "layer-ppo": 7e-5}
SECONDS_TO_START = 2.0


def predicted_training_s(name: str, num_layers: int, evaluations: float) -> float:
    """Processor seconds of a planner that trains a network for every problem; 0 for all others.

    Args:
        name: A planner's name.
        num_layers: Of the model.
        evaluations: That it may spend; inf for no limit.
    """
    if name not in SECONDS_PER_LAYER:
        return 0.0
    return SECONDS_TO_START + SECONDS_PER_LAYER[name] * num_layers * evaluations


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
    """The shipped planners first, then those that were registered since."""
    return tuple(name for name in {**_MODULES, **_FACTORIES} if name not in _SYSTEMS)


def system_names() -> tuple[str, ...]:
    """Systems of papers (`heterps_agents.interface.system`) that are no planners besides."""
    return tuple(_SYSTEMS)


def planner_named(name: str, seed: int = 0) -> Planner:
    """The planner or system called `name`.

    Args:
        name: One of `planner_names` or `system_names`.
        seed: Equal seeds give equal plans, as long as no limit in seconds cuts a search short.

    Raises:
        UnknownNameError: With near names.
        HeterpsError: The name or the seed is of a wrong type, or no plan could keep the seed.
    """
    check_type("planner", name, str, "a registered name (`heterps list planners`)")
    check_seed(seed)
    known = {**_SYSTEMS, **_MODULES}
    if name not in known and name not in _FACTORIES:
        raise UnknownNameError("planner", name, (*planner_names(), *system_names()))
    if name not in _FACTORIES:
        import_module(known[name])
    return _FACTORIES[name](seed)


def chosen_planner(planner: str | Planner, seed: int = 0) -> Planner:
    """The planner of a name, or one of the caller's own.

    Args:
        planner: A registered name, or an object that is one.
        seed: See `planner_named`.

    Raises:
        HeterpsError: It is neither, or see `planner_named`.
    """
    check_seed(seed)
    if isinstance(planner, str):
        return planner_named(planner, seed=seed)
    is_one = callable(getattr(planner, "plan", None)) and hasattr(planner, "name")
    if isinstance(planner, type) or not is_one:
        allowed = "a registered name, or an object with name and plan(problem, budget)"
        raise wrong_type("planner", planner, allowed)
    return planner
