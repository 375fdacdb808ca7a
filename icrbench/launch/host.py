"""What a Ray actor does: it holds a worker process on its node, and passes on what is said.

The work is done in a process of its own, as on one machine (`icrbench.launch.child`): the actor always answers, however
long a piece takes, the process gets its threads and GPUs before anything is imported, and it ends with the actor,
whatever ends that. Imports no torch.
"""

import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from icrbench.launch.local import LocalSeat
from icrbench.launch.messages import Order, Report
from icrbench.util.code import core

LISTENS = 1.0  # seconds after which a call is answered although there is nothing to say
PAUSE = 0.02  # seconds between two looks at the process


class Begun(TypedDict):
    """How a start went: where the worker is, and what is in its way, as a sentence; empty if nothing is."""

    where: str
    wrong: str


class Heard(TypedDict):
    """What a worker has said, and how it is: as the methods of `icrbench.launch.drive.Seat`."""

    reports: list[Report]
    alive: bool
    ending: str
    still: float


class Host:
    """Holds a worker process."""

    def begin(
        self,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path,
        folder: Path,
        mark: Path,
        code: str,
    ) -> Begun:
        """Start the process, if it would find here what the driver has.

        Args:
            arguments: of `Request.build`, as JSON can hold them.
            environment: variables of the process.
            log: file for its output.
            folder: that the driver works in, to which paths are relative.
            mark: a file in the results folder that the driver has written.
            code: `icrbench.util.code.core` of the driver.
        """
        node = platform.node()
        if not folder.is_dir():
            return {"where": node, "wrong": f"node {node} has no folder {folder}, in which the run was started"}
        if not mark.exists():
            return {"where": node, "wrong": f"node {node} does not see the results folder {mark.parent.parent}"}
        if core() != code:
            return {"where": node, "wrong": f"node {node} has another version of icrbench"}
        self._seat = LocalSeat(arguments, environment, log, folder)
        return {"where": f"{self._seat.where} on {node}", "wrong": ""}

    def send(self, order: Order) -> None:
        """Give the process a piece."""
        self._seat.send(order)

    def close(self) -> None:
        """Tell the process that there is nothing more to do."""
        self._seat.close()

    def hear(self) -> Heard:
        """Return what the process has said, as soon as it says something."""
        until = time.monotonic() + LISTENS
        while True:
            alive = self._seat.alive  # before the reports: what it said last is not lost
            reports = self._seat.reports()
            if reports or not alive or time.monotonic() > until:
                ending = "" if alive else self._seat.ending()
                return {"reports": reports, "alive": alive, "ending": ending, "still": self._seat.still()}
            time.sleep(PAUSE)

    def stop(self) -> None:
        """End the process, and wait for its end."""
        self._seat.stop()
