"""What is stored of a cell: its record, its identity and the columns of its example rows."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import pyarrow as pa

SCHEMA_VERSION = 1
FIT = ("method", "code", "model", "pools", "target", "seed")
"""The part of a cell's identity that can change its fit; the protocol does through the pools alone."""

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


def identity_key(identity: Mapping[str, Any]) -> str:
    """A short name for an identity, the same wherever it is computed."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


class Cell(TypedDict):
    """Where the result stands in the grid, in the user's words."""

    method: str
    label: str
    """The method as the user wrote it, overridden hyperparameters included: a row of a table is a label."""
    model: str
    task: str
    seed: int | None
    """None when the method has no randomness: the one record stands for every seed."""
    protocol: str
    clean: bool


class TaskSummary(TypedDict):
    """What a table says about the task."""

    title: str
    role: str
    n_options: int


class DataSummary(TypedDict):
    """Which examples were scored."""

    kind: Literal["hub", "local", "demo"]
    location: str
    revision: str | None
    sha256: dict[str, str]
    n_test_full: int
    limit: int | None
    contamination: dict[str, Any]


class Result(TypedDict):
    """The numbers of a cell that ran."""

    accuracy: float
    n: int
    correct: int
    truncated: int
    seconds_score: float
    seconds_fit: float
    fit_sequences: NotRequired[int]
    """Sequences through the model while fitting; records written before it was counted lack it, and what follows."""
    fit_tokens: NotRequired[int]
    fit_steps: NotRequired[int]
    """Steps of an optimiser; 0 where nothing is trained by gradient."""
    fit_examples: NotRequired[int]
    """Sequences that gradients were taken of, as often as they were asked."""
    below_published: NotRequired[Mapping[str, tuple[float | None, float | None]]]
    """Sizes that are below those published, which are the defaults: the value and the published; null is no limit."""
    fit_peak_bytes: NotRequired[int | None]
    cached_parameters: int
    cached_formula: NotRequired[str]
    prompt_tokens: int


class Failure(TypedDict):
    """Why a cell did not run."""

    type: str
    message: str
    traceback: str


class CellRecord(TypedDict):
    """The content of ``cells/<key>.json``."""

    schema: int
    key: str
    """Hash of ``identity``, and the name of both files."""
    status: Literal["ok", "failed"]
    cell: Cell
    identity: dict[str, Any]
    """All that can change the result; two identities never share a row of a table."""
    task: TaskSummary
    data: DataSummary
    result: Result | None
    error: Failure | None
    environment: dict[str, Any]
    started: str
    finished: str


class UnreadableRecord(Exception):
    """A file of the store that is cut, missing or not ours; the message names it."""
