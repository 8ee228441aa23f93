"""Cores and memory that a host lets processes use."""

from __future__ import annotations

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.processors import processors_of
from tests.runtime.discovery.recorded import H100_HOST_PROCESSORS, LAPTOP_LSCPU

HOST = {
    "memory": "MemTotal:       2113398604 kB",
    "processors": H100_HOST_PROCESSORS,
    "affinity": "Cpus_allowed_list:\t0-223",
}
GIB = 2**30


def test_hyper_threads_are_no_cores() -> None:
    found = processors_of(HOST, "h")
    assert (found.model, found.sockets) == ("Intel(R) Xeon(R) Platinum 8480C", 2)
    assert (found.cores, found.usable_cores, found.num_processes) == (112, 112, 112)
    assert found.memory_bytes == 2113398604 * 1024


def test_affinity_counts_cores_and_not_their_threads() -> None:
    found = processors_of(HOST | {"affinity": "Cpus_allowed_list:\t0-3,112-115,8"}, "h")
    assert found.usable_cores == 5


@pytest.mark.parametrize(
    ("limits", "processes"),
    [
        ("cpu.max 400000 100000", 4),
        ("cpu.max 150000 100000", 1),
        ("cpu.max 5000 100000", 1),
        ("cpu.max max 100000", 112),
        ("cpu.cfs_quota_us 800000\ncpu.cfs_period_us 100000", 8),
        ("cpu.cfs_quota_us -1\ncpu.cfs_period_us 100000", 112),
        ("cpu.max max 100000\ncpu.max 300000 100000", 3),
    ],
)
def test_the_time_of_a_control_group_limits_processes(limits: str, processes: int) -> None:
    assert processors_of(HOST | {"limits": limits}, "h").num_processes == processes


@pytest.mark.parametrize(
    ("limits", "usable"),
    [
        ("memory.max 8589934592", 8 * GIB),
        ("memory.max max\nmemory.max 4294967296", 4 * GIB),
        ("memory.limit_in_bytes 9223372036854771712", 2113398604 * 1024),
        ("memory.limit_in_bytes 2147483648\nmemory.limit_in_bytes 9223372036854771712", 2 * GIB),
    ],
)
def test_the_memory_of_a_container_is_what_it_may_take(limits: str, usable: int) -> None:
    assert processors_of(HOST | {"limits": limits}, "h").usable_bytes == usable


def test_a_processor_without_names_in_cpuinfo_is_named_by_lscpu() -> None:
    text = "\n".join(f"processor\t: {index}" for index in range(8))
    found = processors_of(
        HOST | {"processors": text, "lscpu": LAPTOP_LSCPU, "affinity": "x:\t0-7"}, "h"
    )
    assert (found.model, found.cores, found.usable_cores) == ("Neoverse-N1", 8, 8)


def test_lscpu_alone_tells_cores_and_affinity_narrows_them() -> None:
    found = processors_of(
        {"memory": HOST["memory"], "lscpu": LAPTOP_LSCPU, "affinity": "x:\t0,1"}, "h"
    )
    assert (found.cores, found.usable_cores) == (8, 2)


def test_a_host_without_proc_is_refused_in_one_line() -> None:
    with pytest.raises(HeterpsError, match="mac: does not say how much memory it has"):
        processors_of({}, "mac")
