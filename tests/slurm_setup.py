"""A real Slurm of two nodes on this machine, for as long as tests need it.

    python tests/slurm_setup.py     # starts one, says how to use it, and stops it when the input ends

Debian's packages slurm-wlm and munge are enough. All files lie in one temporary folder, ports are free ones of
127.0.0.1, and nothing of a Slurm that may be installed here is used or changed.
"""

import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
NODES = ("one", "two")
PATIENCE = 60.0  # seconds that anything may take to come up

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPort={controller}
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
MinJobAge=3600
KillWait=10
ReturnToService=2
{nodes}
PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no Slurm can be started here; empty if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if absent := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "a Slurm of one's own is started by root alone"


class Cluster:
    """A running Slurm.

    Attributes:
        folder: of its files.
        environment: variables with which Slurm's commands find it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={platform.node()} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=platform.node(), folder=folder, controller=ports[0], nodes=nodes)
        )

    def start(self) -> None:
        """Start it, and wait until both nodes take jobs."""
        own = {name: self.folder / f"munge.{name}" for name in ("socket", "key", "pid", "seed", "log")}
        options = [f"--{name}{'' if name == 'socket' else '-file'}={path}" for name, path in own.items()]
        self._start("munged", "--foreground", "--force", *options)
        self._until(own["socket"].exists, "munged")
        self._start("slurmctld", "-D", "-i")
        self._until(lambda: self.command("scontrol", "ping").returncode == 0, "slurmctld")
        for name in NODES:
            self.start_node(name)
        self._until(lambda: set(self.states().values()) == {"IDLE"}, "slurmd")

    def start_node(self, name: str) -> None:
        """Start a node."""
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._start("slurmd", "-D", "-N", name)

    def repair(self, name: str) -> None:
        """Start a node that has failed, and wait until it takes jobs."""
        self.start_node(name)
        self.command("scontrol", "update", f"nodename={name}", "state=resume")
        self._until(lambda: self.states()[name] in ("IDLE", "MIXED"), "slurmd")

    def states(self) -> dict[str, str]:
        """The state of each node."""
        lines = self.command("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.split("\n")
        return {own.split()[0]: own.split()[1].upper() for own in lines if own}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE)

    def fail(self, name: str) -> None:
        """Let a node die with all that runs on it, as if its power were cut; Slurm is told at once."""
        dying = [own for own in psutil.process_iter(["cmdline", "environ"]) if self._runs_on(own, name)]
        for process in dying:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in [own for own in self._processes if own.pid in {process.pid for process in dying}]:
            daemon.wait()
            self._processes.remove(daemon)
        self.command("scontrol", "update", f"nodename={name}", "state=down", "reason=power")

    def _runs_on(self, process: psutil.Process, node: str) -> bool:
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if variables.get("SLURM_CONF") != self.environment["SLURM_CONF"]:
            return False
        daemon = bool(words) and Path(words[0]).name.startswith("slurmd") and node in words
        return daemon or variables.get("SLURMD_NODENAME") == node

    def stop(self) -> None:
        """End it, and all that it has started."""
        for process in psutil.process_iter(["environ"]):
            own = (process.info["environ"] or {}).get("SLURM_CONF") == self.environment["SLURM_CONF"]
            if own and process.pid != os.getpid():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        for started in self._processes:
            started.kill()
            started.wait()

    def _start(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=self._path)
        assert program is not None
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            )

    def _until(self, there: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            if time.monotonic() > end or any(own.poll() is not None for own in self._processes):
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                raise RuntimeError(f"{what} does not come up:\n{logs}")
            time.sleep(0.05)


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, each another one."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for own in sockets:
            own.bind(("127.0.0.1", 0))
        return [own.getsockname()[1] for own in sockets]
    finally:
        for own in sockets:
            own.close()


@contextmanager
def running() -> Iterator[Cluster]:
    """Start a Slurm, and stop it whole."""
    folder = Path(tempfile.mkdtemp(prefix="icrbench-slurm-"))
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running() as own, suppress(KeyboardInterrupt):
        print(f"export SLURM_CONF={own.environment['SLURM_CONF']}", flush=True)
        sys.stdin.read()
