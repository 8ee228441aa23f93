"""Cards from what their tools print."""

from __future__ import annotations

import pytest

from heterps_runtime.discovery.gpus import amd_gpus, gpus_of, nvidia_gpus
from tests.runtime.discovery.recorded import ROCM, queried

FOUR = queried("NVIDIA L4", 23034, 4)


def test_a_line_of_nvidia_smi_is_a_card() -> None:
    (gpu,) = nvidia_gpus(queried("NVIDIA A100 80GB PCIe", 81920, 1)).gpus
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA A100 80GB PCIe", 81920 * 2**20)
    assert (gpu.pcie_generation, gpu.pcie_lanes, gpu.has_instances) == (4, 16, False)


def test_the_short_answer_of_an_old_driver_is_enough() -> None:
    (gpu,) = nvidia_gpus("0, Tesla K80, 11441").gpus
    assert (gpu.name, gpu.memory_bytes, gpu.pcie_lanes) == ("Tesla K80", 11441 * 2**20, None)


def test_what_a_card_does_not_say_is_unknown() -> None:
    (gpu,) = nvidia_gpus("0, NVIDIA GB10, [N/A], GPU-1, [Unknown Error], [N/A], [N/A]").gpus
    assert (gpu.memory_bytes, gpu.pcie_generation) == (None, None)


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_a_driver_in_trouble_is_no_card_and_is_passed_on(said: str) -> None:
    found = nvidia_gpus(said)
    assert found.gpus == ()
    assert found.remarks == (f"nvidia-smi says: {said}",)


def test_a_driver_without_cards_is_nothing_to_remark() -> None:
    found = nvidia_gpus("No devices were found")
    assert (found.gpus, found.remarks) == ((), ())


def test_devices_that_no_tool_describes_are_remarked() -> None:
    found = gpus_of({"nvidia-devices": "/dev/nvidia0\n/dev/nvidia1"})
    assert found.gpus == ()
    assert "2 NVIDIA devices are in /dev, and no nvidia-smi" in found.remarks[0]


def test_cards_that_are_divided_are_remarked() -> None:
    found = nvidia_gpus(queried("NVIDIA A100-SXM4-40GB", 40960, 1, mig="Enabled"))
    assert "GPU 0 is divided into instances (MIG)" in found.remarks[0]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("0,2", [0, 2]),
        ("3,1", [1, 3]),
        ("GPU-00000002", [2]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("GPU-", []),
        ("1,7,2", [1]),
    ],
)
def test_only_cards_that_cuda_shows_are_described(value: str, kept: list[int]) -> None:
    found = gpus_of({"nvidia": FOUR, "visible": f"CUDA_VISIBLE_DEVICES={value}"})
    assert [gpu.index for gpu in found.gpus] == kept
    assert f"leaves {len(kept)} of 4 GPUs" in found.remarks[-1]


def test_without_the_variable_all_cards_are_there() -> None:
    assert len(gpus_of({"nvidia": FOUR, "visible": ""}).gpus) == 4


def test_amd_cards_are_read_past_warnings_and_spellings() -> None:
    found = amd_gpus(ROCM)
    assert [gpu.name for gpu in found.gpus] == ["AMD Instinct MI300X"] * 2
    assert {gpu.memory_bytes for gpu in found.gpus} == {206141652992}
    assert amd_gpus("ERROR: no driver").remarks == ("rocm-smi says: ERROR: no driver",)
