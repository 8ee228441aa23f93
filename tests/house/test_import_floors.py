"""The five floors import downwards only, and what is promised to be light is light."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_imports_go_down_the_five_floors_only() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import heterps.cli.app",
        "import heterps_configs.library as l; l.load_cluster('a100-v100')",
        "import heterps_configs.schema",
        "import heterps_envs.problem",
        "import heterps_agents.interface.registry as r; r.planner_names(); r.system_names()",
        "import heterps_agents.interface.system",
    ],
)
def test_light_parts_import_no_heavy_library(statement: str) -> None:
    code = (
        f"import sys\n{statement}\n"
        "heavy = {'torch', 'stable_baselines3', 'sb3_contrib', 'matplotlib', 'transformers'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
