"""Whatever hosts print: a cluster that loads, or one of our errors."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.asking import Answer
from heterps_runtime.discovery.discover import described
from tests.runtime.discovery.recorded import (
    INFINIBAND,
    LAPTOP_LSCPU,
    ROCM,
    ROCM_TOPOLOGY,
    answer,
    h100_answer,
    in_pairs,
    nvlinks,
    queried,
)

SECTIONS = (
    "host", "boot", "memory", "processors", "lscpu", "affinity", "limits", "interfaces",
    "infiniband", "visible", "nvidia", "nvidia_topology", "nvidia_nvlink", "amd", "amd_topology",
)  # fmt: skip
GOOD = (
    "MemTotal: 16384000 kB", "processor\t: 0\nphysical id\t: 1\ncore id\t: 3", LAPTOP_LSCPU,
    "Cpus_allowed_list:\t0-3", "memory.max 5\ncpu.max 1 1",
    "cpu.cfs_quota_us 1\ncpu.cfs_period_us 9",
    "eth0 type=1 state=up speed=1", INFINIBAND, "CUDA_VISIBLE_DEVICES=0,1", ROCM, ROCM_TOPOLOGY,
    queried("NVIDIA L4", 23034, 3), queried("x", 1, 2), "0, NVIDIA H100 NVL, [N/A]",
    in_pairs(4, "NV4", "PHB"), nvlinks("NVIDIA L4", 2, 2, "0.001"),
)  # fmt: skip
NASTY = st.sampled_from(
    ["\x00", "\x1b[2J", "\u2028", "\ufffe", "\ud800", "{", "[" * 3000, "'", '"', ": ", " #", "- ",
     "9" * 30, "-1", "inf", "nan", "\t", "\r", "GPU0", "NV99", "@heterps end", "&a", "*a", "!!"]
)  # fmt: skip
TEXT = st.text(max_size=60) | NASTY


@st.composite
def cut_and_filled(draw: st.DrawFn) -> str:
    """A good answer of some tool, with something in the middle of it."""
    text = draw(st.sampled_from(GOOD))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, len(text)))
    return text[:start] + draw(TEXT) + text[draw(st.sampled_from([start, end])) :]


CONTENT = cut_and_filled() | TEXT | st.lists(TEXT, max_size=6).map("\n".join)


def survives(answers: list[Answer], name: str | None = None) -> None:
    with suppress(HeterpsError):
        found = described(answers, name)
        assert len(found.cluster.devices) > 0
        assert found.text.isascii() or not (name or "").isascii()
        assert all(len(line) < 2500 for line in found.text.splitlines())


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), CONTENT, max_size=8))
def test_sections_of_garbage_are_a_cluster_or_an_error(changed: dict[str, str]) -> None:
    survives([answer(**changed)])


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), CONTENT, max_size=3), TEXT)
def test_several_hosts_with_garbage_are_a_cluster_or_an_error(
    changed: dict[str, str], name: str
) -> None:
    survives([h100_answer("a", **changed), answer("b", **changed), answer("c")], name)


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_garbage_alone_is_an_error(text: str) -> None:
    survives([Answer("host", text)])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**20), st.integers(0, 10**6), st.integers(0, 10**4))
def test_no_number_of_a_card_is_too_odd(memory: int, generation: int, lanes: int) -> None:
    cards = "\n".join(
        f"{index}, NVIDIA H100 PCIe, {memory}, GPU-{index}, {generation}, {lanes}, Disabled"
        for index in (0, 1)
    )
    survives([answer(nvidia=cards)])
