"""What reports need of a results folder, gathered in one file, so that 100,000 cells are read in seconds.

``DIR/index/cells`` (Parquet, then its hash) holds every record, and of its examples the ids and whether each was
right. It is derived and never the truth: deleting it loses nothing. Each row carries the stamps (see ``Stamp``) of the
two files it was read from, and is used only while both files still have them; every other cell is read from its files,
so what was changed, damaged, added or deleted counts at once. A file that changed less than two seconds before it was
read is not kept, because a further change might leave its stamp as it is (as git does with its index).

Records repeat each other: every value is stored once and rows point to it, on disk and in memory.
"""

import hashlib
import json
import marshal
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from icrbench.store.rows import Answers, Ids, read_answers
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic
from icrbench.util.progress import bar

FORMAT = b"3"
_SEAL = hashlib.sha256().digest_size
WORTH = 1_000
"""Cells from which on an index is written; fewer are read from their files in a second."""
SETTLED = 2 * 10**9
"""Nanoseconds after which a file's stamp is taken to change with its content."""
_CHUNK = 2_000
_EXPANDED = ("cell", "identity", "result")  # parts whose values are shared by cells, while they as a whole are not
_OWN = ("key", "stamps", "ids", "correct")

Stamp = tuple[int, int, int, int]
"""Modification time, change time (both in ns), size and inode: any write changes one of them."""
_NONE: Stamp = (-1, -1, -1, -1)
_TIMES = (0, 1, 4, 5)  # among the stamps of a cell's two files
Stamps = npt.NDArray[np.int64]
"""Of a record and its examples, one after the other: [cells, 8]."""


class Index:
    """Records and answers of a results folder, as they were when it was gathered."""

    def __init__(self, table: pa.Table) -> None:
        self._keys: list[str] = table["key"].to_pylist()
        self._rows = {key: row for row, key in enumerate(self._keys)}
        parts = table.drop_columns(list(_OWN))
        self._columns = {name: _decoded(parts[name]) for name in parts.column_names}
        self._ids = [Ids(ids) for ids in _values(table["ids"])]
        self._id_codes = _codes(table["ids"])
        self._correct: list[bytes | None] = table["correct"].to_pylist()

    def records(self) -> list[dict[str, Any]]:
        """Every record, by key. They share what they have in common: change none."""
        sections: dict[str, dict[str, list[Any]]] = {}
        whole: dict[str, list[Any]] = {"key": self._keys}
        for name, column in self._columns.items():
            section, dot, inner = name.partition(".")
            if dot:
                sections.setdefault(section, {})[inner] = column
            else:
                whole[section] = column
        records: list[dict[str, Any]] = list(_rows(whole))
        for section, columns in sections.items():
            for record, part in zip(records, _rows(columns), strict=True):
                if part:  # else it was no mapping, and stands among the whole values
                    record[section] = part
        return records

    def answers(self, key: str) -> Answers | None:
        """Return the answers of a cell, or None if its examples could not be read."""
        row = self._rows.get(key)
        packed = None if row is None else self._correct[row]
        if packed is None:
            return None
        ids = self._ids[self._id_codes[row]]
        return Answers(ids, np.unpackbits(np.frombuffer(packed, np.uint8), count=len(ids)).view(np.bool_))


def gather(folder: Path, read: Callable[[Path], Mapping[str, Any]]) -> Index:
    """Gather the index of a results folder: unchanged cells from the stored index, others read; stored if worth it.

    Args:
        folder: holding ``cells/`` and ``examples/``; where nothing can be written, nothing is.
        read: gives the record of a json file, or raises for one that is damaged.
    """
    now = time.time_ns()
    cells, examples = _stamps(folder / "cells", ".json"), _stamps(folder / "examples", ".parquet")
    keys = sorted(cells)
    stamps = np.array([cells[key] + examples.get(key, _NONE) for key in keys], np.int64).reshape(-1, 8)
    path = folder / "index" / "cells"
    known = _read_index(path)
    rows = _unchanged(known, keys, stamps)
    missing = np.flatnonzero(rows < 0)
    kept = len(keys) - len(missing)
    tables = [] if known is None else [known if kept == known.num_rows else known.take(rows[rows >= 0])]
    with bar("reading results", len(missing)) as progress:
        for start in range(0, len(missing), _CHUNK):
            part = missing[start : start + _CHUNK]
            tables.append(_gathered(folder, [keys[place] for place in part], stamps[part], read))
            progress.update(len(part))
    table = tables[0] if tables else _gathered(folder, [], stamps, read)
    if len(tables) > 1:
        table = pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()
        table = table.sort_by("key")
    settled = stamps[:, _TIMES].max(axis=1) < now - SETTLED
    changed = known is None or known.num_rows != kept or settled[missing].any()
    if changed and len(keys) >= WORTH:
        _write_index(path, table.filter(pa.array(settled)))
    return Index(table)


def _stamps(folder: Path, suffix: str) -> dict[str, Stamp]:
    """Stamp every file with the suffix, by its name without it; hidden files (``._x.json``) are not ours."""
    found: dict[str, Stamp] = {}
    if not folder.is_dir():
        return found
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix) and not entry.name.startswith("."):
                try:
                    about = entry.stat()
                except FileNotFoundError:  # removed since the folder was listed
                    continue
                stamp = (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino)
                found[entry.name.removesuffix(suffix)] = stamp
    return found


def _unchanged(known: pa.Table | None, keys: Sequence[str], stamps: Stamps) -> npt.NDArray[np.int64]:
    """For each cell the row of the stored index that still stands for its files, or -1."""
    rows = np.full(len(keys), -1)
    if known is not None:
        place = {key: place for place, key in enumerate(keys)}
        places = np.array([place.get(key, -1) for key in known["key"].to_pylist()], np.int64)
        stored = known["stamps"].combine_chunks().flatten().to_numpy().reshape(-1, 8)
        same = np.flatnonzero(places >= 0)
        same = same[(stored[same] == stamps[places[same]]).all(axis=1)]
        rows[places[same]] = same
    return rows


class _Column:
    """Values of one column while it grows: each distinct value once, and which one every row has."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.codes: list[int | None] = []
        self._known: dict[object, int] = {}

    def put(self, row: int, value: object, key: object) -> None:
        if len(self.codes) < row:
            self.codes.extend([None] * (row - len(self.codes)))
        code = self._known.get(key)
        if code is None:
            code = self._known[key] = len(self.texts)
            self.texts.append(json.dumps(value, ensure_ascii=False))
        self.codes.append(code)

    def array(self, rows: int) -> pa.DictionaryArray:
        codes = pa.array(self.codes + [None] * (rows - len(self.codes)), pa.int32())
        return pa.DictionaryArray.from_arrays(codes, pa.array(self.texts, pa.string()))


def _gathered(folder: Path, keys: Sequence[str], stamps: Stamps, read: Callable[[Path], Mapping[str, Any]]) -> pa.Table:
    """Read some cells from their files."""
    cells, examples = folder / "cells", folder / "examples"
    columns: defaultdict[str, _Column] = defaultdict(_Column)
    ids = _Column()
    corrects: list[bytes | None] = []
    for row, key in enumerate(keys):
        record = read(cells / f"{key}.json")
        for name, value in _flat(record):
            # marshal tells values apart as json does (1, 1.0 and true differ) in a tenth of the time.
            columns[name].put(row, value, marshal.dumps(value, 2))
        packed = None
        if record["status"] == "ok":
            try:
                answers = read_answers((examples / f"{key}.parquet").read_bytes(), record.get("examples_sha256"))
                ids.put(row, answers.ids, answers.ids)
                packed = np.packbits(answers.correct).tobytes()
            except (OSError, pa.ArrowException, ValueError, TypeError):
                pass  # whoever needs them reads the file, and hears what is wrong with it
        corrects.append(packed)
    count = len(keys)
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "stamps": pa.FixedSizeListArray.from_arrays(stamps.ravel(), 8),
            "ids": ids.array(count),
            "correct": pa.array(corrects, pa.binary()),
            **{name: column.array(count) for name, column in columns.items()},
        }
    )


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, value in record.items():
        if section in _EXPANDED and isinstance(value, dict) and value:
            for name, inner in value.items():
                yield f"{section}.{name}", inner
        elif section != "key":
            yield section, value


def _read_index(path: Path) -> pa.Table | None:
    """Return the stored index; None if there is none, or it is damaged, or another version's."""
    try:
        content = path.read_bytes()
        content, seal = content[:-_SEAL], content[-_SEAL:]
        if hashlib.sha256(content).digest() != seal:
            return None
        table = pq.ParquetFile(pa.BufferReader(content)).read()
    except (OSError, pa.ArrowException):
        return None
    ours = (table.schema.metadata or {}).get(b"icrbench-index") == FORMAT
    return table.unify_dictionaries().combine_chunks() if ours and set(_OWN) <= set(table.column_names) else None


def _write_index(path: Path, table: pa.Table) -> None:
    table = table.replace_schema_metadata({b"icrbench-index": FORMAT})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=max(table.num_rows, 1),
        compression="zstd",
        dictionary_pagesize_limit=2**30,  # one dictionary a column, whatever its size
    )
    content = sink.getvalue().to_pybytes()
    with suppress(UserError):  # a folder that may only be read: its reports take longer, and that is all
        write_atomic(path, content + hashlib.sha256(content).digest())


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the distinct values of a dictionary column, parsed by one call."""
    array = column.combine_chunks()
    found: list[Any] = json.loads(f"[{','.join(array.dictionary.to_pylist())}]")
    return found


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Which of the values each row has; -1 for none."""
    codes: npt.NDArray[np.int64] = column.combine_chunks().indices.fill_null(-1).to_numpy()
    return codes


_ABSENT = object()


def _decoded(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, equal ones the same object; ``_ABSENT`` where a record has none."""
    values = [*_values(column), _ABSENT]  # the last of them is at -1
    return [values[code] for code in _codes(column).tolist()]


def _rows(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Columns to mappings, one a row, without what is absent."""
    names = list(columns)
    if all(_ABSENT not in column for column in columns.values()):
        return (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return (
        {name: value for name, value in zip(names, row, strict=True) if value is not _ABSENT}
        for row in zip(*columns.values(), strict=True)
    )
