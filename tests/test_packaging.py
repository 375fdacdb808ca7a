"""What a wheel of this project holds, and that it imports from anywhere."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"icrbench": "icrbench", "methods": "icrbench/methods", "tasks": "icrbench/tasks"}

IMPORT = """
import importlib.resources, icrbench.methods, icrbench.tasks
files = importlib.resources.files("icrbench.tasks")
print(icrbench.__file__, icrbench.methods.__file__, files.joinpath("__init__.py"), sep="\\n")
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The output of a command that must succeed; its errors are in the failure's message."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, out: Path) -> zipfile.ZipFile:
    """The wheel of a source tree, built with the installed setuptools."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", out, source, cwd=out)
    (wheel,) = out.glob("*.whl")
    return zipfile.ZipFile(wheel)


def content(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clean copy of what the build reads, with a new subpackage, preset and task that nothing lists."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("__init__.py", "deeper/__init__.py", "deeper/part.py", "preset.yaml"):
        new = copy / "methods" / "brand_new" / name
        new.parent.mkdir(parents=True, exist_ok=True)
        new.touch()
    (copy / "tasks" / "brand_new.yaml").touch()
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    with build(source, tmp_path_factory.mktemp("wheel")) as built:
        yield built


def test_wheel_holds_one_package_with_every_file_of_the_three_folders(wheel, source):
    expected = {
        f"{package}/{path.relative_to(source / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    assert content(wheel) == expected
    assert len(wheel.namelist()) == len(set(wheel.namelist()))


def test_wheel_names_the_command_and_carries_the_licence(wheel):
    (info,) = {name.split("/")[0] for name in wheel.namelist()} - {"icrbench"}
    assert "icrbench = icrbench.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")


def test_wheel_imports_from_another_folder(wheel, tmp_path):
    target = tmp_path / "target"
    wheel.extractall(target)
    lines = run(sys.executable, "-c", IMPORT, cwd=tmp_path, PYTHONPATH=str(target)).split()
    package = target / "icrbench"
    assert [Path(line) for line in lines] == [
        package / "__init__.py",
        package / "methods/__init__.py",
        package / "tasks/__init__.py",
    ]


def test_checkout_imports_from_another_folder(tmp_path):
    lines = run(sys.executable, "-c", IMPORT, cwd=tmp_path).split()
    assert [Path(line) for line in lines] == [ROOT / folder / "__init__.py" for folder in FOLDERS]
