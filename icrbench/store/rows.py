"""The example rows of a cell: one small Parquet file, whose hash is in the cell's record."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icrbench.store.records import EXAMPLE_SCHEMA, WRITTEN_SCHEMA

_ANSWERS = ("gold", "prediction", "correct")


class Ids(tuple[str, ...]):
    """The ids of a cell's examples, in the order of the test set; hashed and checked once, not for every cell."""

    @cached_property
    def place(self) -> dict[str, int]:
        """Where each id stands."""
        return {name: place for place, name in enumerate(self)}


@dataclass(frozen=True)
class Answers:
    """The examples of one cell, and which were answered right."""

    ids: Ids
    """The same object for all cells of an index with the same examples."""
    correct: npt.NDArray[np.bool_]

    @property
    def repeated(self) -> bool:
        """Some example is there twice."""
        return len(self.ids.place) < len(self.ids)


def rows_file(rows: Sequence[Mapping[str, Any]] | pa.Table) -> bytes:
    """Return the content of ``examples/<key>.parquet``, with a checksum of every page.

    Args:
        rows: with the columns of `EXAMPLE_SCHEMA`, or of `WRITTEN_SCHEMA`, in the order of the test set.

    Raises:
        ValueError: as `check_answers`.
    """
    named = rows.column_names if isinstance(rows, pa.Table) else list(rows[0]) if rows else []
    schema = WRITTEN_SCHEMA if "f1" in named else EXAMPLE_SCHEMA
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)
    table = table.select(schema.names).cast(schema)
    check_answers(table)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_rows(content: bytes, sha256: str | None, columns: Sequence[str] | None = None) -> pa.Table:
    """Columns of a file of rows, all of whose bytes are checked.

    Args:
        content: of the file.
        sha256: of the content, as the record has it; None for records of schema 1, which have none.
        columns: some of `EXAMPLE_SCHEMA`, or of `WRITTEN_SCHEMA` where answers are written, in its order; None for all.

    Raises:
        pyarrow.ArrowException, OSError, ValueError: if it was changed, is cut or not ours, or as `check_answers`.
    """
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("it was changed after it was written")
    # One read and no threads: opening a file costs more than what is in it.
    with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
        if columns is None:
            columns = (WRITTEN_SCHEMA if "f1" in file.schema_arrow.names else EXAMPLE_SCHEMA).names
        # What has its hash was checked when it was written.
        wanted = list(columns) if sha256 is not None else list(dict.fromkeys([*columns, *_ANSWERS]))
        table = file.read(wanted, use_threads=False)
    if table.num_columns != len(wanted):
        raise ValueError("it lacks columns")
    if sha256 is None:
        check_answers(table)
    schema = pa.schema([WRITTEN_SCHEMA.field(name) for name in columns])
    table = table.select(list(columns))
    return table if table.schema.equals(schema) else table.cast(schema)


def check_answers(table: pa.Table) -> None:
    """Refuse rows without an answer, or marked otherwise than as prediction and gold say.

    Raises:
        ValueError: what is wrong.
    """
    if any(table[name].null_count for name in _ANSWERS):
        raise ValueError("it lacks answers")
    if not pc.equal(table["correct"], pc.equal(table["prediction"], table["gold"])).to_numpy().all():
        raise ValueError("it marks answers otherwise than as prediction and gold say")


def read_answers(content: bytes, sha256: str | None) -> Answers:
    """Which examples of a file of rows were answered right; arguments and errors as of `read_rows`."""
    table = read_rows(content, sha256, ["example_id", "correct"])
    if table["example_id"].null_count:
        raise ValueError("it lacks ids")
    return Answers(Ids(table["example_id"].to_pylist()), table["correct"].to_numpy())
