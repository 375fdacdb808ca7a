"""docs/own_tasks.md: its files are written and its commands run as they stand, on a tiny model."""

import re
import shlex
from pathlib import Path

import pytest

from cli_setup import Commands, icrbench, model_folder
from icrbench.data.task_yaml import KEYS

__all__ = ["icrbench"]  # a fixture

DOC = (Path(__file__).parents[1] / "docs" / "own_tasks.md").read_text("utf-8")


def test_the_files_and_commands_of_the_page_run(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(icrbench.folder)
    for name, text in re.findall(r"```(?:jsonl|yaml) (\S+)\n(.*?)```", DOC, re.DOTALL):
        path = icrbench.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert len(list((icrbench.folder / "mine").glob("*.yaml"))) == 3
    commands = [line for block in re.findall(r"```sh\n(.*?)```", DOC, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 4
    for command in commands:
        program, *words = shlex.split(command.replace("gemma-270m", str(model_folder())))
        done = icrbench(*words)
        assert (program, done.code) == ("icrbench", 0), done
    tasks = {record["cell"]["task"] for record in icrbench.records("runs/films")}
    assert tasks == {"films", "endings", "opposites"}
    drafted = icrbench("new", "task", "mine/films/train.jsonl", "--out", "drafted")
    assert drafted.code == 0, drafted


def test_every_key_has_its_line_with_an_example() -> None:
    table = DOC[DOC.index("## Every key") :]
    for key in KEYS:
        assert re.search(rf"^\| .*`{key}`.* \| .+ \| `.+` \|$", table, re.MULTILINE), key


def test_a_lone_task_out_of_domain_says_what_to_do(icrbench: Commands, tmp_path: Path) -> None:
    for name, text in re.findall(r"```(?:jsonl|yaml) (mine/films\S*)\n(.*?)```", DOC, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "data").mkdir()
    own = {"tasks": "films", "tasks_dir": tmp_path / "mine", "methods": "few_shot", "data_dir": tmp_path / "data"}
    icrbench.refused(icrbench.run(**own), "'agnews', which has role id", "no data for", "or ask for --protocol in_task")
    assert icrbench.run(**own, protocol="in_task").counts == (1, 0, 0)
    (tmp_path / "data" / "films").mkdir()
    icrbench.refused(icrbench.run(**own, protocol="in_task"), "names its own rows", str(tmp_path / "data" / "films"))
