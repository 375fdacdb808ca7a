"""What there is to do, who does it, and what became of it. Knows no process and no clock but what it is told."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from icrbench.runner.recorder import Tally

State = Literal["waiting", "running", "done", "lost"]


@dataclass(frozen=True)
class Piece:
    """A piece of work: one fit, or cells that are scored with one.

    Attributes:
        number: its place among all pieces.
        model: place of the model among those asked for.
        unit: place of the unit in the plan of the model.
        cells: places of its cells in the unit; of a fit, the cell that it is made for.
        fit: whether only the fit is to be made, which other pieces wait for.
        after: number of the piece that must have ended before; None if there is none.
        tokens: estimated tokens through the model, for the order.
        name: for people.
    """

    number: int
    model: int
    unit: int
    cells: tuple[int, ...]
    fit: bool
    after: int | None
    tokens: float
    name: str


@dataclass
class Entry:
    """What is known of a piece.

    Attributes:
        piece: the piece.
        state: ``lost`` when its workers died or hung once too often, or its model could not be loaded.
        since: when it was taken or ended, in seconds of the driver's clock.
        tries: how often it was taken.
        why: of a lost piece, what is said.
    """

    piece: Piece
    state: State = "waiting"
    since: float = 0.0
    tries: int = 0
    why: str = ""


@dataclass
class Board:
    """Hands pieces out, fits and long ones first, and keeps account of them.

    A worker that has a model loaded gets pieces of that model as long as there are some; else of the model that has
    most left to do.

    Args:
        pieces: numbered from 0 in their order.
        retries: how often a piece is given to another worker after one was lost over it.
    """

    pieces: Sequence[Piece]
    retries: int
    entries: list[Entry] = field(init=False)
    tally: Tally = field(init=False, default_factory=Tally)

    def __post_init__(self) -> None:
        """Queue what waits for nothing."""
        self.entries = [Entry(piece) for piece in self.pieces]
        self._queues: dict[int, list[tuple[bool, float, int]]] = {}
        self._tokens: dict[int, float] = {}
        self._blocked: dict[int, list[int]] = {}
        self._open = len(self.pieces)
        for piece in self.pieces:
            self._tokens[piece.model] = self._tokens.get(piece.model, 0.0) + piece.tokens
            if piece.after is None:
                self._push(piece)
            else:
                self._blocked.setdefault(piece.after, []).append(piece.number)

    @property
    def finished(self) -> bool:
        """Whether nothing waits or runs any more."""
        return self._open == 0

    @property
    def ready(self) -> int:
        """How many pieces could be begun now."""
        return sum(map(len, self._queues.values()))

    @property
    def lost(self) -> list[Entry]:
        """The pieces that could not be had."""
        return [entry for entry in self.entries if entry.state == "lost"]

    def take(self, model: int | None, now: float) -> Piece | None:
        """Give a worker its next piece; None if nothing can be begun just now.

        Args:
            model: the model that the worker has loaded; None if it has none.
            now: the driver's clock.
        """
        waiting = [own for own, queue in self._queues.items() if queue]
        if not waiting:
            return None
        chosen = model if model in waiting else max(waiting, key=lambda own: self._tokens[own])
        *_, number = heapq.heappop(self._queues[chosen])
        entry = self.entries[number]
        self._tokens[chosen] -= entry.piece.tokens
        entry.state, entry.since = "running", now
        entry.tries += 1
        return entry.piece

    def end(self, number: int, tally: Tally, now: float) -> None:
        """Note that a piece is done, with what has become of its cells, and free what waited for it."""
        self.tally += tally
        self._close(self.entries[number], "done", now)

    def lose(self, number: int, why: str, now: float) -> bool:
        """Note that the worker of a piece was lost; returns whether the piece will be tried again."""
        entry = self.entries[number]
        entry.why = why
        if entry.tries > self.retries:
            self._close(entry, "lost", now)
            return False
        entry.state, entry.since = "waiting", now
        self._tokens[entry.piece.model] += entry.piece.tokens
        self._push(entry.piece)
        return True

    def refuse(self, number: int, why: str, now: float) -> None:
        """Give up a piece whose model cannot be loaded, and all that wait for this model."""
        model = self.entries[number].piece.model
        for entry in self.entries:
            if entry.piece.model == model and (entry.state == "waiting" or entry.piece.number == number):
                entry.why = why
                self._close(entry, "lost", now)
        self._queues[model] = []

    def share_done(self) -> float:
        """Share of all tokens whose piece is done."""
        total = sum(piece.tokens for piece in self.pieces)
        done = sum(entry.piece.tokens for entry in self.entries if entry.state in ("done", "lost"))
        return done / total if total else 1.0

    def _push(self, piece: Piece) -> None:
        heapq.heappush(self._queues.setdefault(piece.model, []), (not piece.fit, -piece.tokens, piece.number))

    def _close(self, entry: Entry, state: State, now: float) -> None:
        entry.state, entry.since = state, now
        self._open -= 1
        for number in self._blocked.pop(entry.piece.number, ()):
            blocked = self.entries[number]
            if blocked.state == "waiting":
                # What a fit that is lost would have served is tried without it: each cell's record then says why.
                self._push(blocked.piece)
