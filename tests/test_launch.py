"""A run on several processes: what is handed out, and that no death of a worker or driver changes a result."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli_setup import Commands, icrbench, model_folder
from icrbench.cli import main
from icrbench.launch import drive
from icrbench.launch import run as launching
from icrbench.launch.board import Board, Piece
from icrbench.launch.devices import VISIBLE, environments, gpus
from icrbench.launch.local import LocalEngine, LocalSeat
from icrbench.launch.messages import Order
from icrbench.runner.recorder import Tally
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import unmeasured

__all__ = ["icrbench"]  # a fixture
ONE = Tally(done=1)


def pieces(*rows: tuple[int, bool, int | None, float]) -> list[Piece]:
    """Pieces of (model, fit, after, tokens)."""
    return [
        Piece(number, model, number, (0,), fit, after, tokens, f"piece {number}")
        for number, (model, fit, after, tokens) in enumerate(rows)
    ]


def taken(board: Board, model: int | None = None) -> int | None:
    piece = board.take(model, 0.0)
    return None if piece is None else piece.number


def test_fits_come_first_and_long_pieces_before_short_ones() -> None:
    board = Board(pieces((0, False, None, 5), (0, False, None, 9), (0, True, None, 1), (0, False, 2, 3)), 0)
    assert [taken(board) for _ in range(4)] == [2, 1, 0, None]  # piece 3 waits for its fit
    board.end(2, ONE, 0.0)
    assert taken(board) == 3
    for number in (0, 1, 3):
        board.end(number, ONE, 0.0)
    assert board.finished
    assert board.share_done() == 1
    assert board.tally.done == 4


def test_a_worker_stays_with_its_model_as_long_as_there_is_work() -> None:
    board = Board(pieces((0, False, None, 1), (1, False, None, 9), (1, False, None, 8)), 0)
    assert taken(board) == 1  # the model with most left to do
    assert taken(board, model=0) == 0
    assert taken(board, model=0) == 2


def test_a_lost_piece_is_tried_again_so_often_and_no_more() -> None:
    board = Board(pieces((0, True, None, 1), (0, False, 0, 1)), 1)
    assert taken(board) == 0
    assert board.lose(0, "died", 0.0)
    assert taken(board) == 0
    assert not board.lose(0, "died again", 0.0)
    assert [(entry.piece.name, entry.why) for entry in board.lost] == [("piece 0", "died again")]
    assert taken(board) == 1  # what waited for it is tried without it


def test_a_model_that_cannot_be_loaded_costs_its_own_pieces() -> None:
    board = Board(pieces((0, True, None, 9), (0, False, 0, 1), (1, False, None, 1)), 2)
    assert taken(board) == 0
    board.refuse(0, "no such weights", 0.0)
    assert [entry.piece.number for entry in board.lost] == [0, 1]
    assert taken(board) == 2
    assert taken(board) is None
    board.end(2, ONE, 0.0)
    assert board.finished


def test_threads_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert environments(4, 1, "cpu", ["0"]) == [{VISIBLE: "", "OMP_NUM_THREADS": "2"}] * 4
    assert [own[VISIBLE] for own in environments(None, 2, None, ["4", "5", "6", "7", "8"])] == ["4,5", "6,7"]
    with pytest.raises(UserError, match="3 workers with --gpus-per-model 2 need 6 GPUs, and there are 5"):
        environments(3, 2, None, ["4", "5", "6", "7", "8"])
    monkeypatch.setenv(VISIBLE, "2,3")
    assert gpus() == ["2", "3"]


METHODS = (
    "zero_shot,few_shot:per_class=1,task_vector:per_class=1:held_out=4:layer=2,"
    "icr:prompts_per_domain=4:prompts_agnews=4:per_class=1:train_per_domain=4:encoder=random:hidden=8:rank=2"
)


def line(out: Path, *more: object) -> list[str]:
    grid = ["--methods", METHODS, "--models", str(model_folder()), "--tasks", "sst2,mr", "--demo", "--limit", "4"]
    return ["run", *grid, "--seeds", "0", "--no-priors", "--quiet", "--out", str(out), *map(str, more)]


def outcome(folder: Path) -> dict[str, Any]:
    """All that is a result or a cost, by cell."""
    store = Store(folder)
    found = {}
    for record in store.records():
        assert record["result"] is not None, record["error"]
        rows = store.rows(record["key"]).to_pylist()
        found[record["key"]] = (record["cell"], record["fit"], unmeasured(record["result"]), rows)
    return found


class Trouble(LocalEngine):
    """Workers that are killed or stopped while they have work: what happens to which start of a worker."""

    plan: Mapping[int, tuple[int, int, float]]
    """By number of the start: the order at which it happens, counted from 1, the signal, and seconds after it."""
    started = 0

    def start(self, worker: int) -> LocalSeat:
        seat = super().start(worker)
        number, type(self).started = self.started, self.started + 1
        orders = 0
        send = seat.send

        def troubled(order: Order) -> None:
            nonlocal orders
            orders += 1
            send(order)
            if number in self.plan and orders == self.plan[number][0]:
                # By the process, not by its number: it may have ended long ago.
                threading.Timer(self.plan[number][2], seat._process.send_signal, (self.plan[number][1],)).start()

        seat.send = troubled  # type: ignore[method-assign]
        return seat


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*line(folder / "out"), "--cache-dir", str(folder / "cache")]) == 0
    return outcome(folder / "out")


def test_killed_and_hanging_workers_change_no_result(
    icrbench: Commands, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker is killed at its second piece, the other one is stopped."""
    monkeypatch.setattr(launching, "LocalEngine", Trouble)
    monkeypatch.setattr(Trouble, "plan", {0: (2, signal.SIGKILL, 0), 1: (2, signal.SIGSTOP, 0)}, raising=False)
    monkeypatch.setattr(drive, "HANGS", 8.0)
    out = icrbench.folder / "out"
    done = icrbench(*line(out, "--workers", 2))
    assert done.code == 0, done
    assert "was killed by signal 9; another takes its place." in done.out
    assert "has done nothing for 8 s; another takes its place." in done.out
    assert outcome(out) == undisturbed
    status = icrbench("status", out, "--watch")
    assert "of 8 cells 8 run, 0 already there, 0 failed, 0 waiting" in status.out
    assert (out / "logs" / "worker-0.log").read_text()
    assert icrbench(*line(out)).counts == (0, 8, 0)  # and a single process finds them all


def test_kills_at_random_moments_change_no_result(
    icrbench: Commands, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven workers five are killed: some time after an order, while loading, fitting, scoring or writing."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # of a failure
    draw = random.Random(seed)
    plan = {number: (draw.randint(1, 3), signal.SIGKILL, draw.uniform(0, 2)) for number in range(5)}
    monkeypatch.setattr(launching, "LocalEngine", Trouble)
    monkeypatch.setattr(Trouble, "plan", plan, raising=False)
    monkeypatch.setattr(Trouble, "started", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = icrbench.folder / "out"
    done = icrbench(*line(out, "--workers", 2, "--retries", 5))
    assert done.code == 0, done
    assert outcome(out) == undisturbed
    assert {record["environment"]["machine"].endswith(", 1 threads") for record in Store(out).records()} == {True}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # a run that finds all done leaves to the records what they say
    before = Store(out).records()
    assert icrbench(*line(out)).counts == (0, 8, 0)
    assert Store(out).records() == before
    assert not list(out.rglob("*.partial"))


def test_no_more_workers_are_started_than_there_are_pieces(icrbench: Commands) -> None:
    out = icrbench.folder / "out"
    asked = ["run", "--methods", "zero_shot", "--models", model_folder(), "--tasks", "sst2", "--demo", "--limit", "2"]
    assert icrbench(*asked, "--no-priors", "--out", out, "--workers", 3).code == 0
    assert [log.name for log in (out / "logs").glob("*.log")] == ["worker-0.log"]


def test_a_cell_that_a_lost_worker_still_has_is_waited_for(icrbench: Commands) -> None:
    out, known = icrbench.folder / "out", icrbench.folder / "known"
    asked = ["run", "--methods", "zero_shot", "--models", model_folder(), "--tasks", "sst2", "--demo", "--limit", "2"]
    assert icrbench(*asked, "--no-priors", "--out", known).code == 0
    [record] = Store(known).records()
    log = out / "logs" / "worker-0.log"

    def hold() -> None:
        with Store(out).lock(record["key"]) as free:
            assert free
            held.set()
            while not (log.exists() and "being run by another process" in log.read_text()):
                time.sleep(0.05)

    held, holder = threading.Event(), threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    done = icrbench(*asked, "--no-priors", "--out", out, "--workers", 1)
    holder.join()
    assert done.code == 0, done
    assert "being run by another process" in done.out
    assert "1 cells run, 0 already there, 0 failed of 1" in done.out


def test_work_that_kills_every_worker_is_given_up_and_named(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "LocalEngine", Trouble)
    monkeypatch.setattr(Trouble, "plan", {0: (1, signal.SIGKILL, 0)}, raising=False)
    monkeypatch.setattr(Trouble, "started", 0)
    out = icrbench.folder / "out"
    asked = ["run", "--methods", "zero_shot", "--models", model_folder(), "--tasks", "sst2", "--demo", "--limit", "2"]
    done = icrbench(*asked, "--no-priors", "--out", out, "--workers", 1, "--retries", 0)
    assert done.code == 1
    assert f"could not be had: {model_folder()} zero_shot sst2; the same command tries them again." in done.out
    assert "lost     " in icrbench("status", out).out


def test_no_process_outlives_a_killed_driver_and_the_run_goes_on(
    icrbench: Commands, undisturbed: dict[str, Any]
) -> None:
    out = icrbench.folder / "out"
    code = "import sys; from icrbench.cli import main; sys.exit(main(sys.argv[1:]))"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, *line(out, "--workers", 2)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    workers: list[psutil.Process] = []
    while not list((out / "cells").glob("*.json")):
        assert driver.poll() is None
        workers = psutil.Process(driver.pid).children()
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert len(gone) == 2
    assert not alive
    assert "gone without an end" in icrbench("status", out).out
    assert icrbench(*line(out)).code == 0
    assert outcome(out) == undisturbed


def test_shares_are_the_whole_and_each_cell_is_in_one(icrbench: Commands, undisturbed: dict[str, Any]) -> None:
    out = icrbench.folder / "out"
    runs = [icrbench(*line(out, "--share", f"{number}/3")) for number in (1, 2, 3)]
    assert [done.code for done in runs] == [0, 0, 0]
    assert sum(done.counts[0] for done in runs) == len(undisturbed)
    assert all(done.counts[0] for done in runs)
    assert outcome(out) == undisturbed


def test_a_share_loads_no_model_of_which_it_has_nothing_to_do(icrbench: Commands) -> None:
    models = f"{model_folder()},{icrbench.folder / 'damaged'}"
    (icrbench.folder / "damaged").mkdir()
    done = icrbench.run("--share", "1/2", models=models)
    assert (done.code, done.counts) == (0, (1, 0, 0))
    done = icrbench.run("--share", "2/2", models=models)
    assert done.code == 1
    assert "None of its cells was run." in done.out


@pytest.mark.parametrize("share", ["0/3", "4/3", "3", "a/b", "1/1000000"])
def test_a_share_that_cannot_be_is_refused(icrbench: Commands, share: str) -> None:
    icrbench.refused(icrbench(*line(icrbench.folder / "out", "--share", share)), "a share is written 3/8")
