"""What the driver and its workers say to each other. Imports nothing heavy: not only workers read it."""

from typing import TypedDict


class Order(TypedDict):
    """A piece, as it is sent to a worker: see `icrbench.launch.board.Piece`."""

    number: int
    model: int
    unit: int
    cells: list[int]
    fit: bool


class Report(TypedDict, total=False):
    """What a worker says.

    ``ended`` is the number of a piece, with the ``counts`` of its cells (a `Tally`), or ``refused``, why its model
    cannot be had. ``line`` is for people. ``spoilt`` is said when all is done and the weights were found changed: no
    cell that this worker has computed is kept.
    """

    ended: int
    counts: dict[str, int]
    refused: str
    line: str
    spoilt: str
