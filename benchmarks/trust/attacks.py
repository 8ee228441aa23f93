"""Attacks on runs, checkpoints and plans: what was tried, and what got through.

    rows = attacks(folder)

Each attack is made on the real thing: commands that run, in a network namespace of their own where
this machine permits that, beside somebody in another one.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared.sockets import Listener, listeners, listeners_until
from benchmarks.trust.intruder import Runs
from heterps_configs.documents.cluster import Cluster, Node
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.run import SPECIFICATION_FILE
from heterps_runtime.state.checkpoint_storage import StoredTensors
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.stored_files import LocalFiles, RemoteFiles, StoredFiles
from tests.runtime.networks import Host, Network, ends, free_port, network, start
from tests.runtime.small_runs import chain_of, problem_of

LIMIT_S = 120.0
INTRUDER = ("-m", "benchmarks.trust.intruder")
STEP_S = 0.02
# What a rank says that has met the others; of its next steps it says nothing for long.
_TRAINED = "step 1 took"
_DROPPED = re.compile(r"notice \d+ of the run's store is dropped \([^)]*\)")
_GOES_ON = re.compile(r"generation [1-9]\d*: rank .*step \d+ took", re.DOTALL)


class Attack(NamedTuple):
    """A row.

    Attributes:
        attack: What was tried.
        tried: How often.
        succeeded: How often it got through.
        note: What was said of it.
    """

    attack: str
    tried: int
    succeeded: int
    note: str = ""


class Sockets(NamedTuple):
    """What a command listens on.

    Attributes:
        command: As users call it.
        listeners: All that were seen while it ran.
        gate: The port that is meant for other hosts; None where there is none.
    """

    command: str
    listeners: frozenset[Listener]
    gate: int | None = None

    @property
    def open_ones(self) -> list[Listener]:
        """Those that other hosts reach, and should not."""
        found = [each for each in self.listeners if not each.is_loopback]
        return sorted(each for each in found if each.port != self.gate)


def attacks(folder: Path) -> list[Attack]:
    """All of them, one after the other; the folder is empty."""
    with network() as hosts:
        rows = attacks_on_elastic_run(folder / "elastic", hosts)
    rows.append(pickle_for_message(folder / "message"))
    rows.append(pickles_in_checkpoints(folder / "checkpoint"))
    rows.append(code_of_a_strangers_plan(folder / "plan"))
    return rows


def sockets(folder: Path) -> list[Sockets]:
    """What each command that starts processes listens on; the folder is empty."""
    return [
        _sockets_of_run(folder / "run"),
        _sockets_of_run(folder / "elastic", "--elastic"),
        sockets_of_hosts(folder / "nodes"),
        sockets_of_links(),
    ]


def attacks_on_elastic_run(folder: Path, hosts: Network) -> list[Attack]:
    """A running job, from other hosts, from this one by its other addresses, and from inside."""
    plan, marker, directory = _files(folder), folder / "ran", folder / "run"
    own, stranger = hosts.hosts[0], hosts.stranger
    with _running(own, plan, "--elastic", "--steps", "1000000") as process:
        _wait_for(lambda: "generation 0" in _logs(directory), process)
        found = listeners(process.pid)
        ports = ",".join(str(each.port) for each in sorted(found))
        addresses = [own.address, "10.77.1.1"] if hosts.are_apart else ["127.0.0.2"]
        outside = _intrude(stranger, "connect", ports, *addresses)
        aside = _intrude(
            own, "connect", ports, own.address if hosts.are_apart else "::1", "127.0.0.2"
        )
        (port,) = {each.port for each in found if each.pid == process.pid} or {0}
        _intrude(own, "store", str(port), str(marker), str(directory / SPECIFICATION_FILE))
        # The ranks leave for the forged notice, drop it, and go on together.
        _wait_for(lambda: bool(_GOES_ON.search(_log(directory, 0))), process)
        goes_on = process.poll() is None and bool(_GOES_ON.search(_log(directory, 0)))
        dropped = set(_DROPPED.findall(_logs(directory)))
    outer = [each for each in found if not each.is_loopback]
    where = "another network namespace" if hosts.are_apart else "another address"
    return [
        Attack("sockets of a running job that other hosts reach", len(found), len(outer)),
        Attack(f"connect to a running job from {where}", len(found) * len(addresses), outside),
        Attack("connect to a running job by another address of its host", 2 * len(found), aside),
        Attack(
            "malformed and forged notices, numbers and heartbeats in the store",
            15 + 3,
            int(marker.exists() or not goes_on or not dropped),
            "; ".join(sorted(dropped)),
        ),
    ]


def pickle_for_message(folder: Path) -> Attack:
    """A rank that sends a pickle in the place of a gathered value."""
    folder.mkdir(parents=True)
    marker = folder / "ran"
    ranks = [
        start(Host(), *INTRUDER, "message", str(folder / "meeting"), str(rank), str(marker))
        for rank in (0, 1)
    ]
    (first, _) = ends(ranks, LIMIT_S)
    got_in = marker.exists() or first[1].strip() != "0"
    return Attack("a pickle in the place of a gathered message", 1, int(got_in), first[2].strip())


def pickles_in_checkpoints(folder: Path) -> Attack:
    """Tables of the old format that run code, read locally and by URL."""
    folder.mkdir(parents=True)
    marker, succeeded, said = folder / "ran", 0, set[str]()
    hostile = pickle.dumps(Runs(str(marker)))
    contents = [hostile, pickle.dumps({"state": Runs(str(marker))}), b"cposix\nabort\n(tR."]
    for content in contents:
        (folder / ".metadata").write_bytes(content)
        places: list[StoredFiles] = [
            LocalFiles(folder),
            RemoteFiles(RemoteStorage(f"file://{folder}")),
        ]
        for files in places:
            try:
                StoredTensors(files)
                succeeded += 1
            except HeterpsError as error:
                said.add(str(error).partition("(")[2])
            succeeded += marker.exists()
    return Attack("pickles in checkpoints", 2 * len(contents), succeeded, "; ".join(sorted(said)))


def code_of_a_strangers_plan(folder: Path) -> Attack:
    """A plan whose model is a stranger's code, without a terminal."""
    plan, marker = _files(folder), folder / "ran"
    (folder / "evilmod.py").write_text(f"open({str(marker)!r}, 'w')")
    text = (folder / "model.yaml").read_text()
    (folder / "model.yaml").write_text(
        text.replace("tests.runtime.small_runs:sequential", "evilmod:build")
    )
    done = subprocess.run(
        [sys.executable, "-m", "heterps", "run", str(plan)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    got_in = marker.exists() or done.returncode != 2
    return Attack("code that a stranger's plan names", 1, int(got_in), done.stderr.strip())


def _sockets_of_run(folder: Path, *options: str) -> Sockets:
    plan = _files(folder)
    with _running(Host(), plan, *options, "--steps", "1000000") as process:
        return Sockets(" ".join(("run", *options)), _seen(process, folder / "run", 2))


def sockets_of_hosts(folder: Path) -> Sockets:
    """Two hosts of one run, both on this machine."""
    plan, port = _files(folder), free_port()
    address = "--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--steps", "1000000"
    with (
        _running(Host(), plan, *address, "--node-rank", "0") as first,
        _running(Host(), plan, *address, "--node-rank", "1") as second,
    ):
        found = _seen(first, plan.parent / "run", 1) | _seen(second, plan.parent / "run", 2)
        return Sockets("run --nodes", found, gate=port)


def sockets_of_links() -> Sockets:
    """Until its ranks have met: it goes on to measure for a minute."""
    process = start(Host(), "-m", "heterps", "profile", "--links", "--processes", "2")
    try:
        found = listeners_until(process, lambda: len(listeners(process.pid)) >= 3, LIMIT_S)
    finally:
        _end(process)
    return Sockets("profile --links", frozenset(found))


def _seen(process: subprocess.Popen[str], directory: Path, num_logs: int) -> frozenset[Listener]:
    """Until the ranks have trained for a step: all of them have met by then."""

    def is_over() -> bool:
        logs = [path.read_text() for path in directory.glob("**/rank-*.log")]
        return sum(_TRAINED in log for log in logs) >= num_logs

    return frozenset(listeners_until(process, is_over, LIMIT_S))


def _files(folder: Path) -> Path:
    """A plan of two stages on two nodes, with its model and cluster beside it."""
    folder.mkdir(parents=True)
    problem = problem_of("sequential", slowdowns=(1.0,) * 4, step_s=STEP_S)
    (node,) = problem.cluster.nodes
    groups = node.devices[:1], node.devices[1:]
    parts = tuple(
        Node(name=f"node-{number}", devices=group, link=node.link)
        for number, group in enumerate(groups)
    )
    cluster = Cluster(
        name=problem.cluster.name,
        device_types=problem.cluster.device_types,
        nodes=parts,
        inter_node_link=node.link,
    )
    cluster.to_file(folder / "cluster.yaml")
    problem.profile.to_file(folder / "model.yaml")
    references = {"model_reference": "model.yaml", "cluster_reference": "cluster.yaml"}
    chain_of(problem, 4).changed(**references).to_file(folder / "plan.yaml")
    return folder / "plan.yaml"


def _start(host: Host, plan: Path, *options: str) -> subprocess.Popen[str]:
    directory = str(plan.parent / "run")
    return start(host, "-m", "heterps", "run", str(plan), "--run-directory", directory, *options)


@contextmanager
def _running(host: Host, plan: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = _start(host, plan, "--trust-code", *options)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Its ranks end with it."""
    process.kill()
    process.communicate()


def _wait_for(is_true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_true() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _logs(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("rank-*.log"))


def _log(directory: Path, rank: int) -> str:
    path = directory / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def _intrude(host: Host, *arguments: str) -> int:
    """What an intruder got from there."""
    ((code, output, errors),) = ends([start(host, *INTRUDER, *arguments)], LIMIT_S)
    if code:
        raise HeterpsError(f"the intruder failed: {errors[-500:]}")
    return int(output)
