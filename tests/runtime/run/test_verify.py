"""Training in one process, and how far two loss curves are apart."""

from __future__ import annotations

import math

import pytest
import torch

from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.run.verify import max_difference, reference_losses
from heterps_runtime.training.program_file import ProgramFile
from tests.runtime.small_runs import chain_of, problem_of
from tests.runtime.training import small_program


def test_largest_difference_is_reported() -> None:
    assert max_difference([1.0, 2.0, 3.0], [1.0, 2.5, 2.9]) == 0.5


def test_a_loss_that_is_no_number_is_infinitely_wrong() -> None:
    assert max_difference([1.0, math.nan], [1.0, 2.0]) == math.inf


def test_curves_of_unequal_length_are_a_defect() -> None:
    with pytest.raises(ValueError, match="longer"):
        max_difference([1.0], [1.0, 2.0])


def test_samples_of_processes_draw_for_one_process_what_they_draw_for_ranks() -> None:
    """A function of seed, step and sample, and not of what this process has drawn so far."""
    problem = problem_of("sequential", global_batch_size=small_program.BATCH)
    program = ProgramFile.of(f"{small_program.__file__}:make_with_noise")
    program.agree()
    specification = LocalRun.of(problem, chain_of(problem, 4)).specification
    specification = specification.changed(program=program, num_steps=2)
    first = reference_losses(specification)
    torch.rand(1)
    assert reference_losses(specification) == first
