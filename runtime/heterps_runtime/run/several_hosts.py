"""A run on several hosts: host 0 says what runs, every host starts its own devices' ranks."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.launcher import NodeRank, Workers, prepare_directory, torchrun_command
from heterps_runtime.specification.hosts import free_port, gloo_environment, machine_identity
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification


@dataclass(frozen=True)
class Launch:
    """How one host starts its ranks.

    Attributes:
        command: What to start.
        environment: Variables of the workers.
        poll: To be called again and again; raises what another host reports.
    """

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    poll: Callable[[], None] = lambda: None


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
    directory: Path,
) -> Launch:
    """Host 0: tells the others what runs. They have agreed before.

    Args:
        group: The hosts.
        specification: Of the run.
        devices: Those of each host; together the specification's, in its order.
        directory: Run directory of this host.
    """
    port = free_port()
    content = {
        "port": port,
        "machine": machine_identity(),
        "devices": devices,
        "specification": specification.model_dump_json(),
    }
    group.share(json.dumps(content))
    return _launch(group, port, directory, len(devices[0]))


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
    if specification.emulation is not None and content["machine"] != machine_identity():
        raise HeterpsError(
            "emulated devices need one machine: their times are compared on its clock, and the "
            "hosts of this run are several machines"
        )
    prepare_directory(run_directory)
    write_text(run_directory / SPECIFICATION_FILE, content["specification"])
    devices = tuple(content["devices"][group.hosts.rank])
    launch = _launch(group, content["port"], run_directory, len(devices))
    with Workers(launch.command, run_directory, num_threads, launch.environment) as workers:
        workers.wait(lambda line: None, launch.poll, timeout_s)
    group.collect(run_directory, len(specification.devices))
    return devices


def _launch(group: HostGroup, port: int, directory: Path, num_processes: int) -> Launch:
    hosts = group.hosts
    node = NodeRank(hosts.num_hosts, hosts.rank, hosts.address, port)
    return Launch(
        torchrun_command(directory, num_processes, node=node), gloo_environment(hosts), group.poll
    )
