"""The results folder: one record a cell, one row an example. Nothing derived is stored, with one exception.

``DIR/examples/<key>.parquet`` is written first and ``DIR/cells/<key>.json`` last, each whole or not at all,
so a cell whose json is there is complete. ``DIR/priors/<key>.json`` may follow (``icrbench/store/priors.py``).
``DIR/locks/`` holds one file for each cell being computed.

The exception is ``DIR/index/``, which a report over many cells writes to be fast the next time. It is used only as
far as it agrees with the files, and may be deleted at any time (``icrbench/store/index.py``).
"""

import fcntl
import hashlib
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from icrbench.store.index import Index, gather
from icrbench.store.records import (
    FIT,
    CellName,
    CellRecord,
    UnreadableRecord,
    by_protocol,
    identity_key,
    read_record,
    record_text,
)
from icrbench.store.rows import Answers, read_answers, read_rows, rows_file
from icrbench.util.errors import UserError
from icrbench.util.files import cannot_read, remove_abandoned, write_atomic

FOLDERS = ("cells", "examples", "priors", "fitted", "locks", "index")
"""What a store keeps below its folder."""


class Store:
    """Reads and writes the records below one folder.

    Args:
        folder: made by the first write; reading needs no permission to write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: Index | None = None

    def check_writable(self) -> None:
        """Fail now, not after hours of work, if results could not be saved; clear up after killed runs.

        Raises:
            UserError: if the folder cannot be made or written.
        """
        for name in ("cells", "examples", "fitted", "locks"):
            probe = self.folder / name / f"probe-{platform.node()}-{os.getpid()}"
            write_atomic(probe, b"")
            probe.unlink()
        for name in FOLDERS:
            remove_abandoned(self.folder / name)

    def write(self, record: CellRecord, examples: Sequence[Mapping[str, Any]] | pa.Table | None) -> None:
        """Save one cell: its examples first, its record last.

        Args:
            record: with ``status`` "ok" or "failed".
            examples: rows with the columns of ``EXAMPLE_SCHEMA``, or of ``WRITTEN_SCHEMA`` where the result has an F1;
                None for a failed cell.

        Raises:
            ValueError: if status, result and examples disagree, or a number is not finite.
            TypeError: if the record holds something json cannot.
            UserError: if the folder cannot be written.
        """
        ok, key = record["status"] == "ok", record["key"]
        if ok != (examples is not None) or ok != (record["result"] is not None):
            raise ValueError(f"cell {key}: a result and examples belong to status ok, and only to it")
        rows = None if examples is None else rows_file(examples)
        digest = None if rows is None else hashlib.sha256(rows).hexdigest()
        # Before any file is touched: a value that json refuses must not leave half a cell behind.
        text = record_text({**record, "examples_sha256": digest})
        target = self._examples_path(key)
        if rows is None:
            write_atomic(self._cell_path(key), text)
            target.unlink(missing_ok=True)  # rows of an earlier, successful run of the same cell
            return
        _check_agreement(record, read_answers(rows, digest))
        write_atomic(target, rows)
        write_atomic(self._cell_path(key), text)

    def completed(self, key: str) -> CellRecord | None:
        """Return the cell's record if it succeeded and both its files are whole; damage is warned of, and is absence.

        Raises:
            UserError: if a file may not be read.
        """
        if not self._cell_path(key).exists():
            return None
        try:
            record = self._read(self._cell_path(key))
            if record["status"] != "ok":
                return None
            path = self._examples_path(key)
            try:
                answers = read_answers(path.read_bytes(), record.get("examples_sha256"))
                _check_agreement(record, answers)
            except PermissionError as error:
                raise cannot_read(path, error) from error
            except (OSError, pa.ArrowException, ValueError) as error:
                raise UnreadableRecord(f"{path} is missing or damaged") from error
        except UnreadableRecord as error:
            warnings.warn(f"{error}: the cell will be run again.", stacklevel=2)
            return None
        return record

    def protocols(self, key: str) -> frozenset[str]:
        """Return the protocols under which a cell was asked for; none where there is no record that can be read."""
        try:
            cell = self._read(self._cell_path(key))["cell"]
        except UnreadableRecord:
            return frozenset()
        return frozenset(cell.get("protocols", [cell["protocol"]]))

    def add_protocol(self, record: CellRecord, protocol: str) -> None:
        """Note that a result was asked for under a protocol too.

        Args:
            record: of a cell that is claimed.
            protocol: it gives the method the same data, or the cell would have another key.

        Raises:
            UserError: if the folder cannot be written.
        """
        known = self.protocols(record["key"])
        if protocol not in known:
            cell: CellName = {**record["cell"], "protocols": sorted({*known, protocol})}
            write_atomic(self._cell_path(record["key"]), record_text({**record, "cell": cell}))

    def holds(self, key: str) -> bool:
        """Whether there is a record of a cell, whatever it says."""
        return self._cell_path(key).exists()

    @property
    def empty(self) -> bool:
        """Whether there are no records, which ``records`` takes for an error."""
        return not any(not path.name.startswith(".") for path in (self.folder / "cells").glob("*.json"))

    def records(self) -> list[CellRecord]:
        """Every record, in the order of the keys, as the files are now. They share parts: change none of them.

        Raises:
            UserError: if the folder holds no records, or one file that is cut or not ours (it is named).
        """
        try:
            self._index = gather(self.folder, self._read)
        except UnreadableRecord as error:
            raise UserError(f"{error}: delete it and run again to replace it.") from error
        records = cast(list[CellRecord], self._index.records())
        if not records:
            raise UserError(f"no results in {self.folder}: give the folder a run wrote to (it holds cells/).")
        return records

    def frame(self) -> pd.DataFrame:
        """All cells as one long table: a row a cell and protocol, the columns of ``cell`` and of ``result``."""
        return pd.DataFrame(
            [
                {
                    "key": record["key"],
                    "status": record["status"],
                    **record["cell"],
                    **cast(dict[str, Any], record["result"] or {}),
                }
                for record in by_protocol(self.records())
            ]
        ).drop(columns="protocols", errors="ignore")

    def examples(self, key: str) -> pd.DataFrame:
        """``rows`` as a frame."""
        frame: pd.DataFrame = self.rows(key).to_pandas()
        return frame

    def rows(self, key: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one cell, in the order of the test set.

        Args:
            key: of the cell.
            columns: some of ``EXAMPLE_SCHEMA``, or of ``WRITTEN_SCHEMA`` where answers are written, in its order; None
                for all.

        Raises:
            UserError: if the file is missing, cut or not ours.
        """
        path = self._examples_path(key)
        try:
            record = self._read(self._cell_path(key))
            return read_rows(path.read_bytes(), record.get("examples_sha256"), columns)
        except UnreadableRecord as error:
            raise UserError(f"{error}: delete it and run again to replace it.") from error
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _unreadable_examples(path, error) from error

    def answers(self, record: CellRecord) -> Answers:
        """Which examples of a cell were answered right, as of the last call of ``records``.

        Raises:
            UserError: if the file is missing, cut or not ours, holds an example twice, or disagrees with the record.
        """
        key = record["key"]
        answers = self._index.answers(key) if self._index else None
        if answers is None:
            path = self._examples_path(key)
            try:
                answers = read_answers(path.read_bytes(), record.get("examples_sha256"))
            except (OSError, pa.ArrowException, ValueError) as error:
                raise _unreadable_examples(path, error) from error
        try:
            _check_agreement(record, answers)
        except ValueError as error:
            raise UserError(
                f"cells/{key}.json and examples/{key}.parquet disagree: delete both and run again."
            ) from error
        if answers.repeated:
            raise UserError(f"examples/{key}.parquet has an example twice: delete it and run again.")
        return answers

    def fit_folder(self, identity: Mapping[str, Any]) -> Path:
        """Where the fit is kept that a cell of this identity is scored with."""
        own = {part: identity[part] for part in FIT if part in identity}
        return self.folder / "fitted" / f"{identity['method']['name']}-{identity_key(own)}"

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Claim a cell while it is computed; yields False if another live process has it.

        The kernel drops the claim when its process dies, however it dies, so there are no stale locks. Where
        the file system knows no locks the cell is computed without one: two processes then waste work, and
        spoil nothing.

        Raises:
            UserError: if the folder cannot be written.
        """
        path = self.folder / "locks" / f"{key}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._open_current(path)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror}): choose a folder you may write to.") from error
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    @staticmethod
    def _open_current(path: Path) -> int:
        """Open and lock ``path``; again if its last owner removed it between the two steps."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise
            except OSError as error:
                warnings.warn(f"no file locks in {path.parent} ({error.strerror}).", stacklevel=4)
            try:
                current = path.stat().st_ino == os.fstat(descriptor).st_ino
            except FileNotFoundError:
                current = False
            if current:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{platform.node()} {os.getpid()}\n".encode())  # for a person who looks
                return descriptor
            os.close(descriptor)

    def _cell_path(self, key: str) -> Path:
        return self.folder / "cells" / f"{key}.json"

    def _examples_path(self, key: str) -> Path:
        return self.folder / "examples" / f"{key}.parquet"

    @staticmethod
    def _read(path: Path) -> CellRecord:
        return read_record(path)


def _check_agreement(record: CellRecord, answers: Answers) -> None:
    """Refuse a record whose numbers are not those of its rows."""
    result, correct = record["result"], int(np.count_nonzero(answers.correct))
    if result is None or (len(answers.ids), correct) != (result["n"], result["correct"]):
        wanted = "no result" if result is None else f"n is {result['n']}, {result['correct']} right"
        raise ValueError(f"cell {record['key']}: {len(answers.ids)} examples, {correct} right, but {wanted}")


def _unreadable_examples(path: Path, error: Exception) -> UserError:
    if isinstance(error, PermissionError):
        return cannot_read(path, error)
    return UserError(f"{path} is missing, damaged or not ours: delete cells/{path.stem}.json and run again.")
