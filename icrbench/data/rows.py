"""Rows of a data file, and the `Example` each becomes."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq

from icrbench.data.task import CHOICES_FIELD, LETTERS_FIELD, Example, Task
from icrbench.util.errors import UserError, said, shortened, shown

LARGEST_FILE = 4 << 30  # bytes, as it lies on disk or, for parquet, unpacked
LONGEST_TEXT = 1_000_000  # characters of a field

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """The rows of one split as they stand in their source."""

    source: str
    """What an error calls the source: a path, or the hub's name for it."""
    unit: str
    """What an error calls a row: ``line`` or ``row``; both are counted from 1."""
    rows: tuple[tuple[int, Row], ...]
    """Each row with its number, counted from 0."""
    sha256: str
    """Of the file's bytes; for hub data, of the rows as canonical JSON."""

    def place(self, number: int) -> str:
        """Where a row stands, for an error."""
        return f"{self.source}, {self.unit} {number + 1}"


def read_rows(path: Path) -> Rows:
    """Read a ``.jsonl`` or ``.parquet`` file.

    JSON lines are UTF-8 and end at a line feed alone: texts may hold other line separators (U+0085, U+2028).

    Raises:
        UserError: if the file cannot be read, is cut off, or a line is not a JSON object.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than {LARGEST_FILE >> 30} GiB: cut it into what is needed.")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check the path.") from error
    if path.suffix not in {".jsonl", ".parquet"}:
        raise UserError(f"{path}: data files end in .jsonl or .parquet: convert or rename it.")
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == ".parquet":
        return Rows(str(path), "row", tuple(enumerate(_parquet(path, content))), digest)
    return Rows(str(path), "line", tuple(_json_lines(path, content)), digest)


def canonical_rows(source: str, rows: Sequence[Row]) -> Rows:
    """Rows that come from no file; their hash is that of one sorted, compact JSON object a line."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
        digest.update(line.encode() + b"\n")
    return Rows(source, "row", tuple(enumerate(rows)), digest.hexdigest())


def to_examples(task: Task, split: str, rows: Rows) -> tuple[Example, ...]:
    """Turn every row of a split into an example of ``task``.

    Raises:
        UserError: naming the source, the row and the field, if a column is missing (with the columns that are
            there), a value is no text, or a label is not among the options; also if there is no row.
    """
    if not rows.rows:
        raise UserError(f"{rows.source} has no rows: put the {split} rows of '{task.name}' there.")
    return tuple(_example(task, split, rows.place(number), number, row) for number, row in rows.rows)


def content_hash(texts: Iterable[str], choices: Iterable[str]) -> str:
    """Hash of the content of a row: case, white space and the order of the choices make no difference."""

    def normal(text: str) -> str:
        return " ".join(text.lower().split())

    content = json.dumps([[normal(text) for text in texts], sorted(normal(choice) for choice in choices)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def choice_fields(letters: Sequence[str], choices: Sequence[str]) -> dict[str, str]:
    """Return the template fields of a multiple-choice row: its answers, each behind its letter, and the letters."""
    lines = [f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=True)]
    return {CHOICES_FIELD: "\n".join(lines), LETTERS_FIELD: "/".join(letters)}


def choice_texts(example: Example) -> list[str]:
    """Return the answers of a multiple-choice row without their letters; none for another row."""
    if CHOICES_FIELD not in example.fields:
        return []
    starts = tuple(f"{letter}. " for letter in example.options)
    lines = example.fields[CHOICES_FIELD].split("\n")
    return [line.partition(". ")[2] if line.startswith(starts) else line for line in lines]


def _example(task: Task, split: str, place: str, number: int, row: Row) -> Example:
    fields = {name: _text(_column(row, column, place), column, place) for name, column in task.fields.items()}
    choices = _row_choices(task, place, row)
    identity = content_hash(fields.values(), choices)
    options = task.options
    if task.answer_form == "generate":
        options = (_written_answer(task, place, row),)
    if task.choices is not None:
        options = task.options[: len(choices)]
        fields |= choice_fields(options, choices)
    return Example(
        id=f"{task.name}/{split}/{number}",
        fields=MappingProxyType(fields),  # no method may write into what the next will read
        options=options,
        label=0 if task.answer_form == "generate" else _label(task, place, row, len(options)),
        content_hash=identity,
    )


def _written_answer(task: Task, place: str, row: Row) -> str:
    answer = _text(_column(row, task.label_column, place), task.label_column, place)
    if not answer or "\n" in answer:
        raise UserError(
            f"{place}, field '{task.label_column}': the right answer must be one line of text, but is {answer!r}."
        )
    return answer


def _row_choices(task: Task, place: str, row: Row) -> list[str]:
    if task.choices is None:
        return []
    if isinstance(task.choices, tuple):
        return [_text(_column(row, column, place), column, place) for column in task.choices]
    choices = [_text(item, task.choices, place) for item in _list(row, task.choices, place)]
    if not 2 <= len(choices) <= len(task.options):
        raise UserError(f"{place}, field '{task.choices}': has {len(choices)} choices, not 2 to {len(task.options)}.")
    return choices


def _label(task: Task, place: str, row: Row, n_options: int) -> int:
    value = _column(row, task.label_column, place)
    if isinstance(task.label_values, str):
        # The answer is given by name ("C", in some rows of ARC "3"); its position among the names counts.
        known = _list(row, task.label_values, place)
        if len(known) != n_options:
            raise UserError(f"{place}, field '{task.label_values}': names {len(known)} of {n_options} choices.")
    else:
        known = list(task.label_values)[:n_options]
    found = [index for index, name in enumerate(known) if type(name) is type(value) and name == value]
    if len(found) != 1:
        problem = "is named twice" if found else "is not"
        raise UserError(
            f"{place}, field '{task.label_column}': label {shown(value)} {problem} among "
            f"{shortened(', '.join(map(shown, known)))}: correct it (hidden test labels, often -1, cannot be scored)."
        )
    return found[0]


def _column(row: Row, path: str, place: str) -> Any:
    """Return the value at a column or, through nested objects, at a dotted path."""
    value: Any = row
    if path in row:
        return row[path]
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            there = shortened(", ".join(map(str, row))) or "none"
            raise UserError(f"{place}: column '{path}' is missing; the columns there are: {there}.")
        value = value[part]
    return value


def _list(row: Row, path: str, place: str) -> list[Any]:
    value = _column(row, path, place)
    if not isinstance(value, list):
        raise UserError(f"{place}, field '{path}': must be a list, but is {shown(value)}.")
    return value


def _text(value: Any, path: str, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{place}, field '{path}': must be text, but is {shown(value)}.")
    text = str(value).strip()  # white space around a field is the template's to decide
    if len(text) > LONGEST_TEXT:
        raise UserError(f"{place}, field '{path}': has {len(text)} characters, more than {LONGEST_TEXT}: shorten it.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, which no tokenizer takes
        raise UserError(f"{place}, field '{path}': holds half a character ({error.reason}): correct it.") from error
    return text


def _json_lines(path: Path, content: bytes) -> Iterable[tuple[int, Row]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            problem = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not a whole JSON object"
            raise UserError(
                f"{path}, line {number + 1}: is {problem} ({said(error)}): correct it, or copy the file again."
            ) from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number + 1}: must be a JSON object, but is {line[:40].decode()!r}.")
        yield number, row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys differ; JSON itself would keep the last of two."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key '{shortened(next(name for name in names if names.count(name) > 1))}' stands twice")
    return row


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _parquet(path: Path, content: bytes) -> list[dict[str, Any]]:
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > LARGEST_FILE:
            raise UserError(f"{path} unpacks to more than {LARGEST_FILE >> 30} GiB: cut it into what is needed.")
        rows: list[dict[str, Any]] = file.read().to_pylist()
    except UserError:
        raise
    except Exception as error:  # damaged bytes reach every layer of the reader
        raise UserError(f"{path} is no whole parquet file ({said(error)}): is it cut off? Copy it again.") from error
    return rows
