"""Workers as processes of this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil

from icrbench.launch.messages import Order, Report


class LocalEngine:
    """Starts a process a worker.

    Args:
        arguments: of `Request.build`, as JSON can hold them.
        environments: variables for each worker: threads, and the GPUs that it sees.
        logs: folder of the workers' logs.
    """

    def __init__(self, arguments: Mapping[str, Any], environments: Sequence[Mapping[str, str]], logs: Path) -> None:
        self._arguments = arguments
        self._environments = environments
        self._logs = logs

    def start(self, worker: int) -> "LocalSeat":
        """Start a worker, or another in its place."""
        return LocalSeat(self._arguments, self._environments[worker], self._logs / f"worker-{worker}.log")


class LocalSeat:
    """A worker process, from the driver's side.

    Args:
        arguments: of `Request.build`, as JSON can hold them.
        environment: variables, beside those of this process.
        log: file to which the worker's output is appended.
        folder: that the process works in; None for the current one.
    """

    def __init__(
        self, arguments: Mapping[str, Any], environment: Mapping[str, str], log: Path, folder: Path | None = None
    ) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "icrbench.launch.child", str(writing)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[writing],
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,  # Ctrl-C is the driver's
            )
        os.close(writing)
        self._reading = reading
        self._buffer = b""
        self._seen = psutil.Process(self._process.pid)
        self._work = 0.0
        self._moved = time.monotonic()
        self.where = f"process {self._process.pid}"
        self._send(arguments)

    @property
    def ready(self) -> bool:
        """Whether it takes orders: from the start, since its input keeps them."""
        return True

    def send(self, order: Order) -> None:
        """Give the worker a piece."""
        self._send(cast(Mapping[str, Any], order))

    def close(self) -> None:
        """Tell the worker that there is nothing more to do."""
        self._send({"close": True})

    def reports(self) -> list[Report]:
        """Return what the worker has said since the last call."""
        while True:
            try:
                part = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            self._buffer += part
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ending(self) -> str:
        """How a process that is gone has ended; empty if as it was told to."""
        code = self._process.wait()
        if code == 0:
            return ""
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def still(self) -> float:
        """Seconds for which the process has used no processor time: it hangs, or was stopped."""
        try:
            times = self._seen.cpu_times()
        except psutil.Error:
            return 0.0
        now = time.monotonic()
        if times.user + times.system != self._work:
            self._work, self._moved = times.user + times.system, now
        return now - self._moved

    def stop(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self._reading)

    def _send(self, line: Mapping[str, Any]) -> None:
        if self._process.stdin is None:
            raise RuntimeError("a worker without an input")
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone, which `alive` will tell
