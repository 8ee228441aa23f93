"""Files of hyper-parameters as rl-baselines3-zoo has them: an environment's id, then arguments.

Arguments that stable-baselines3 has go by its names; all other fields of a training configuration
by their own. The shipped numbers stand in the training configurations alone: `hyperparameters_of`
says them in this form.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import DocumentError, UnknownNameError

AnyConfig = ChainTrainingConfig | GraphTrainingConfig

# The zoo's names of fields, and those of the policy's own arguments.
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "n_timesteps": "total_steps",
        "n_envs": "num_environments",
        "n_steps": "steps_per_update",
        "batch_size": "minibatch_size",
        "n_epochs": "epochs",
        "ent_coef": "entropy_weight",
    }
)
POLICY_FIELDS = ("hidden", "node_width", "message_rounds")
# What no file says: it tells the kind of problems, or describes the configuration.
_LEFT_OUT = ("description", "problems", "objective")
DEFAULT, LINEAR = "default", "lin_"


def environment_of(config: AnyConfig) -> str:
    """The id of the environment that a configuration trains on."""
    if isinstance(config, GraphTrainingConfig):
        return "heterps/GraphPlacement-v0"
    is_plain = config.objective == "throughput"
    return f"heterps/{'' if is_plain else 'Priced'}StagePlacement-v0"


def hyperparameters_of(config: AnyConfig) -> dict[str, dict[str, Any]]:
    """What such a file says of a configuration: `fields_of` it gives the configuration again."""
    zoo = {field: name for name, field in FIELDS.items()}
    fields = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if name not in _LEFT_OUT
    }
    own = {name: fields.pop(name) for name in POLICY_FIELDS if name in fields}
    entry = {zoo.get(name, name): value for name, value in fields.items() if value is not None}
    if isinstance(config, ChainTrainingConfig):
        entry["gamma"] = 1.0
    return {environment_of(config): {**entry, "policy_kwargs": own}}


def with_zoo_name(problem: str) -> str:
    """A problem of a configuration, whose field goes by the name that files have for it, too."""
    field, _, rest = problem.partition(":")
    names = [name for name, own in FIELDS.items() if own == field]
    return f"{names[0]} ({field}):{rest}" if names else problem


def read_hyperparameters(path: str | os.PathLike[str], config: AnyConfig) -> dict[str, Any]:
    """The fields that a file gives for the environment of a configuration.

    Raises:
        HeterpsError: It cannot be read, or has no entry for that environment; or see `fields_of`.
    """
    source, data, name = str(path), read_yaml(path), environment_of(config)
    if not isinstance(data, dict):
        raise DocumentError(source, ["expected ids of environments, and their hyper-parameters"])
    if name not in data and DEFAULT not in data:
        if not data:
            raise DocumentError(source, [f"has no entry for {name}, and none called {DEFAULT}"])
        raise UnknownNameError(f"entry of {source}", name, [str(key) for key in data])
    entry = data.get(name, data.get(DEFAULT))
    if not isinstance(entry, dict):
        raise DocumentError(source, [f"{name}: expected a mapping of hyper-parameters"])
    return fields_of(entry, config, f"{source}, {name}")


def fields_of(entry: Mapping[str, Any], config: AnyConfig, source: str) -> dict[str, Any]:
    """Fields of the configuration by their own names.

    A learning rate without `final_learning_rate` stays as it is; `lin_0.001` falls to 0.

    Raises:
        DocumentError: It has what no training here has.
    """
    given = dict(entry)
    own = given.pop("policy_kwargs", {})
    known = set(type(config).model_fields) - set(_LEFT_OUT)
    problems = []
    if given.pop("gamma", 1.0) != 1.0:
        problems.append("gamma: must be 1: the reward of an episode comes at its end")
    if not isinstance(own, dict):
        problems.append("policy_kwargs: expected a mapping")
        own = {}
    problems += [f"policy_kwargs.{name}: unknown" for name in own if name not in POLICY_FIELDS]
    problems += _given_twice(given, own)
    fields = {FIELDS.get(name, name): value for name, value in {**given, **own}.items()}
    problems += [
        f"{name}: unknown hyper-parameter"
        for name in {**given, **own}
        if FIELDS.get(name, name) not in known
    ]
    if problems:
        raise DocumentError(source, problems)
    return {**fields, **_learning_rates(fields, source)}


def _given_twice(given: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """A problem for each field that several names, or places, give."""
    places: dict[str, list[str]] = defaultdict(list)
    for place in (*given, *(f"policy_kwargs.{name}" for name in own)):
        name = place.removeprefix("policy_kwargs.")
        places[FIELDS.get(name, name)].append(place)
    return [
        f"{' and '.join(named)}: are one and the same; keep one of them"
        for named in places.values()
        if len(named) > 1
    ]


def _learning_rates(fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    rate = fields.get("learning_rate")
    if isinstance(rate, str) and rate.startswith(LINEAR):
        try:
            return {"learning_rate": float(rate.removeprefix(LINEAR)), "final_learning_rate": 0.0}
        except ValueError:
            wrong = [f"learning_rate: {rate!r}: expected a number or {LINEAR}NUMBER"]
            raise DocumentError(source, wrong) from None
    if rate is None or "final_learning_rate" in fields:
        return {}
    return {"final_learning_rate": rate}
