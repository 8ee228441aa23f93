"""docs/environments.md holds the docstrings of the environments, and its code runs."""

from __future__ import annotations

import re

import pytest

from tests.envs.environment_docs import DOCUMENT, ENVIRONMENTS, section, written

HEADINGS = (
    *("Description", "Action space", "Observation space", "Rewards", "Starting state"),
    *("Episode end", "Arguments", "Version history"),
)
# The same code with little to do.
SMALLER = {
    "learn(200_000)": "learn(1)",
    "(500, seed=1)": "(6, seed=1)",
    "(100, seed=2)": "(6, seed=2)",
    "num_envs=64": "num_envs=4",
    "n_steps=64": "n_steps=16",
    "n_steps=32": "n_steps=16",
    "batch_size=512": "batch_size=32",
    "num_envs=100": "num_envs=6",
    "0, 6), 100)": "0, 6), 6)",
    "< 100": "< 6",
}


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


def test_the_document_holds_the_docstrings() -> None:
    text = DOCUMENT.read_text()
    assert written(text) == text, "run: python -m tests.envs.environment_docs"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_is_documented_as_gymnasium_documents_its_own(name: str) -> None:
    text = section(ENVIRONMENTS[name])
    assert re.findall(r"^### (.*)$", text, flags=re.MULTILINE) == list(HEADINGS)
    tables = text.split("### Observation space")[1].split("### Rewards")[0]
    assert tables.count("| --- | --- |") == 2
    parameters = ENVIRONMENTS[name].__init__.__annotations__.keys() - {"return"}
    arguments = text.split("### Arguments")[1]
    assert [each for each in parameters if f"`{each}`" not in arguments] == []


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(snippets())))
def test_the_code_of_the_document_runs(index: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = snippets()[index]
    for usual, smaller in SMALLER.items():
        code = code.replace(usual, smaller)
    exec(compile(code, f"snippet {index}", "exec"), {})
    assert ("print" in code) == bool(capsys.readouterr().out)
