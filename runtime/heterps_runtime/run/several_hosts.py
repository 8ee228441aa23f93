"""A run on several hosts: host 0 says what runs, every host starts its own devices' ranks."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.huggingface.library import modules_of
from heterps_runtime.process.template import Template
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.launcher import (
    WORKER_MODULE,
    Workers,
    prepare_directory,
    worker_environment,
)
from heterps_runtime.run.rank_errors import LOG_FILE
from heterps_runtime.run.world import World
from heterps_runtime.specification.hosts import gloo_environment, machine_identity
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.specification.torch_plan import modules_of_engine
from heterps_runtime.specification.trust import check_sent

# The service of host 0's gate that leads to the store of rank 0.
RANKS = "ranks"


def facts_of(problem: Problem, plan: Plan, options: Mapping[str, object]) -> dict[str, str]:
    """What must be equal on all hosts, by the name that an error shows.

    Args:
        problem: Of the plan.
        plan: What runs.
        options: Of the run, by name; None for those that were not given.
    """
    return {
        "version of heterps": importlib.metadata.version("heterps"),
        "version of torch": torch.__version__,
        "plan": plan.fingerprint(),
        "model": problem.layers_fingerprint,
        "cluster": problem.cluster.fingerprint(),
        **{name: str(value) for name, value in options.items() if value is not None},
    }


def announce(
    group: HostGroup,
    specification: RunSpecification,
    devices: Sequence[Sequence[str]],
) -> World:
    """Host 0: tells the others what runs. They have agreed before.

    Args:
        group: The hosts.
        specification: Of the run.
        devices: Those of each host; together the specification's, in its order.
    """
    first = World.of_this_host(len(devices[0]), size=len(specification.devices))
    group.open_service(RANKS, first.port)
    content = {
        "machine": machine_identity(),
        "devices": devices,
        "specification": specification.model_dump_json(),
    }
    group.share(json.dumps(content))
    return first


def join_run(
    group: HostGroup,
    *,
    run_directory: Path,
    num_threads: int = 1,
    timeout_s: float | None = None,
) -> tuple[str, ...]:
    """A host other than host 0: runs its devices until the run is over.

    Args:
        group: The hosts, which have agreed (`HostGroup.agree`) on what runs.
        run_directory: Of this host; it need not be shared.
        num_threads: Threads of one worker's kernels.
        timeout_s: The run is ended after this many seconds.

    Returns:
        The devices that ran here.

    Raises:
        HeterpsError: A host failed; devices are emulated and the hosts are several machines.
    """
    content = json.loads(group.share(None))
    specification = RunSpecification.from_json(content["specification"])
    specification = check_sent(specification)
    if specification.emulation is not None and content["machine"] != machine_identity():
        raise HeterpsError(
            "emulated devices need one machine: their times are compared on its clock, and the "
            "hosts of this run are several machines"
        )
    prepare_directory(run_directory)
    specification.to_json_file(run_directory / SPECIFICATION_FILE)
    environment = {**worker_environment(num_threads), **gloo_environment(group.hosts)}
    engine = modules_of_engine(specification.engine)
    libraries = [*modules_of(specification.profile.source), *engine]
    with Template(WORKER_MODULE, environment, run_directory / LOG_FILE, libraries) as template:
        world = _world(group, content["devices"])
        arguments = [str(run_directory)]
        with Workers(template, run_directory, arguments, environment, world) as workers:
            workers.wait(lambda line: None, lambda: None, timeout_s, group.poll)
    group.collect(run_directory, len(specification.devices))
    return tuple(content["devices"][group.hosts.rank])


def _world(group: HostGroup, devices: Sequence[Sequence[str]]) -> World:
    first = sum(len(names) for names in devices[: group.hosts.rank])
    ranks = range(first, first + len(devices[group.hosts.rank]))
    return World(ranks, sum(map(len, devices)), group.port_of(RANKS))
