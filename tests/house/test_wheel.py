"""What a user gets from the wheel, in a folder with an `envs` and an `agents` of its own."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = (
    "heterps",
    "envs/heterps_envs",
    "agents/heterps_agents",
    "runtime/heterps_runtime",
    "configs/heterps_configs",
)

pytestmark = pytest.mark.slow


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command.extend(map(str, arguments))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `PYTHONPATH` that holds what the wheel installs."""
    target = tmp_path_factory.mktemp("site")
    pip("install", wheel, "--no-deps", "--no-index", "--no-compile", "--target", target)
    lend_compiled_kernels(target)
    return target


def lend_compiled_kernels(target: Path) -> None:
    """What numba has compiled of the same sources: anew, it takes longer than all of these tests.

    It takes what lies beside a file as its own where size and time of the file are the same.
    """
    for folder in PACKAGE_FOLDERS:
        for kernel in (ROOT / folder).rglob("__pycache__/*.nb[ic]"):
            source = kernel.parents[1] / f"{kernel.name.split('.')[0]}.py"
            copy = target / source.relative_to((ROOT / folder).parent)
            if source.is_file() and copy.is_file() and copy.read_bytes() == source.read_bytes():
                times = source.stat()
                os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
                (copy.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy(kernel, copy.parent / "__pycache__")


@pytest.fixture
def foreign_project(tmp_path: Path) -> Path:
    """A working folder whose packages have the names of our top-level folders."""
    for name in ("envs", "agents", "runtime", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    return tmp_path


def run_python(*arguments: str, cwd: Path, python_path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(python_path)}
    command = [sys.executable, *arguments]
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def shipped_data() -> Iterator[str]:
    """Every file of the packages that is not code, as the wheel names it."""
    for folder in PACKAGE_FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts:
                yield str(file.relative_to((ROOT / folder).parent))


def test_the_wheel_holds_five_packages_with_all_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {Path(folder).name for folder in PACKAGE_FOLDERS}
    assert set(shipped_data()) <= set(names)
    assert any(name.endswith(".yaml") for name in names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_long_description_is_the_readme_without_a_relative_link(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert not [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert not re.findall(r"^\[[^\]]+\]:|(?:href|src)=", text, re.MULTILINE)
    assert "Architecture (`docs/architecture.md`)" in text
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith(("#", "heterps ", "make ", "| ")) and "](" not in line:
            assert line in text


def test_shipped_files_load_from_the_wheel_beside_foreign_packages(
    installed: Path, foreign_project: Path
) -> None:
    code = (
        "import heterps_configs.library as library\n"
        "print(library.__file__)\n"
        "print(len(library.load_cluster('eight-types').devices))\n"
        "print(library.copy('local-emulated', 'copies'))\n"
    )
    file, count, copied = run_python(
        "-c", code, cwd=foreign_project, python_path=installed
    ).splitlines()
    assert Path(file).is_relative_to(installed)
    assert int(count) == 24
    assert (foreign_project / copied).is_file()


def test_the_command_runs_from_the_wheel_beside_foreign_packages(
    installed: Path, foreign_project: Path
) -> None:
    assert "place" in run_python(
        "-m", "heterps", "--help", cwd=foreign_project, python_path=installed
    )
    where = run_python(
        "-c", "import heterps; print(heterps.__file__)", cwd=foreign_project, python_path=installed
    )
    assert Path(where.strip()).is_relative_to(installed)


def test_the_environments_are_made_by_id_with_nothing_imported(
    installed: Path, foreign_project: Path
) -> None:
    """Gymnasium reads no entry points since 1.0: the id itself names the module that registers."""
    code = (
        "import sys, gymnasium\n"
        "from gymnasium.envs.registration import registry\n"
        "import heterps_envs.registration\n"
        "loaded = {'numba', 'scipy', 'torch', 'stable_baselines3', 'pydantic'} & {*sys.modules}\n"
        "print(sorted(loaded))\n"
        "print(*(key for key in registry if key.startswith('heterps/')))\n"
    )
    loaded, ids = run_python(
        "-W", "error", "-c", code, cwd=foreign_project, python_path=installed
    ).splitlines()
    assert loaded == "[]", "to register costs next to nothing"
    assert len(ids.split()) == 4
    code = (
        "import gymnasium as gym\n"
        f"for key in {ids.split()}:\n"
        "    env = gym.make('heterps_envs.registration:' + key)\n"
        "    env.reset(seed=0)\n"
        "    print(env.spec.id)\n"
    )
    made = run_python("-W", "error", "-c", code, cwd=foreign_project, python_path=installed)
    assert made.split() == ids.split()
