"""Hosts: which of them starts which devices of a plan, when the same command runs on each."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterps_configs.documents.cluster import Cluster
from heterps_configs.errors import HeterpsError
from heterps_runtime.network.dial import Host0
from heterps_runtime.network.secret import OPTION, read_secret

# Until all hosts have come; batch systems start them minutes apart.
RENDEZVOUS_TIMEOUT_S = 300.0
# Of Linux: `ioctl` that asks for the address of a network interface.
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Hosts:
    """What one host knows of the others.

    Attributes:
        num_hosts: Hosts of the run, this one included.
        rank: This host; 0 prints the results.
        address: Of host 0, as the others see it.
        port: Of host 0, where the hosts meet.
        secret: Of the run, which shows who is of it.
        timeout_s: How long to wait for the others at the beginning.
    """

    num_hosts: int
    rank: int
    address: str
    port: int
    secret: bytes = field(repr=False)
    timeout_s: float = RENDEZVOUS_TIMEOUT_S

    @classmethod
    def parse(
        cls,
        num_hosts: int | None,
        rank: int | None,
        rendezvous: str | None,
        secret_file: Path | None = None,
    ) -> Hosts | None:
        """What `--nodes`, `--node-rank` and `--rendezvous` say together; None for one host.

        Args:
            num_hosts: Of the run.
            rank: This host.
            rendezvous: Address and port of host 0.
            secret_file: Holds the run's secret; by default the environment does.

        Raises:
            HeterpsError: One is missing, or has another form; there is no secret.
        """
        given = {"--nodes": num_hosts, "--node-rank": rank, "--rendezvous": rendezvous}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given) or (num_hosts == 1 and rank in (None, 0)):
            if secret_file is not None:
                warnings.warn(f"{OPTION} is ignored: there is one host", stacklevel=2)
            return None
        if num_hosts is None or rank is None or rendezvous is None:
            raise HeterpsError(
                f"a run on several hosts needs --nodes N, --node-rank R and --rendezvous HOST:PORT "
                f"on each of them; missing: {', '.join(missing)}"
            )
        if not 0 <= rank < num_hosts:
            raise HeterpsError(f"--node-rank {rank}: allowed: 0..{num_hosts - 1} (--nodes less 1)")
        address, separator, port = rendezvous.rpartition(":")
        if not separator or not address or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise HeterpsError(
                f"--rendezvous {rendezvous!r}: expected HOST:PORT, the address of host 0 and a "
                "free port there, such as 10.0.0.1:29400"
            )
        return cls(num_hosts, rank, address.strip("[]"), int(port), read_secret(secret_file))

    @property
    def host_0(self) -> Host0:
        """Where the hosts meet."""
        return Host0(self.address, self.port, self.secret)

    def devices(self, cluster: Cluster, names: Sequence[str]) -> list[tuple[str, ...]]:
        """The devices that each host starts: nodes of the cluster, in its order, evenly dealt.

        Args:
            cluster: Says which node a device is in.
            names: Devices that take part; the order within a host is theirs.

        Raises:
            HeterpsError: There are more hosts than nodes.
        """
        node_of = {device.name: device.node for device in cluster.devices}
        used = {node_of[name] for name in names}
        nodes = [node.name for node in cluster.nodes if node.name in used]
        if self.num_hosts > len(nodes):
            raise HeterpsError(
                f"--nodes {self.num_hosts}: the plan uses {len(nodes)} node(s) of the cluster "
                f"{cluster.name!r} ({', '.join(nodes)}); a node cannot be split between hosts"
            )
        host_of = {node: i * self.num_hosts // len(nodes) for i, node in enumerate(nodes)}
        return [
            tuple(name for name in names if host_of[node_of[name]] == host)
            for host in range(self.num_hosts)
        ]

    def network_interface(self) -> str | None:
        """The interface that leads to host 0, for gloo; None where it cannot be found."""
        with socket.socket(_family(self.address), socket.SOCK_DGRAM) as probe:
            try:
                # Of a datagram socket: nothing is sent.
                probe.connect((self.address, self.port))
            except OSError:
                return None
            own = probe.getsockname()[0]
        return next(
            (name for _, name in socket.if_nameindex() if _address_of(name) == own),
            None,
        )


def machine_identity() -> str:
    """Equal for all processes that share this machine's clock, in other network namespaces too."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()


def _family(address: str) -> socket.AddressFamily:
    try:
        is_long = ipaddress.ip_address(address).version == 6
    except ValueError:  # a name
        return socket.AF_INET
    return socket.AF_INET6 if is_long else socket.AF_INET


def _address_of(interface: str) -> str | None:
    """Its IPv4 address; 127.x.y.z are all the loopback interface's first address."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = interface.encode()[:15].ljust(256, b"\0")
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def gloo_environment(hosts: Hosts | None) -> dict[str, str]:
    """What makes gloo use the network between the hosts, or the loopback where there is one host.

    A user's own choice stays.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    interface = _loopback() if hosts is None else hosts.network_interface()
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}


def _loopback() -> str | None:
    """The name of the loopback interface: Linux and macOS name it differently."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)
