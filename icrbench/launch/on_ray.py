"""Workers on the nodes of a Ray cluster: each an actor that holds a process (`icrbench.launch.host`).

Only orders and reports go through Ray; results go through the file system, which all nodes share. Every call has a
time limit: an actor whose node is lost may never answer.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from icrbench.launch.devices import VISIBLE
from icrbench.launch.host import Begun, Heard, Host
from icrbench.launch.messages import Order, Report
from icrbench.util.code import core
from icrbench.util.errors import UserError, said

ANSWERS = 5.0  # seconds for what is answered at once
PASSED = ("ICRBENCH_", "HF_", "TRANSFORMERS_")
"""Beginnings of the names of variables that workers get from the driver; a token stays where it is."""


@dataclass(frozen=True)
class Places:
    """How many workers a cluster has room for, and what each of them gets."""

    workers: int
    cpus: int
    gpus: int

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPUs" if self.gpus else ""
        return f"{self.workers} workers, {self.cpus} CPUs{gpus} each"


def places(
    nodes: Sequence[Mapping[str, float]], workers: int | None, gpus_per_model: int, device: str | None
) -> Places:
    """Share out what the nodes of a cluster have; a worker never spans two.

    Args:
        nodes: what each has, as Ray names it: ``CPU`` and ``GPU``.
        workers: how many; None for one a GPU (or group of GPUs), and on CPUs one for every two.
        gpus_per_model: GPUs a worker sees.
        device: what the user asked for; None for GPUs if there are some.

    Raises:
        UserError: if the nodes have less than what is asked for.
    """
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    if device == "cpu" or (device is None and not any(gpus)):
        room, each = cpus, 0
        wanted = workers or max(1, sum(own // 2 for own in cpus))
    else:
        room, each = [min(own // gpus_per_model, cpu) for own, cpu in zip(gpus, cpus, strict=True)], gpus_per_model
        wanted = workers or sum(room)
    if not sum(room) or wanted > sum(room):
        needed = f"{gpus_per_model} GPUs and a CPU each" if each else "a CPU each"
        raise UserError(
            f"{wanted or 1} workers need {needed}, and the Ray cluster has room for {sum(room)}: ask for less."
        )
    threads = max(cpus)
    while sum(min(own, cpu // threads) for own, cpu in zip(room, cpus, strict=True)) < wanted:
        threads -= 1
    return Places(wanted, threads, each)


@contextmanager
def cluster(address: str) -> Iterator[list[dict[str, float]]]:
    """Connect with a Ray cluster; yields what each of its nodes has.

    Args:
        address: as `icrbench.launch.how.Launch` has it.

    Raises:
        UserError: if Ray is not installed, or no cluster answers.
    """
    # Before the import: C++ parts read it then. Nothing is reported to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("--launcher ray needs Ray: pip install 'icrbench[ray]'.") from error
    _check_answers(address)
    before = signal.getsignal(signal.SIGTERM)
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({said(error)}): start one with `ray start --head`, on this"
            " machine, or join it to one with `ray start --address HOST:PORT`; --ray-address local needs none."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own ends the process at once
    try:
        yield [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Find out within seconds what Ray takes more than a minute for."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise UserError(f"--ray-address is auto, local or HOST:PORT, not {address!r}.")
    try:
        socket.create_connection((host, int(port)), ANSWERS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"nothing answers at --ray-address {address}: give HOST:PORT of the head node.") from error


class RayEngine:
    """Starts an actor a worker, on a cluster that this process is connected with.

    Args:
        arguments: of `Request.build`, as JSON can hold them.
        places: what each worker gets.
        logs: folder of the workers' logs.
        mark: a file in the results folder that is there when workers are started: nodes look for it.
    """

    def __init__(self, arguments: Mapping[str, Any], places: Places, logs: Path, mark: Path) -> None:
        self._arguments = arguments
        self._places = places
        self._logs = logs.absolute()
        threads = os.environ.get("OMP_NUM_THREADS") or str(places.cpus)
        # Ray names the GPUs of an actor that has some; one that has none would see all.
        self._environment = {"OMP_NUM_THREADS": threads} | ({} if places.gpus else {VISIBLE: ""})
        self._environment |= {
            name: value for name, value in os.environ.items() if name.startswith(PASSED) and "TOKEN" not in name
        }
        self._mark = mark.absolute()

    def start(self, worker: int) -> "RaySeat":
        """Ask for room for a worker, or for another in its place."""
        import ray

        actor: Any = (
            ray.remote(Host)
            # Two threads: what it is told does not wait for what it says.
            .options(num_cpus=self._places.cpus, num_gpus=self._places.gpus, max_restarts=0, max_concurrency=2)
            .remote()
        )
        log = self._logs / f"worker-{worker}.log"
        return RaySeat(
            actor, actor.begin.remote(self._arguments, self._environment, log, Path.cwd(), self._mark, core())
        )


class RaySeat:
    """An actor, from the driver's side.

    Args:
        actor: a `Host`.
        begun: what it will answer when it has begun.
    """

    def __init__(self, actor: Any, begun: Any) -> None:
        self._actor = actor
        self._asked = begun
        self._answered = time.monotonic()
        self._still = 0.0
        self._reports: list[Report] = []
        self._ending: str | None = None
        self.where = ""  # is known when there is room

    @property
    def ready(self) -> bool:
        """Whether the cluster had room for the worker, and it has begun.

        Raises:
            UserError: if a node does not see what the driver sees.
        """
        self._listen()
        return self.where != "" and self._ending is None

    def send(self, order: Order) -> None:
        """Give the worker a piece."""
        self._actor.send.remote(order)

    def close(self) -> None:
        """Tell the worker that there is nothing more to do."""
        self._actor.close.remote()

    def reports(self) -> list[Report]:
        """Return what the worker has said since the last call."""
        self._listen()
        reports, self._reports = self._reports, []
        return reports

    @property
    def alive(self) -> bool:
        """Whether nothing is known of an end of the actor or its process."""
        self._listen()
        return self._ending is None

    def ending(self) -> str:
        """How the process or its actor ended."""
        return self._ending or ""

    def still(self) -> float:
        """Seconds for which the process has used no processor time, or the actor has not answered."""
        return max(self._still, time.monotonic() - self._answered)

    def stop(self) -> None:
        """End the process, if its actor answers; then the actor, with which a process ends in any case."""
        import ray
        from ray.exceptions import RayError

        with suppress(RayError):
            if self.where and self._ending is None:
                ray.wait([self._actor.stop.remote()], timeout=ANSWERS)
            ray.kill(self._actor)

    def _listen(self) -> None:
        """Take the answer to the last question, if it is there, and ask the next one."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        if self._ending is not None or not ray.wait([self._asked], timeout=0)[0]:
            return
        try:
            answer = ray.get(self._asked, timeout=ANSWERS)
        except RayTaskError as error:  # it failed rather than died, and so would others
            raise UserError(f"a node of the Ray cluster cannot run icrbench: {said(error.cause or error)}.") from error
        except RayError:
            self._ending = "was lost with its actor"
            return
        self._answered = time.monotonic()
        if not self.where:
            self._begun(cast(Begun, answer))
        else:
            self._heard(cast(Heard, answer))
        if self._ending is None:
            self._asked = self._actor.hear.remote()

    def _begun(self, answer: Begun) -> None:
        if answer["wrong"]:
            raise UserError(f"{answer['wrong']}: all nodes need the same folders and the same Python environment.")
        self.where = answer["where"]

    def _heard(self, answer: Heard) -> None:
        self._reports += answer["reports"]
        self._still = answer["still"]
        if not answer["alive"]:
            self._ending = answer["ending"]
