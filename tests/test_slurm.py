"""Runs under a real Slurm of two nodes: whatever becomes of tasks and nodes, the results are those of one process."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli_setup import Commands, Done, icrbench, model_folder
from icrbench.cli import main
from icrbench.launch import on_slurm
from slurm_setup import Cluster, missing, running
from test_launch import METHODS, outcome

__all__ = ["icrbench"]  # a fixture
pytestmark = [
    pytest.mark.skipif("ICRBENCH_SLURM" not in os.environ, reason="ten minutes: asked for by ICRBENCH_SLURM=1"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.usefixtures("own_registry", "in_the_cluster"),
]
GATED = '''
import json, os, time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from icrbench.method import Fitted, Method, Scope, register

class GatedFitted(Fitted):
    pass

@register("gated")
@dataclass(frozen=True)
class Gated(Method):
    """Zero-shot, but its first fit says where it is, and waits to be disturbed."""
    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = GatedFitted

    def fit(self, backbone, data, rng):
        if (gate := os.environ.get("GATE")) and not Path(gate).exists():
            Path(gate + "~").write_text(json.dumps({"process": os.getpid(), "node": os.environ["SLURMD_NODENAME"]}))
            Path(gate + "~").rename(gate)
            time.sleep(200)
        return GatedFitted({}, {})
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as started:
        yield started


@pytest.fixture
def in_the_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setattr(on_slurm, "POLL", 0.2)


@pytest.fixture(scope="module")
def methods_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    (folder / "gated.py").write_text(GATED)
    return folder


def line(folder: Path, methods_folder: Path) -> list[str]:
    grid = ["--methods", f"{METHODS},gated", "--methods-dir", methods_folder, "--models", model_folder()]
    where = ["--tasks", "sst2,mr", "--demo", "--limit", 4, "--seeds", 0, "--no-priors", "--device", "cpu"]
    return [str(word) for word in ("run", *grid, *where, "--out", folder / "out")]


@pytest.fixture(scope="module")
def undisturbed(methods_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*line(folder, methods_folder), "--cache-dir", str(folder / "cache")]) == 0
    return outcome(folder / "out")


class Drill:
    """A run on Slurm, disturbed by what is done once its gated fit waits."""

    def __init__(self, commands: Commands, methods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commands, self._monkeypatch = commands, monkeypatch
        self.out = commands.folder / "out"
        self.line = line(commands.folder, methods_folder)

    def __call__(self, *more: object, disturb: Callable[[dict[str, Any]], object] | None = None) -> Done:
        run = [*self.line, "--launcher", "slurm", "--workers", 2, *more]
        if disturb is None:
            return self._commands(*run)
        gate = self.out.parent / "gate"
        self._monkeypatch.setenv("GATE", str(gate))

        def disturber() -> None:
            until = time.monotonic() + 300
            while not gate.exists() and time.monotonic() < until:
                time.sleep(0.05)
            disturb(json.loads(gate.read_text()))

        thread = threading.Thread(target=disturber)
        thread.start()
        done = self._commands(*run)
        thread.join()
        self._monkeypatch.delenv("GATE")
        return done


@pytest.fixture
def drill(icrbench: Commands, methods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    return Drill(icrbench, methods_folder, monkeypatch)


def test_a_job_array_has_the_results_of_one_process(
    icrbench: Commands, drill: Drill, undisturbed: dict[str, Any]
) -> None:
    done = drill("--slurm-partition", "short", "--slurm-extra", "comment=drill")
    assert done.code == 0, done
    assert "10 cells run, 0 already there, 0 failed of 10; results in" in done.out
    assert outcome(drill.out) == undisturbed
    assert "[1/" in (drill.out / "logs" / "share-1.log").read_text()
    status = icrbench("status", drill.out, "--watch").out
    assert "of 10 cells 10 run, 0 already there, 0 failed, 0 waiting" in status
    assert "0 cells run, 10 already there, 0 failed of 10" in drill().out
    assert icrbench(*drill.line).counts == (0, 10, 0)  # and a single process finds them all


def test_a_job_that_nobody_waits_for(icrbench: Commands, drill: Drill, undisturbed: dict[str, Any]) -> None:
    done = drill("--no-wait")
    assert done.code == 0
    assert "submitted as Slurm job" in done.out
    assert f"`icrbench status {drill.out} --watch`" in done.out
    until = time.monotonic() + 120
    while (status := icrbench("status", drill.out).out).count("  over: ") < 2 and time.monotonic() < until:
        time.sleep(0.5)
    assert sum(map(int, re.findall(r"of \d+ cells (\d+) run, 0 already there, 0 failed, 0 waiting", status))) == 10
    assert outcome(drill.out) == undisturbed


def test_a_task_whose_time_is_up_is_requeued_and_goes_on(
    cluster: Cluster, drill: Drill, undisturbed: dict[str, Any]
) -> None:
    """Its limit is shortened, so that Slurm, which looks at limits every half minute, warns it as soon as it looks."""

    def shorten(gate: dict[str, Any]) -> None:
        script = psutil.Process(gate["process"]).parent()
        assert script is not None
        variables = script.environ()
        task = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
        minutes = (time.time() - script.create_time()) // 60
        cluster.command("scontrol", "update", f"jobid={task}", f"timelimit={minutes + 2:.0f}")
        script.wait(120)
        cluster.command("scontrol", "update", f"jobid={task}", "timelimit=60")

    done = drill("--slurm-time", 60, disturb=shorten)
    assert done.code == 0, done
    assert "to be started again" in done.out
    assert outcome(drill.out) == undisturbed
    logs = "".join(path.read_text() for path in (drill.out / "logs").glob("share-*.log"))
    assert "icrbench: interrupted; finished cells are kept" in logs


def test_a_process_that_is_killed_is_started_again(drill: Drill, undisturbed: dict[str, Any]) -> None:
    done = drill(disturb=lambda gate: os.kill(gate["process"], signal.SIGKILL))
    assert done.code == 0, done
    assert "to be started again" in done.out
    assert outcome(drill.out) == undisturbed


def test_a_task_that_is_killed_whole_is_submitted_again(drill: Drill, undisturbed: dict[str, Any]) -> None:
    def kill(gate: dict[str, Any]) -> None:
        process = psutil.Process(gate["process"])
        script = process.parent()
        assert script is not None
        script.kill()
        process.kill()

    done = drill(disturb=kill)
    assert done.code == 0, done
    assert "was killed by signal 9" in done.out
    assert "; submitted again as job " in done.out
    assert outcome(drill.out) == undisturbed


def test_a_node_that_fails_gives_its_tasks_to_the_other(
    cluster: Cluster, drill: Drill, undisturbed: dict[str, Any]
) -> None:
    failed = []

    def fail(gate: dict[str, Any]) -> None:
        failed.append(gate["node"])
        cluster.fail(gate["node"])

    try:
        done = drill(disturb=fail)
    finally:
        for node in failed:
            cluster.repair(node)
    assert done.code == 0, done
    other = next(iter({"one", "two"} - set(failed)))
    assert f"after {failed[0]} lost it" in done.out
    assert f"runs on {other}" in done.out
    assert outcome(drill.out) == undisturbed


def test_a_cancelled_job_names_what_is_missing_and_the_next_completes_it(
    cluster: Cluster, icrbench: Commands, drill: Drill, undisturbed: dict[str, Any]
) -> None:
    done = drill(disturb=lambda gate: cluster.command("scancel", "--name=icrbench"))
    assert done.code == 1
    assert "was cancelled" in done.out
    assert f"{model_folder()} gated " in done.out.split("could not be had: ")[1]
    assert "was cancelled" in icrbench("status", drill.out).out
    assert drill().code == 0
    assert outcome(drill.out) == undisturbed


def test_ctrl_c_cancels_the_job(cluster: Cluster, drill: Drill, undisturbed: dict[str, Any]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    try:
        done = drill(disturb=lambda gate: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 2
    assert " is cancelled." in done.out
    assert "go on with: icrbench run" in done.err
    while cluster.command("squeue", "--noheader").stdout.strip():
        time.sleep(0.2)
    assert drill().code == 0
    assert outcome(drill.out) == undisturbed


def test_a_task_that_dies_too_often_is_given_up_and_named(icrbench: Commands, drill: Drill) -> None:
    done = drill("--retries", 0, disturb=lambda gate: os.kill(gate["process"], signal.SIGKILL))
    assert done.code == 1
    assert "was killed by signal 9" in done.out
    assert "--retries allows no further start." in done.out
    assert " gated " in done.out.split("could not be had: ")[1]
    assert "lost     share " in icrbench("status", drill.out).out


def test_cells_that_fail_are_named(icrbench: Commands, drill: Drill) -> None:
    (icrbench.folder / "broken").mkdir()
    fails = GATED.replace("return GatedFitted({}, {})", "raise ValueError('out of luck')")
    (icrbench.folder / "broken" / "broken.py").write_text(fails.replace('"gated"', '"broken"'))
    done = drill("--methods", "zero_shot,broken", "--methods-dir", icrbench.folder / "broken")
    assert done.code == 1
    assert "2 cells run, 0 already there, 2 failed of 4" in done.out
    assert f"failed: {model_folder()} broken mr seed 0: out of luck" in done.out


def test_what_slurm_refuses_is_one_sentence_in_its_words(icrbench: Commands, drill: Drill) -> None:
    icrbench.refused(drill("--slurm-partition", "nowhere"), "Slurm refuses the job: Batch job submission failed")
    icrbench.refused(drill("--slurm-time", "soon"), "Slurm refuses the job: Invalid --time specification")
    assert not list((drill.out / "logs").glob("*.json"))
