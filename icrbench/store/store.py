"""The results folder: one record a cell, one row an example. Nothing derived is stored, with one exception.

``DIR/examples/<key>.parquet`` is written first and ``DIR/cells/<key>.json`` last, each whole or not at all,
so a cell whose json is there is complete. ``DIR/locks/`` holds one file for each cell being computed.

The exception is ``DIR/index/``, which a report over many cells writes to be fast the next time. It is used only as
far as it agrees with the files, and may be deleted at any time (``icrbench/store/index.py``).
"""

import fcntl
import json
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
import pyarrow.parquet as pq

from icrbench.store.index import Answers, Index, gather, read_answers, read_columns
from icrbench.store.records import EXAMPLE_SCHEMA, FIT, SCHEMA_VERSION, CellRecord, UnreadableRecord, identity_key
from icrbench.util.errors import UserError
from icrbench.util.files import atomic_path, write_atomic

FOLDERS = ("cells", "examples", "fitted", "locks", "index")
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
        """Fail now, not after hours of work, if results could not be saved.

        Raises:
            UserError: if the folder cannot be made or written.
        """
        for name in ("cells", "examples", "fitted", "locks"):
            probe = self.folder / name / f"probe-{platform.node()}-{os.getpid()}"
            write_atomic(probe, b"")
            probe.unlink()

    def write(self, record: CellRecord, examples: Sequence[Mapping[str, Any]] | pa.Table | None) -> None:
        """Save one cell: its examples first, its record last.

        Args:
            record: with ``status`` "ok" or "failed".
            examples: rows with the columns of ``EXAMPLE_SCHEMA``; None for a failed cell.

        Raises:
            ValueError: if status, result and examples disagree, or a number is not finite.
            TypeError: if the record holds something json cannot.
            UserError: if the folder cannot be written.
        """
        ok = record["status"] == "ok"
        if ok != (examples is not None) or ok != (record["result"] is not None):
            raise ValueError(f"cell {record['key']}: a result and examples belong to status ok, and only to it")
        # Before any file is touched: a value that json refuses must not leave half a cell behind.
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        target = self._examples_path(record["key"])
        if examples is None:
            write_atomic(self._cell_path(record["key"]), text)
            target.unlink(missing_ok=True)  # rows of an earlier, successful run of the same cell
            return
        rows = examples if isinstance(examples, pa.Table) else pa.Table.from_pylist(list(examples), EXAMPLE_SCHEMA)
        rows = rows.select(EXAMPLE_SCHEMA.names).cast(EXAMPLE_SCHEMA)
        if record["result"] is not None and rows.num_rows != record["result"]["n"]:
            raise ValueError(f"cell {record['key']}: {rows.num_rows} examples, but n is {record['result']['n']}")
        with atomic_path(target) as temporary:
            pq.write_table(rows, temporary)
        write_atomic(self._cell_path(record["key"]), text)

    def completed(self, key: str) -> CellRecord | None:
        """The cell's record if it succeeded and both its files can be read; damage is warned of, and is absence."""
        if not self._cell_path(key).exists():
            return None
        try:
            record = self._read(self._cell_path(key))
            if record["status"] != "ok":
                return None
            path = self._examples_path(key)
            try:
                found = pq.read_metadata(path).num_rows
            except (OSError, pa.ArrowException) as error:
                raise UnreadableRecord(f"{path} is missing or cut short") from error
            if record["result"] is None or found != record["result"]["n"]:
                raise UnreadableRecord(f"{path} has {found} rows, which is not what its record says")
        except UnreadableRecord as error:
            warnings.warn(f"{error}: the cell will be run again.", stacklevel=2)
            return None
        return record

    @property
    def empty(self) -> bool:
        """Whether there are no records, which ``records`` takes for an error."""
        return not any((self.folder / "cells").glob("*.json"))

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
        """All cells as one long table: a row a cell, the columns of ``cell`` and of ``result``."""
        return pd.DataFrame(
            [
                {
                    "key": record["key"],
                    "status": record["status"],
                    **record["cell"],
                    **(record["result"] or {}),
                }
                for record in self.records()
            ]
        )

    def examples(self, key: str) -> pd.DataFrame:
        """``rows`` as a frame."""
        frame: pd.DataFrame = self.rows(key).to_pandas()
        return frame

    def rows(self, key: str, columns: Sequence[str] = EXAMPLE_SCHEMA.names) -> pa.Table:
        """The rows of one cell, in the order of the test set; all columns of ``EXAMPLE_SCHEMA``, or some in its order.

        Raises:
            UserError: if the file is missing, cut or not ours.
        """
        path = self._examples_path(key)
        schema = pa.schema([EXAMPLE_SCHEMA.field(name) for name in columns])
        try:
            table = read_columns(path, list(columns))
            return table if table.schema.equals(schema) else table.cast(schema)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _unreadable_examples(path) from error

    def answers(self, record: CellRecord) -> Answers:
        """Which examples of a cell were answered right, as of the last call of ``records``.

        Raises:
            UserError: if the file is missing, cut or not ours, holds an example twice, or disagrees with the record.
        """
        key, result = record["key"], record["result"]
        answers = self._index.answers(key) if self._index else None
        if answers is None:
            path = self._examples_path(key)
            try:
                answers = read_answers(path)
            except (OSError, pa.ArrowException, ValueError) as error:
                raise _unreadable_examples(path) from error
        correct = int(np.count_nonzero(answers.correct))
        if result is None or (len(answers.ids), correct) != (result["n"], result["correct"]):
            raise UserError(f"cells/{key}.json and examples/{key}.parquet disagree: delete both and run again.")
        if answers.repeated:
            raise UserError(f"examples/{key}.parquet has an example twice: delete it and run again.")
        return answers

    def fit_folder(self, identity: Mapping[str, Any]) -> Path:
        """Where the fit is kept that a cell of this identity is scored with."""
        own = {part: identity[part] for part in FIT}
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
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UnreadableRecord(f"{path} is not readable as json") from error
        if not isinstance(record, dict) or not CellRecord.__required_keys__ <= record.keys():
            raise UnreadableRecord(f"{path} is not a record of icrbench")
        if record["schema"] != SCHEMA_VERSION:
            raise UnreadableRecord(f"{path} has schema {record['schema']}, this version reads {SCHEMA_VERSION}")
        if record["key"] != path.stem:
            raise UnreadableRecord(f"{path} holds the record of another cell ({record['key']})")
        return cast(CellRecord, record)


def _unreadable_examples(path: Path) -> UserError:
    return UserError(f"{path} is missing, cut short or not ours: delete cells/{path.stem}.json and run again.")
