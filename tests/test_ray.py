"""A run on a Ray cluster: two nodes on this machine, real actors; whatever is lost, the results are the same."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli_setup import Commands, icrbench, model_folder
from icrbench.cli import main
from icrbench.launch import drive
from icrbench.launch import run as launching
from icrbench.launch.messages import Order
from icrbench.launch.on_ray import Places, RayEngine, RaySeat, places
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import unmeasured

__all__ = ["icrbench"]  # a fixture
pytest.importorskip("ray", reason="Ray is not installed: pip install 'icrbench[ray]'")
HEAD, SECOND = "127.0.0.2", "127.0.0.3"


def test_what_nodes_have_is_shared_out() -> None:
    eight, one = {"CPU": 8.0}, {"CPU": 1.0}
    assert places([eight, one], None, 1, None) == Places(4, 2, 0)
    assert places([eight, one], 2, 1, "cpu") == Places(2, 4, 0)
    assert places([one, one], 2, 1, None) == Places(2, 1, 0)
    with pytest.raises(UserError, match="3 workers need a CPU each, and the Ray cluster has room for 2"):
        places([one, one], 3, 1, None)
    gpus = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 3.0}, eight]
    assert places(gpus, None, 1, None) == Places(7, 2, 1)
    assert places(gpus, None, 2, None) == Places(3, 8, 2)  # a worker spans no two nodes
    assert places(gpus, None, 1, "cpu") == Places(16, 2, 0)
    with pytest.raises(UserError, match="4 workers need 2 GPUs and a CPU each"):
        places(gpus, 4, 2, "cuda")


METHODS = (
    "zero_shot,few_shot:per_class=1,task_vector:per_class=1:held_out=4:layer=2,"
    "icr:prompts_per_domain=4:prompts_agnews=4:per_class=1:train_per_domain=4:encoder=random:hidden=8:rank=2"
)


def line(out: Path, *more: object) -> list[str]:
    grid = ["--methods", METHODS, "--models", str(model_folder()), "--tasks", "sst2,mr", "--demo", "--limit", "4"]
    return ["run", *grid, "--seeds", "0", "--no-priors", "--quiet", "--out", str(out), *map(str, more)]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "nothing answers at --ray-address 127.0.0.1:9"),
        ("ray://head:10001", "--ray-address is auto, local or HOST:PORT"),
        ("auto", "no Ray cluster answers at auto"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_at_once(
    icrbench: Commands, address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    start = time.monotonic()
    done = icrbench(*line(icrbench.folder / "out", "--launcher", "ray", "--ray-address", address))
    icrbench.refused(done, words)
    assert time.monotonic() - start < 60  # Ray itself takes 81 s


def test_missing_ray_is_one_sentence(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = icrbench(*line(icrbench.folder / "out", "--launcher", "ray"))
    icrbench.refused(done, "--launcher ray needs Ray: pip install 'icrbench[ray]'.")


def outcome(folder: Path) -> dict[str, Any]:
    """All that is a result, by cell."""
    store = Store(folder)
    found = {}
    for record in store.records():
        assert record["result"] is not None, record["error"]
        rows = store.rows(record["key"]).to_pylist()
        found[record["key"]] = (record["cell"], record["fit"], unmeasured(record["result"]), rows)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*line(folder / "out"), "--cache-dir", str(folder / "cache")]) == 0
    return outcome(folder / "out")


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with a CPU each; a test may remove the second, and adds it again."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args={**small, "node_ip_address": HEAD, "include_dashboard": False}
    )
    cluster.second = cluster.add_node(**small, node_ip_address=SECOND)  # type: ignore[attr-defined]
    yield cluster
    cluster.shutdown()


def processes(out: Path) -> list[psutil.Process]:
    """All worker processes whose log is in a results folder."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = "icrbench.launch.child" in process.cmdline()
            if ours and Path(f"/proc/{process.pid}/fd/1").readlink().is_relative_to(out):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def all_gone(out: Path) -> bool:
    """Whether no worker process is left, after at most 30 s."""
    return not psutil.wait_procs(processes(out), timeout=30)[1]


class Trouble(RayEngine):
    """Workers over which something happens when they are given their second piece: by number of the start."""

    plan: dict[int, Any]
    seats: list[RaySeat]

    def start(self, worker: int) -> RaySeat:
        seat = super().start(worker)
        number = len(self.seats)
        self.seats.append(seat)
        send, orders = seat.send, 0

        def troubled(order: Order) -> None:
            nonlocal orders
            orders += 1
            send(order)
            if orders == 2 and number in self.plan:
                self.plan[number](seat)

        seat.send = troubled  # type: ignore[method-assign]
        return seat


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> type[Trouble]:
    monkeypatch.setattr(launching, "RayEngine", Trouble)
    monkeypatch.setattr(Trouble, "plan", {}, raising=False)
    monkeypatch.setattr(Trouble, "seats", [], raising=False)
    return Trouble


def worker_process(seat: RaySeat) -> psutil.Process:
    return psutil.Process(int(seat.where.split()[1]))


def test_killed_workers_and_actors_and_a_hanging_actor_change_no_result(
    icrbench: Commands,
    undisturbed: dict[str, Any],
    two_nodes: Any,
    trouble: type[Trouble],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker process is killed, an actor is stopped; then, in their places, an actor is killed."""
    monkeypatch.setattr(drive, "HANGS", 10.0)
    trouble.plan = {
        0: lambda seat: worker_process(seat).kill(),
        1: lambda seat: worker_process(seat).parent().send_signal(signal.SIGSTOP),
        2: lambda seat: worker_process(seat).parent().kill(),
    }
    out = icrbench.folder / "out"
    done = icrbench(*line(out, "--launcher", "ray", "--ray-address", two_nodes.address, "--workers", 2))
    assert done.code == 0, done
    assert "was killed by signal 9; another takes its place." in done.out
    assert "has done nothing for 10 s; another takes its place." in done.out
    assert outcome(out) == undisturbed
    assert done.err == "Ray cluster of 2 nodes: 2 workers, 1 CPUs each.\n"  # and no talk of Ray's
    assert (out / "logs" / "worker-0.log").read_text()
    assert all_gone(out)


def test_a_lost_node_changes_no_result(
    icrbench: Commands, undisturbed: dict[str, Any], two_nodes: Any, trouble: type[Trouble]
) -> None:
    def remove(seat: RaySeat) -> None:
        two_nodes.remove_node(two_nodes.second, allow_graceful=False)

    trouble.plan = {1: remove}
    out = icrbench.folder / "out"
    try:
        done = icrbench(*line(out, "--launcher", "ray", "--ray-address", two_nodes.address, "--workers", 2))
    finally:
        two_nodes.second = two_nodes.add_node(num_cpus=1, object_store_memory=100 << 20, node_ip_address=SECOND)
    assert done.code == 0, done
    assert outcome(out) == undisturbed
    assert all_gone(out)


def test_no_process_outlives_a_killed_driver_and_the_run_goes_on(
    icrbench: Commands, undisturbed: dict[str, Any], two_nodes: Any
) -> None:
    out = icrbench.folder / "out"
    code = "import sys; from icrbench.cli import main; sys.exit(main(sys.argv[1:]))"
    asked = line(out, "--launcher", "ray", "--ray-address", two_nodes.address, "--workers", 2)
    driver = subprocess.Popen(
        [sys.executable, "-c", code, *asked], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((out / "cells").glob("*.json")):
        assert driver.poll() is None
        time.sleep(0.05)
    workers = processes(out)
    assert workers
    driver.kill()
    driver.wait()
    assert not psutil.wait_procs(workers, timeout=30)[1]
    assert all_gone(out)
    assert icrbench(*asked).code == 0
    assert outcome(out) == undisturbed


def test_a_node_that_does_not_see_what_the_driver_sees_is_named(
    icrbench: Commands, two_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "path_of", lambda folder: folder / "logs" / "of-another-machine.json")
    out = icrbench.folder / "out"
    done = icrbench(*line(out, "--launcher", "ray", "--ray-address", two_nodes.address, "--workers", 1))
    assert done.code == 2
    assert "does not see the results folder" in done.err
    assert "all nodes need the same folders" in done.err
    assert not processes(out)
