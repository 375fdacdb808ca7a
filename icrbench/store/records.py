"""What is stored of a cell: its record, its identity and the columns of its example rows.

A record is JSON that ends with the hash of all that stands before it, and holds the hash of the file of its rows: no
change of either passes unseen. Records of schema 1, which icrbench wrote before, have no hashes; they are read, and
what can be checked of them is: their key, their types, their accuracy.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from icrbench.util.cache import check_seal, key_of, sealed
from icrbench.util.files import cannot_read

SCHEMA_VERSION = 2
FIT = ("method", "code", "model", "pools", "target", "seed", "demonstrations")
"""The part of a cell's identity that can change its fit.
``demonstrations`` is there only where their draw or order is varied."""

EXAMPLE_SCHEMA = pa.schema(
    [
        ("example_id", pa.string()),
        ("content_hash", pa.string()),
        ("gold", pa.int16()),
        ("prediction", pa.int16()),
        ("correct", pa.bool_()),
        ("option_logits", pa.list_(pa.float32())),
        ("prompt_tokens", pa.int32()),
        ("truncated", pa.bool_()),
    ]
)
"""Columns of ``examples/<key>.parquet``, in the order of the test set."""

WRITTEN_SCHEMA = pa.schema([*EXAMPLE_SCHEMA, ("text", pa.string()), ("gold_text", pa.string()), ("f1", pa.float32())])
"""The same where answers are written, not chosen (``answer: generate``): ``gold`` is 0, ``prediction`` 0 where the text
is right and else -1, and there are no option logits."""


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return a short name for an identity, the same wherever it is computed."""
    return key_of(identity)


class VariationSummary(TypedDict):
    """What a cell varies of a plain one, to see how far results depend on it."""

    vary: str
    """Name of the experiment: ``templates``, ``orders``, ``demonstrations`` or ``templates-refit``."""
    number: int
    """From 1; 0 is the plain cell."""
    of: str
    """Key of the plain cell."""


class CellName(TypedDict):
    """Where the result stands in the grid, in the user's words."""

    method: str
    label: str
    """The method as the user wrote it, overridden hyperparameters included: a row of a table is a label."""
    model: str
    task: str
    seed: int | None
    """None when the method has no randomness: the one record stands for every seed."""
    protocol: str
    """The first under which it was asked for."""
    protocols: NotRequired[list[str]]
    """All of those that give the method the same data, so that it is their result, too; older records lack it."""
    clean: bool
    explicit: NotRequired[bool]
    """Whether demonstrations stood before every query; older records lack it, and what follows."""
    own_rows: NotRequired[bool]
    """Whether the method has no cells on tasks that give it no rows of their own."""
    variation: NotRequired[VariationSummary]
    """Absent for plain cells: the only ones that stand in leaderboards."""


class TaskSummary(TypedDict):
    """What a table says about the task."""

    title: str
    role: str
    n_options: int


class Contamination(TypedDict, total=False):
    """What of the test rows a method may have seen in training."""

    pairs: dict[str, int]
    """Test rows that share texts with a train pool, by "train->test"."""
    clean: bool


class DataSummary(TypedDict):
    """Which examples were scored."""

    kind: Literal["hub", "local", "demo"]
    location: str
    revision: str | None
    """As asked for: a commit, or a name whose commit may change."""
    resolved: NotRequired[str | None]
    """The hub's commit that it stood for; None where there was no hub to ask."""
    sha256: dict[str, str]
    n_test_full: int
    limit: int | None
    contamination: Contamination


class Result(TypedDict):
    """The numbers of a cell that ran."""

    accuracy: float
    """Share of right answers; of written ones, of exact matches."""
    f1: NotRequired[float]
    """Mean token F1, of written answers alone."""
    n: int
    correct: int
    truncated: int
    seconds_score: float
    seconds_fit: float
    """This and the next three are what the fit costs from nothing, whatever was in a cache."""
    fit_sequences: NotRequired[int]
    """Sequences through the model while fitting; records written before it was counted lack it, and what follows."""
    fit_tokens: NotRequired[int]
    fit_steps: NotRequired[int]
    """Steps of an optimiser; 0 where nothing is trained by gradient."""
    fit_examples: NotRequired[int]
    """Sequences that gradients were taken of, as often as they were asked."""
    below_published: NotRequired[dict[str, tuple[float | None, float | None]]]
    """Sizes that are below those published, which are the defaults: the value and the published; null is no limit."""
    fit_peak_bytes: NotRequired[int | None]
    fit_taken: NotRequired[dict[str, Any] | None]
    """What the fit really took (`Cost`), without what was in a cache already."""
    cached_parameters: int
    cached_formula: NotRequired[str]
    prompt_tokens: int


class Failure(TypedDict):
    """Why a cell did not run."""

    type: str
    message: str
    traceback: str


class Environment(TypedDict, total=False):
    """With what a result was made; none of it is part of its identity."""

    python: str
    packages: dict[str, str | None]
    machine: str
    commit: str | None
    dirty: bool
    command: str


class CellRecord(TypedDict):
    """The content of ``cells/<key>.json``."""

    schema: int
    key: str
    """Hash of ``identity``, and the name of both files."""
    status: Literal["ok", "failed"]
    cell: CellName
    identity: dict[str, Any]
    """All that can change the result; two identities never share a row of a table."""
    task: TaskSummary
    data: DataSummary
    fit: NotRequired[str | None]
    """Hash of the stored fit that the cell was scored with; None for a method that has none."""
    result: Result | None
    error: Failure | None
    environment: Environment
    started: str
    finished: str
    examples_sha256: NotRequired[str | None]
    """Of ``examples/<key>.parquet``; None for a failed cell."""


class UnreadableRecord(Exception):
    """A file of the store that is damaged, missing or not ours; the message names it."""


def by_protocol(records: Iterable[CellRecord]) -> Iterator[CellRecord]:
    """Yield each record once for every protocol whose result it is, as a record of that protocol."""
    for record in records:
        cell = record["cell"]
        for protocol in cell.get("protocols", [cell["protocol"]]):
            yield {**record, "cell": {**cell, "protocol": protocol}} if protocol != cell["protocol"] else record


def quantisation_words(model: Mapping[str, Any]) -> str:
    """Return the quantisation in a model's identity (`Backbone.identity`), as ``torchao int8``; empty without one."""
    own = model.get("quantisation")
    return f"{own['quant_method']} {_bits(own)}".strip() if isinstance(own, Mapping) and "quant_method" in own else ""


def _bits(values: Mapping[str, Any]) -> str:
    """Return the width of quantised weights in whichever way their configuration says it; empty if in another."""
    if "bits" in values:
        return f"int{values['bits']}"
    if values.get("load_in_8bit") or values.get("load_in_4bit"):
        return "int8" if values.get("load_in_8bit") else str(values.get("bnb_4bit_quant_type", "4-bit"))
    said = re.search(r"(?:uint|int|float|nf|fp)\d", json.dumps(values.get("quant_type", "")).lower())
    return said.group() if said else ""


def record_text(record: CellRecord) -> bytes:
    """Return the content of ``cells/<key>.json``.

    Raises:
        ValueError: for a number that is not finite, or a record that `read_record` would refuse.
        TypeError: if the record holds something JSON cannot.
    """
    text = sealed(record)
    _check(json.loads(text))
    return text


def read_record(path: Path) -> CellRecord:
    """Read ``cells/<key>.json`` and check all of it.

    Raises:
        UnreadableRecord: if it is cut, not ours, or was changed by as little as a space.
        UserError: if it may not be read.
    """
    try:
        text = path.read_bytes()
        record = _DECODER.decode(text.decode())
    except PermissionError as error:
        raise cannot_read(path, error) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path} is not readable as json") from error
    if not isinstance(record, dict) or not CellRecord.__required_keys__ <= record.keys():
        raise UnreadableRecord(f"{path} is not a record of icrbench")
    if record["schema"] not in (1, SCHEMA_VERSION):
        raise UnreadableRecord(f"{path} has schema {record['schema']}, this version reads 1 and {SCHEMA_VERSION}")
    if record["key"] != path.stem:
        raise UnreadableRecord(f"{path} holds the record of another cell ({record['key']})")
    try:
        if record["schema"] == SCHEMA_VERSION or "sha256" in record:
            check_seal(text)
            del record["sha256"]
        _check(record)
    except ValueError as error:
        raise UnreadableRecord(f"{path} is damaged ({error})") from error
    return cast(CellRecord, record)


def _check(record: Mapping[str, Any]) -> None:
    """Refuse values of other types than were written, and values that contradict each other."""
    _check_types("the record", record, CellRecord)
    if identity_key(record["identity"]) != record["key"]:
        raise ValueError("its key is not that of its identity")
    for name in ("started", "finished"):
        datetime.fromisoformat(record[name])
    result, error = record["result"], record["error"]
    if (result is None, error is None) != ((False, True) if record["status"] == "ok" else (True, False)):
        raise ValueError("status, result and error disagree")
    if result is not None:
        if not 0 <= result["correct"] <= result["n"] or not result["n"]:
            raise ValueError("it has other than 0 to n right answers")
        if result["accuracy"] != result["correct"] / result["n"]:
            raise ValueError("its accuracy is not that of its right answers")


def _check_types(what: str, values: Mapping[str, Any], kind: Any) -> None:
    missing = kind.__required_keys__ - values.keys()
    if missing:
        raise ValueError(f"{what} has no {min(missing)}")
    fields = _FIELDS[kind]
    for name, value in values.items():
        if name not in fields:
            continue
        types, inner = fields[name]
        if type(value) not in types:
            raise ValueError(f"{name} of {what} is of another type")
        if inner is None or type(value) is not dict:
            continue
        if isinstance(inner, tuple):
            if any(type(part) not in inner for part in value.values()):
                raise ValueError(f"{name} of {what} holds values of another type")
        else:
            _check_types(name, value, inner)


def _types(hint: Any) -> tuple[type, ...]:
    """Return the types of the values that a field of a record holds."""
    if get_origin(hint) is Literal:
        return (str,)
    if get_origin(hint) is NotRequired or isinstance(hint, UnionType):
        return tuple(kind for item in get_args(hint) for kind in _types(item))
    if get_origin(hint) is dict or is_typeddict(hint):
        return (dict,)
    if get_origin(hint) in (list, tuple):  # both are an array in JSON
        return (list,)
    return {float: (float, int), None: (NoneType,)}.get(hint, (hint,))


def _inner(hint: Any) -> Any:
    """Return the type of a field that holds a dict: its `TypedDict`, or the types of its values; else None."""
    inner = get_args(hint)
    if get_origin(hint) is NotRequired or isinstance(hint, UnionType):
        return next((found for item in inner if (found := _inner(item)) is not None), None)
    if get_origin(hint) is dict and inner[1] is not Any:
        return _types(inner[1])
    return hint if is_typeddict(hint) else None


_FIELDS = {
    kind: {name: (_types(hint), _inner(hint)) for name, hint in get_type_hints(kind).items()}
    for kind in (
        CellRecord,
        CellName,
        VariationSummary,
        TaskSummary,
        DataSummary,
        Contamination,
        Result,
        Failure,
        Environment,
    )
}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
