"""The fits of a results folder: made once, by one process, and read by all others."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from icrbench.backbone import Backbone
from icrbench.backbone.metering import Cost
from icrbench.method import Fitted, Method, Scope
from icrbench.store.artefact import Artefact, DamagedArtefact
from icrbench.store.store import Store
from icrbench.util.files import remove
from icrbench.util.progress import note, say

POLL_SECONDS = 1.0  # between two looks at a lock


class Fits:
    """Gives the fit of a cell: from this process, from the results folder, or made now."""

    def __init__(self, store: Store, backbone: Backbone) -> None:
        self._store = store
        self._backbone = backbone
        self._latest: dict[Path, Artefact] = {}
        self._failed: dict[Path, tuple[Exception, TracebackType | None]] = {}
        self._made_here: list[Path] = []

    def discard(self) -> None:
        """Remove the fits that this process has made: the model they were made on was not what it seemed."""
        for folder in self._made_here:
            remove(folder)

    def use(self, backbone: Backbone) -> None:
        """Go on with a model that was loaded anew; the fits in memory are forgotten, since what held them is."""
        self._backbone = backbone
        self._latest = {}

    def get(self, method: Method, folder: Path, make: Callable[[], tuple[Fitted, Cost]], what: str) -> Artefact:
        """Return a fit; one that is damaged is made again, and a sentence says so.

        Args:
            method: the method.
            folder: where the fit belongs (`Store.fit_folder`).
            make: makes it, and says what it cost.
            what: the cell that needs it, for messages.

        Raises:
            Exception: whatever ``make`` raised, for every cell that needs the fit; it is tried once a run.
        """
        if folder in self._failed:
            error, where = self._failed[folder]
            raise error.with_traceback(where)
        if folder not in self._latest:
            try:
                self._latest = {folder: self._stored(method, folder, make, what)}  # cells of one fit follow each other
            except Exception as error:
                self._failed[folder] = (error, error.__traceback__)
                raise
        return self._latest[folder]

    def _stored(self, method: Method, folder: Path, make: Callable[[], tuple[Fitted, Cost]], what: str) -> Artefact:
        """Read the fit from the results folder, or make it and put it there; one process makes it, others wait."""
        if method.scope is Scope.NONE:
            fitted, cost = make()
            return Artefact(method, fitted, self._backbone.identity(), cost)
        waiting = False
        while True:
            with self._store.lock(f"fit-{folder.name}") as free:
                if free:
                    return self._read(method, folder) or self._made(method, folder, make)
            if not waiting:
                say(f"{what}: waiting for another process that makes the same fit")
                waiting = True
            time.sleep(POLL_SECONDS)

    def _made(self, method: Method, folder: Path, make: Callable[[], tuple[Fitted, Cost]]) -> Artefact:
        fitted, cost = make()
        Artefact(method, fitted, self._backbone.identity(), cost).save(folder)
        self._made_here.append(folder)
        # Cells are scored with what is stored: where locks do nothing, that may be another process's.
        return Artefact.load(folder, self._backbone)

    def _read(self, method: Method, folder: Path) -> Artefact | None:
        if not folder.exists():
            return None
        try:
            artefact = Artefact.load(folder, self._backbone)
            if artefact.method != method:
                raise DamagedArtefact(f"{folder} holds another fit")
        except DamagedArtefact as damage:
            note(f"{damage.problem}: it is fitted again.")
            remove(folder)
            return None
        return artefact
