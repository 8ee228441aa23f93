"""The sixty problems of the field: what each family is, and that a seed is a set."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from heterps_configs.documents.cluster import Link
from heterps_envs.device_classes import MAX_CLASSES
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import (
    CASES,
    FAMILIES,
    SEEDS,
    SIZES,
    FieldCase,
    described,
    field_problem,
)

# Not the set that versions are judged on: its problems are looked at by no test.
SEED = SEEDS["development"]


@pytest.fixture(scope="module")
def problems() -> dict[FieldCase, Problem]:
    return {case: field_problem(case, SEED) for case in CASES}


def of_family(problems: dict[FieldCase, Problem], family: str) -> list[Problem]:
    return [problem for case, problem in problems.items() if case.family == family]


def test_there_are_six_families_of_ten_from_four_devices_to_several_hundred() -> None:
    assert Counter(case.family for case in CASES) == dict.fromkeys(FAMILIES, 10)
    sizes = [size for family in FAMILIES for size in SIZES[family]]
    assert min(sizes) == 4
    assert sorted(size for size in sizes if size > 64) == [128, 192, 256, 512]


def test_every_problem_has_its_devices_and_memory_for_twice_the_models_state(
    problems: dict[FieldCase, Problem],
) -> None:
    for case, problem in problems.items():
        devices = problem.cluster.devices
        assert len(devices) == SIZES[case.family][case.number], case.name
        assert len(problem.classes) <= MAX_CLASSES
        parameters = sum(layer.num_parameters for layer in problem.profile.layers)
        state = parameters * problem.job.state_bytes_per_parameter
        assert 2 * state <= sum(device.memory_bytes for device in devices), case.name
        assert problem.job.global_batch_size >= 16


def test_families_are_what_they_are_called(problems: dict[FieldCase, Problem]) -> None:
    for family, number in (("two-type-racks", 2), ("three-type-racks", 3), ("one-pod", 1)):
        for problem in of_family(problems, family):
            assert len({device.type.name for device in problem.cluster.devices}) == number
    for problem in of_family(problems, "spot-regions"):
        for device in problem.cluster.devices:
            assert 0.29 < device.price_usd_per_hour / device.type.price_usd_per_hour < 0.46
        assert problem.cluster.inter_region_link is not None
    boxes = [node for p in of_family(problems, "home-boxes") for node in p.cluster.nodes]
    assert any(len(node.devices) > 1 for node in boxes)
    for problem in of_family(problems, "volunteers"):
        assert len(problem.cluster.nodes) == len(problem.cluster.devices)
        assert bool(problem.cluster.link_overrides) == (len(problem.cluster.nodes) <= 16)


def test_links_inside_nodes_are_those_of_the_cards(problems: dict[FieldCase, Problem]) -> None:
    for problem in problems.values():
        for node in problem.cluster.nodes:
            kinds = {group.type for group in node.devices}
            links = [problem.cluster.device_type(kind).links for kind in kinds]
            allowed = {Link.model_validate(name) for names in links for name in names}
            assert node.link in allowed


def test_a_problem_depends_on_its_case_and_seed_alone() -> None:
    case = CASES[13]
    assert field_problem(case, SEED) == field_problem(case, SEED)
    assert described(field_problem(case, SEED)) != described(field_problem(case, SEED + 100))


def fingerprint(seed: int) -> str:
    """16 hexadecimal digits of the problems of a set: clusters, models, batches."""
    digest = hashlib.sha256()
    for case in CASES:
        problem = field_problem(case, seed)
        layers = [
            [layer.num_parameters, f"{layer.forward_flops:.3e}", f"{layer.output_bytes:.3e}"]
            for layer in problem.profile.layers
        ]
        job = problem.job.model_dump(mode="json", exclude_defaults=True)
        parts = [problem.cluster.model_dump(mode="json"), layers, job]
        digest.update(json.dumps(parts, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def test_the_frozen_set_is_not_the_development_set_and_stays_what_it_is() -> None:
    assert fingerprint(SEEDS["frozen"]) == "9814883a3abf38b4"
    assert fingerprint(SEED) != fingerprint(SEEDS["frozen"])
