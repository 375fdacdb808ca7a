"""What is asked of Slurm, and the script that it runs; none needs to be here for it."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cli_setup import Commands, icrbench, model_folder
from icrbench.cli.entry import _parse
from icrbench.cli.options import request_arguments
from icrbench.launch.batch_script import Slurm, batch_script, share_command
from icrbench.util.errors import UserError

__all__ = ["icrbench"]  # a fixture
PLAIN = ["run", "--models", "org/model", "--methods", "zero_shot"]
ALL = [
    *("run", "--models", "org/model@main,other/one", "--methods", "zero_shot,icr:rank=4", "--tasks", "id,mr"),
    *("--seeds=-1,2", "--limit", "all", "--preset", "cpu", "--set", "icr.rank=2", "--set", "icr.layers=-1"),
    *("--protocol", "in_task", "--clean", "--methods-dir", "my methods", "--chat-template", "--data-dir", "it's data"),
    *("--tasks-dir", "t", "--out", "o$ut", "--cache-dir", "c", "--device", "cpu", "--dtype", "bfloat16"),
    *("--trust-remote-code", "--device-map", "auto", "--batch-size", "8", "--no-priors", "--quantize", "int8"),
]


@pytest.mark.parametrize("line", [PLAIN, ALL], ids=["plain", "all"])
def test_a_share_is_asked_for_the_same_as_the_whole(line: list[str]) -> None:
    asked = request_arguments(_parse([*line, "--launcher", "slurm", "--workers", "3", "--slurm-time", "10"]))
    command, *rest = shlex.split(share_command(asked))
    assert command == "icrbench"
    again = request_arguments(_parse(rest))
    assert {**again, "command": ""} == {**asked, "command": ""}


def test_extra_options_come_before_all_others() -> None:
    assert Slurm().options(0) == {}
    assert Slurm("p", "a", "1:00").options(2) == {"partition": "p", "account": "a", "time": "1:00", "gpus": "2"}
    assert Slurm(extra=["gres=gpu:a100:1"]).options(1) == {"gres": "gpu:a100:1"}
    assert Slurm(extra=["exclusive", "signal=B:USR2@60"]).options(0) == {"exclusive": None, "signal": "B:USR2@60"}
    for wrong in ("array=1-9", "Mem", "a b=c", "mem=6 4", "comment=a\nrm", ""):
        with pytest.raises(UserError):
            Slurm(extra=[wrong]).options(0)


def test_the_script_is_one_that_bash_takes(tmp_path: Path) -> None:
    script = batch_script("icrbench run --out 'a b'", tmp_path / 'a "100%" b', 3, {"exclusive": None}, 2, only=2)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "#SBATCH --array=2\n" in script
    assert '/a \\"100%%\\" b/logs/share-%a.log"\n' in script
    assert '--share "$SLURM_ARRAY_TASK_ID/3" &' in script
    assert re.findall(r"^#SBATCH --exclusive$", script, re.MULTILINE)


def test_a_dry_run_shows_units_resources_time_and_the_script(icrbench: Commands) -> None:
    options = {"methods": "zero_shot,few_shot:per_class=1", "tasks": "sst2,mr", "device": "cpu"}
    done = icrbench.run("--launcher", "slurm", "--workers", 9, "--slurm-time", 10, "--dry-run", **options)
    assert done.code == 0, done
    assert "4 units of work" in done.out
    assert "4 tasks of a job array; asked of Slurm: time=10; threads: " in done.out
    assert "the longest takes about 0 s if its node is as fast as this machine" in done.out
    assert "\n\n#!/bin/bash\n#SBATCH --job-name=icrbench\n#SBATCH --array=1-4\n" in done.out
    assert not (icrbench.folder / "out").exists()
    done = icrbench.run("--workers", 2, "--dry-run", **options)
    assert re.search(r"2 workers; threads of each: \d+; no GPU\nall take about 0 s at best\n$", done.out)
    done = icrbench.run("--launcher", "slurm", "--workers", 2, "--gpus-per-model", 2, "--dry-run")
    assert "#SBATCH --gpus=2\n" in done.out
    assert "--device-map=auto" in done.out
    assert f"--models={model_folder()}" in done.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--launcher", "slurm"], "--launcher slurm needs --workers"),
        (["--no-wait"], "for --launcher slurm: add it"),
        (["--workers", "2", "--slurm-time", "10"], "for --launcher slurm: add it"),
        (["--launcher", "slurm", "--workers", "2", "--share", "1/2"], "--share is for runs without a launcher"),
        (["--launcher", "slurm", "--workers", "2", "--slurm-extra", "array=1"], "cannot set array"),
        (["--launcher", "slurm", "--workers", "2", "--slurm-account", "a b"], "takes no 'a b' for account"),
    ],
)
def test_what_cannot_be_is_refused(icrbench: Commands, options: list[str], words: str) -> None:
    icrbench.refused(icrbench.run(*options), words)


def test_no_slurm_is_one_sentence(icrbench: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    icrbench.refused(icrbench.run("--launcher", "slurm", "--workers", 2), "no sbatch on the path")
