"""What is left to planners, and how options of commands narrow it."""

from pathlib import Path
from typing import Any

import pytest

from heterps.micro_batches.sizes import open_sizes
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN, is_left_open, micro_batch_size, strategy_of
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import PLAIN


def test_what_nobody_names_is_left_open() -> None:
    assert strategy_of() == OPEN
    assert strategy_of(recompute="never") == OPEN.changed(recompute="never")
    assert strategy_of(micro_batch="4") == OPEN.changed(chooses_micro_batch=False)
    assert strategy_of("1", "never", "never", "never", "1") == PLAIN


def test_a_job_file_that_names_a_size_of_micro_batches_is_a_pin(tmp_path: Path) -> None:
    for number, (fields, is_open) in enumerate(
        (({"global_batch_size": 64}, True), ({"micro_batch_size": 2}, False))
    ):
        path = tmp_path / f"job{number}.yaml"
        text = "\n".join(f"{name}: {value}" for name, value in fields.items())
        path.write_text(f"{text}\n")
        assert strategy_of(job_file=str(path)).chooses_micro_batch is is_open
        assert strategy_of(micro_batch="auto", job_file=str(path)).chooses_micro_batch
        assert load_problem("gpt2", "a100-v100", job_file=str(path)).strategy == strategy_of(
            job_file=str(path)
        )


def test_a_program_gets_the_question_of_the_command_and_may_pin_it() -> None:
    def asked(strategy: Strategy | None = None, **options: Any) -> Strategy:
        return load_problem("gpt2", "a100-v100", strategy=strategy, **options).strategy

    assert asked() == OPEN
    assert asked(global_batch_size=64) == OPEN
    assert asked(micro_batch_size=2) == strategy_of(micro_batch="2")
    assert asked(PLAIN) == PLAIN
    assert not asked(OPEN, micro_batch_size=2).chooses_micro_batch


def test_an_open_size_of_micro_batches_is_never_below_what_a_step_can_have() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=100_000)
    assert problem.strategy.chooses_micro_batch
    assert min(open_sizes(problem)) == problem.job.micro_batch_size == 2
    with pytest.raises(HeterpsError, match="micro_batch_size must be at least 2"):
        load_problem("gpt2", "a100-v100", global_batch_size=100_000, micro_batch_size=1)


def test_a_job_file_that_leaves_the_size_open_asks_what_the_option_asks(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("global_batch_size: 100000\n")
    problem = load_problem("gpt2", "a100-v100", job_file=file)
    assert problem.job == load_problem("gpt2", "a100-v100", global_batch_size=100_000).job
    assert min(open_sizes(problem)) == problem.job.micro_batch_size == 2
    named = load_problem("gpt2", "a100-v100", job_file=file, micro_batch_size=4)
    assert named.job.num_micro_batches == 25_000
    small = load_problem("gpt2", "a100-v100", job_file=file, global_batch_size=32)
    assert small.job.micro_batch_size == 1
    with pytest.raises(HeterpsError, match="micro_batch_size must be at least 2"):
        load_problem("gpt2", "a100-v100", job_file=file, strategy=Strategy())
    file.write_text("global_batch_size: 100000\nmicro_batch_size: 1\n")
    with pytest.raises(HeterpsError, match="micro_batch_size must be at least 2"):
        load_problem("gpt2", "a100-v100", job_file=file)


def test_plain_problems_keep_what_is_open_of_micro_batches() -> None:
    problem = load_problem("gpt2", "a100-v100").plain
    assert problem.strategy.is_plain
    assert problem.strategy.chooses_micro_batch
    assert not is_left_open(problem.strategy)
    assert is_left_open(strategy_of(micro_batch="8"))


def test_options_of_a_command_are_read_or_refused_in_one_line() -> None:
    assert strategy_of("auto", "auto", "auto", micro_batch="auto") == OPEN
    assert strategy_of("1,2", "never", "never").tensor_parallel == (1, 2)
    assert micro_batch_size("auto") is None
    for text in ("two", "1,,2", ""):
        with pytest.raises(HeterpsError, match="--tensor-parallel"):
            strategy_of(text, "never", "never")
    with pytest.raises(HeterpsError, match="recompute"):
        strategy_of("1", "sometimes", "never")
    with pytest.raises(HeterpsError, match="offload"):
        strategy_of("1", "never", "never", "sometimes")
    with pytest.raises(HeterpsError, match="--micro-batch"):
        micro_batch_size("few")
