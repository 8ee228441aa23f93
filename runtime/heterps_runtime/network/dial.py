"""Reaching host 0: connections to a service of its gate."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from heterps_configs.errors import HeterpsError
from heterps_runtime.network.connection import HANDSHAKE_S, Connection
from heterps_runtime.network.handshake import NotHeterpsError, WrongSecretError
from heterps_runtime.network.lines import Lines
from heterps_runtime.network.secret import OPTION, VARIABLE

AGAIN_S = 0.2
# Between two remarks of somebody who waits.
REMARK_EVERY_S = 10.0


class Host0(NamedTuple):
    """Where host 0 is met, and what shows that it is host 0.

    Attributes:
        address: Name or number.
        secret: Of the run.
    """

    address: str
    port: int
    secret: bytes

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    def __repr__(self) -> str:
        return f"Host0({self})"  # never the secret


def dial(host_0: Host0, hello: Mapping[str, object]) -> Connection:
    """A connection to a service of host 0.

    Args:
        host_0: Who is called.
        hello: What is wanted: `service`, and what that service has to know.

    Raises:
        OSError: It cannot be reached, or the secrets differ.
    """
    own = socket.create_connection((host_0.address, host_0.port), timeout=HANDSHAKE_S)
    try:
        connection = Connection.calling(own, host_0.secret)
        Lines(connection).send(hello)
    except BaseException:
        own.close()
        raise
    return connection


def dial_patiently(
    host_0: Host0,
    hello: Mapping[str, object],
    timeout_s: float,
    on_message: Callable[[str], None],
) -> Connection:
    """The same, again and again until host 0 is there; says so now and then.

    Raises:
        HeterpsError: It does not come, or the secrets differ.
    """
    began_s = time.monotonic()
    said_s = None
    while True:
        try:
            return dial(host_0, hello)
        except WrongSecretError:
            raise HeterpsError(
                f"host 0 ({host_0}) has another secret than this host: {OPTION} or {VARIABLE} "
                "must hold the same on all hosts"
            ) from None
        except NotHeterpsError:
            raise HeterpsError(
                f"--rendezvous {host_0}: something answers there that is no host 0 of heterps"
            ) from None
        except OSError as error:
            now_s = time.monotonic()
            if now_s > began_s + timeout_s:
                raise HeterpsError(
                    f"host 0 does not answer at {host_0} (--rendezvous) after {timeout_s:g} s: "
                    f"{error}"
                ) from None
            if said_s is None or now_s - said_s >= REMARK_EVERY_S:
                said_s = now_s
                on_message(f"waiting for host 0 at {host_0} ({now_s - began_s:.0f} s)")
            time.sleep(AGAIN_S)
