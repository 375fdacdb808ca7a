"""The driver: hands pieces to workers until all are done, whatever becomes of the workers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from icrbench.launch.board import Board, Piece
from icrbench.launch.messages import Order, Report
from icrbench.runner.recorder import Tally
from icrbench.util.errors import UserError

HANGS = 600.0  # seconds without any processor time after which a worker is given up
ROOM = 1800.0  # seconds that the first worker may wait for room, and any, when no other is left
CLOSING = 600.0  # seconds that the last look at all weights may take
IDLE = 0.05  # seconds between two rounds in which nothing happened


class Seat(Protocol):
    """A worker, from the driver's side.

    Attributes:
        where: for people.
    """

    where: str

    @property
    def ready(self) -> bool:
        """Whether the worker has begun, and can be given a piece.

        Raises:
            UserError: if it cannot begin where it is, and neither could others.
        """

    def send(self, order: Order) -> None:
        """Give the worker a piece."""

    def close(self) -> None:
        """Tell the worker that there is nothing more to do."""

    def reports(self) -> list[Report]:
        """Return what the worker has said since the last call, at once."""

    @property
    def alive(self) -> bool:
        """Whether the worker is there."""

    def ending(self) -> str:
        """How a worker that is gone has ended, as the rest of a sentence; empty if as it was told to."""

    def still(self) -> float:
        """Seconds for which the worker has done nothing."""

    def stop(self) -> None:
        """End the worker, if it is still there, and give back what it holds."""


class Engine(Protocol):
    """Starts workers somewhere."""

    def start(self, worker: int) -> Seat:
        """Start a worker, or another in its place."""


@dataclass
class Driver:
    """Drives workers over a board.

    Attributes:
        board: what there is to do.
        engine: starts workers.
        workers: how many at once.
        tell: takes lines for people.
        watch: called every round.
        hangs: seconds of stillness after which a worker is given up.
        room: seconds for which no worker may be there at all.
    """

    board: Board
    engine: Engine
    workers: int
    tell: Callable[[str], None]
    watch: Callable[[], None] = lambda: None
    hangs: float = HANGS
    room: float = ROOM
    seats: dict[int, Seat] = field(init=False, default_factory=dict)
    busy: dict[int, Piece] = field(init=False, default_factory=dict)
    spoilt: list[str] = field(init=False, default_factory=list)

    def run(self) -> None:
        """Do all there is to do; afterwards no worker is left, whatever happened.

        Raises:
            UserError: if workers end again and again without getting anything done, or find no room.
        """
        self._models: dict[int, int] = {}
        self._fruitless = 0  # workers lost since one has last ended a piece
        self._manned = time.monotonic()  # when a worker was there last
        try:
            while not self.board.finished:
                moved = self._round(time.monotonic())
                self.watch()
                if not moved:
                    time.sleep(IDLE)
            self._close()
        finally:
            for seat in self.seats.values():
                seat.stop()

    def _round(self, now: float) -> bool:
        moved = False
        for worker in list(self.seats):
            moved |= self._hear(worker, now)
        for worker in range(self.workers):
            if worker not in self.busy and self._give(worker, now):
                moved = True
        if self.busy:
            self._manned = now
        elif now - self._manned > self.room:
            raise UserError(f"no worker has found room for {self.room:.0f} s: see what else is at work there.")
        return moved

    def _hear(self, worker: int, now: float) -> bool:
        """Take what a worker reports, and notice when it is gone or hangs; returns whether it has said something."""
        seat = self.seats[worker]
        alive, said = self._listen(worker, seat, now)
        if not alive:
            self._lose(worker, seat.ending() or "ended by itself", now)
        elif worker in self.busy and seat.still() > self.hangs:
            self._lose(worker, f"has done nothing for {self.hangs:.0f} s", now)
        return said

    def _listen(self, worker: int, seat: Seat, now: float) -> tuple[bool, bool]:
        """Take what a worker reports; returns whether it is there, and whether it has said something."""
        alive = seat.alive  # before the reports: what it said last is not lost
        reports = seat.reports()
        for report in reports:
            self._take(worker, report, now)
        return alive, bool(reports)

    def _take(self, worker: int, report: Report, now: float) -> None:
        if "line" in report:
            self.tell(report["line"])
        if "spoilt" in report:
            self.spoilt.append(report["spoilt"])
        if "ended" in report:
            self._fruitless = 0
            self.busy.pop(worker, None)
            if "refused" in report:
                self.tell(report["refused"])
                self.board.refuse(report["ended"], report["refused"], now)
            else:
                self.board.end(report["ended"], Tally(**report["counts"]), now)

    def _lose(self, worker: int, ending: str, now: float) -> None:
        seat = self.seats.pop(worker)
        seat.stop()
        self._models.pop(worker, None)
        piece = self.busy.pop(worker, None)
        self._fruitless += 1
        if self._fruitless > self.workers * (self.board.retries + 1):
            raise UserError(f"no worker gets anything done: the last one ({seat.where}) {ending}; see its log.")
        if piece is None:
            return
        again = self.board.lose(piece.number, f"worker {worker} ({seat.where}) {ending}", now)
        self.tell(
            f"{piece.name}: worker {worker} ({seat.where}) {ending}; "
            + ("another takes its place." if again else "given up: --retries allows no more.")
        )

    def _give(self, worker: int, now: float) -> bool:
        if worker not in self.seats:
            if len(self.seats) - len(self.busy) >= self.board.ready:  # who is there, or about to be, suffices
                return False
            self.seats[worker] = self.engine.start(worker)
        if not self.seats[worker].ready:
            return False
        piece = self.board.take(self._models.get(worker), now)
        if piece is None:
            return False
        self._models[worker] = piece.model
        self.busy[worker] = piece
        self.seats[worker].send(
            {
                "number": piece.number,
                "model": piece.model,
                "unit": piece.unit,
                "cells": list(piece.cells),
                "fit": piece.fit,
            }
        )
        return True

    def _close(self) -> None:
        """Let every worker look at its model once more, and hear what it says."""
        open_seats = {worker: seat for worker, seat in self.seats.items() if seat.ready}
        for seat in open_seats.values():
            seat.close()
        until = time.monotonic() + CLOSING
        while open_seats and time.monotonic() < until:
            for worker, seat in list(open_seats.items()):
                alive, _ = self._listen(worker, seat, time.monotonic())
                if not alive:
                    if ending := seat.ending():
                        self.spoilt.append(f"worker {worker} ({seat.where}) {ending} before its last check.")
                    del open_seats[worker]
            time.sleep(IDLE)
        self.spoilt += [f"worker {worker} ({seat.where}) did not end." for worker, seat in open_seats.items()]
