"""Training under a plan equals training in one process: every model, every shape of plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.run.launcher import run_ranks
from heterps_runtime.run.verify import REFERENCE_FILE, max_difference
from heterps_runtime.specification.build import build_specification, replanned
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification, next_plan_path
from tests.runtime.small_runs import DEVICES, chain_of, plan_of, problem_of

STEPS = 5
Losses = dict[str, tuple[list[float], list[float]]]


def _cases() -> dict[str, tuple[Problem, Plan, list[tuple[int, Plan]]]]:
    """Problem, first plan, and the plans to switch to with their first steps."""
    llama, gpt2, bert, vit, t5 = map(problem_of, ("llama", "gpt2", "bert", "vit", "t5"))
    resnet, ctr, skip = map(problem_of, ("resnet", "ctr", "long_skip"))
    gpipe = problem_of("llama", schedule="gpipe", optimizer="sgd-momentum")
    ragged = problem_of("sequential", global_batch_size=22, micro_batch_size=4)
    replicas = plan_of(
        ragged,
        {"a": (0, 1, "d0"), "b0": (2, -1, "d1"), "b1": (2, -1, "d2"), "b2": (2, -1, "d3")},
        {("a", "b0"): (0, 3), ("a", "b1"): (1, 4), ("a", "b2"): (2, 5)},
    )
    two_pipelines = plan_of(
        gpt2,
        {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, 3, "d2"), "d": (4, -1, "d3")},
        {("a", "b"): (0, 1, 3), ("c", "d"): (2,)},
    )
    there_and_back = plan_of(
        gpt2, {"a": (0, 1, "d0"), "b": (2, 2, "d1"), "c": (3, 3, "d2"), "d": (4, -1, "d0")}
    )
    split = problem_of("llama", schedule="zero-bubble")
    several = problem_of("gpt2", schedule="interleaved")
    stated = problem_of(
        "structured", schedule="zero-bubble", optimizer="sgd",
        global_batch_size=13, unequal_micro_batch_sizes=(3, 1, 4, 2, 3),
    )  # fmt: skip
    frozen = problem_of("frozen_middle", schedule="interleaved")
    two_each = plan_of(
        several, {"a": (0, 0, "d0"), "b": (1, 2, "d1"), "c": (3, 3, "d0"), "d": (4, -1, "d1")}
    )
    shared_ends = plan_of(
        stated,
        {"a": (0, 1, "d0"), "b": (2, 3, "d1"), "c": (2, 3, "d2"), "d": (4, -1, "d3")},
        {("a", "b", "d"): (0, 2, 3), ("a", "c", "d"): (1, 4)},
    )
    two_routes = plan_of(
        frozen,
        {
            "a": (0, 1, "d0"), "b": (2, 3, "d1"), "c": (4, 5, "d0"), "d": (6, -1, "d1"),
            "e": (0, 4, "d2"), "f": (5, -1, "d3"),
        },
        {("a", "b", "c", "d"): (0, 2), ("e", "f"): (1, 3)},
    )  # fmt: skip
    return {
        "llama, zero-bubble": (split, chain_of(split, 1, 2, 5), []),
        "gpt2, interleaved": (several, two_each, []),
        "structured, zero-bubble, shared stages, stated sizes": (stated, shared_ends, []),
        "frozen in the middle, interleaved, two depths": (frozen, two_routes, []),
        "llama, four unequal stages": (llama, chain_of(llama, 1, 2, 5), []),
        "llama, gpipe": (gpipe, chain_of(gpipe, 3), []),
        "gpt2, tied on one device": (gpt2, there_and_back, []),
        "bert, unequal": (bert, chain_of(bert, 3), []),
        "vit, unequal": (vit, chain_of(vit, 3), []),
        "t5, encoder and decoder apart": (t5, chain_of(t5, 2, 5), []),
        "skip over a whole stage": (skip, chain_of(skip, 1, 2), []),
        "ctr, cut between tables": (ctr, chain_of(ctr, 5, 28), []),
        "sequential, replicas, ragged": (ragged, replicas, []),
        "llama, re-planned twice": (
            llama,
            chain_of(llama, 3),
            [(2, chain_of(llama, 1, 4)), (4, chain_of(llama, 2, devices=("d3", "d0")))],
        ),
        "gpt2, tied over two devices, then two pipelines with different cuts": (
            gpt2,
            chain_of(gpt2, 2, 3),
            [(3, two_pipelines)],
        ),
        "resnet, unequal, re-planned": (resnet, chain_of(resnet, 2, 4), [(3, chain_of(resnet, 3))]),
    }


CASES = (
    "llama, zero-bubble",
    "gpt2, interleaved",
    "structured, zero-bubble, shared stages, stated sizes",
    "frozen in the middle, interleaved, two depths",
    "llama, four unequal stages",
    "llama, gpipe",
    "gpt2, tied on one device",
    "bert, unequal",
    "vit, unequal",
    "t5, encoder and decoder apart",
    "skip over a whole stage",
    "ctr, cut between tables",
    "sequential, replicas, ragged",
    "llama, re-planned twice",
    "gpt2, tied over two devices, then two pipelines with different cuts",
    "resnet, unequal, re-planned",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, trained by one set of four processes."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (problem, plan, later) in _cases().items():
        directory = folder / name
        directory.mkdir()
        specification = build_specification(
            problem,
            plan,
            build_schedule(problem, plan),
            RunSettings(steps=STEPS, online=OnlineSettings(measure_every=2)),
            devices=DEVICES,
            is_online=bool(later),
        )
        specification.to_json_file(directory / SPECIFICATION_FILE)
        for step, following in later:
            schedule = build_schedule(problem, following)
            specification = replanned(specification, problem, following, schedule, step)
            specification.to_json_file(next_plan_path(directory, specification.generation))
    run_ranks("tests.runtime.train_many", 4, folder, timeout_s=240)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_losses_equal_single_process_training(folder: Path, case: str) -> None:
    lines = json.loads((folder / case / "steps.json").read_text())
    losses = [line["loss"] for line in lines if "loss" in line]
    reference = json.loads((folder / case / REFERENCE_FILE).read_text())
    assert len(losses) == STEPS
    assert max_difference(losses, reference) < 1e-5
    assert losses[0] != losses[-1]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:4])
def test_ranks_carry_out_their_lists_in_order(folder: Path, case: str) -> None:
    specification = RunSpecification.from_json_file(folder / case / SPECIFICATION_FILE)
    for rank, device in enumerate(specification.devices):
        result = json.loads((folder / case / f"result-{rank}.json").read_text())
        listed = specification.actions.get(device, ())
        done = [tuple(record[:3]) for record in result["trace"]]
        assert done == [(a.kind, a.stage, a.micro_batch) for a in listed]


@pytest.mark.slow
def test_a_remark_on_batch_normalisation_comes_once(folder: Path) -> None:
    counts = {}
    for case in ("resnet, unequal, re-planned", "llama, gpipe"):
        lines = json.loads((folder / case / "steps.json").read_text())
        messages = [line["message"] for line in lines if "message" in line]
        counts[case] = sum(message.startswith("batch normalisation") for message in messages)
    assert counts == {"resnet, unequal, re-planned": 1, "llama, gpipe": 0}


@pytest.mark.slow
def test_only_layers_that_change_their_rank_are_moved(folder: Path) -> None:
    lines = json.loads((folder / "llama, re-planned twice" / "steps.json").read_text())
    moved = [line["bytes_moved"] for line in lines if "switched_to" in line]
    sizes = [layer.num_parameters for layer in problem_of("llama").profile.layers]
    # From 0-2 | 3-5 to 0 | 1-3 | 4-5, then to 2-5 on the first and 0-1 on the fourth rank.
    layers = [(1, 2, 4, 5), (0, 1, 2, 3, 4, 5)]
    for num_bytes, indices in zip(moved, layers, strict=True):
        state_bytes = 3 * 4 * sum(sizes[index] for index in indices)
        step_counters = num_bytes - state_bytes
        assert 0 < step_counters < 4 * 12 * len(indices)
