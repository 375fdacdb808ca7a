"""Results as files of the every_eval_ever schema, version 0.3.0 (github.com/evaleval/every_eval_ever).

An evaluation is one method on one task under one model: ``<uuid>.json`` with the mean over seeds and its uncertainty,
beside ``<uuid>_samples.jsonl`` with a line for each example and seed, in the folders of their datastore
(``data/<collection>/<developer>/<model>/``). The uuid is derived from what was evaluated, so exporting again replaces
the files.

What the schema has no place for is in its string fields: the method and its hyperparameters in
``generation_config.additional_details``, seeds and logits in the samples' ``metadata``. Texts of inputs are not in
our records and stay empty; ``sample_id`` names the row of the dataset and ``content_hash`` its text.
"""

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icrbench.data.task import OPEN_ENDED
from icrbench.report import moments, stats
from icrbench.report.groups import Group, comparable_groups
from icrbench.report.line import Line, lines
from icrbench.report.metrics import METRICS
from icrbench.report.outcomes import Calibration, Outcomes, option_words
from icrbench.scoring.prior import KINDS, NAMES
from icrbench.store.records import CellRecord
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic
from icrbench.util.progress import bar

SCHEMA_VERSION = "0.3.0"
COLLECTION = "icrbench"
_FIRST_TOKEN = "argmax of the next-token logits of the options' first tokens"
_EXTRACTIONS = {
    "sum": "argmax of the log-probabilities of whole options",
    "mean": "argmax of the mean log-probability a token of whole options",
    "generate": "the line written greedily after the prompt; right if equal after normalisation (SQuAD's)",
}


@dataclass(frozen=True)
class Exported:
    """What an export wrote and what it left out."""

    files: tuple[Path, ...]
    """The aggregate files; each has its samples beside it."""
    failed: int
    """Cells that did not run; the schema has no place for them."""
    demo: int
    """Cells on the bundled demonstration rows, which say nothing about a model or method."""


def export(folder: Path, out: Path, organization: str) -> Exported:
    """Write every evaluation of a results folder below ``out``.

    Args:
        folder: a results folder.
        out: gets ``data/icrbench/...``.
        organization: who ran the evaluations and answers for them.

    Raises:
        UserError: if there is nothing to export, a file is damaged, or ``out`` cannot be written.
    """
    store = Store(folder)
    records = store.records()
    groups = [group for group in comparable_groups(records) if not group.demo]
    outcomes = Outcomes(store)
    evaluations = [(g, line, task) for g in groups for line in lines(g, outcomes).values() for task in line.tasks]
    files = []
    with bar("exporting", len(evaluations)) as progress:
        for group, line, task in evaluations:
            ran = [record for record in line.records(task) if record["status"] == "ok"]
            if ran:
                files.append(_write(store, outcomes, out, group, line, task, organization))
            progress.update()
    if not files:
        raise UserError(f"nothing to export in {folder}: it holds no cell that ran on real data.")
    failed = sum(record["status"] == "failed" for record in records)
    return Exported(tuple(files), failed, sum(record["data"]["kind"] == "demo" for record in records))


def _write(store: Store, outcomes: Outcomes, out: Path, group: Group, line: Line, task: str, organization: str) -> Path:
    """One evaluation: its samples first, then the file that names them and their checksum."""
    ran = {r["key"]: r for r in line.records(task) if r["status"] == "ok"}  # one for all seeds counts once
    records = list(ran.values())
    model = _model_info(records[0])
    place = [group.title, model["id"], line.label, task]
    name = uuid.UUID(bytes=hashlib.sha256(json.dumps(place).encode()).digest()[:16], version=4)
    developer, _, own = model["id"].partition("/")
    folder = Path("data", COLLECTION, _portable(developer), _portable(own))
    finished = max(record["finished"] for record in records)
    evaluation = f"{COLLECTION}.{task}/{model['id']}/{line.label}/{name.hex[:8]}/{_epoch(finished)}"
    numbers = _measured(outcomes, records, written=group.written)
    result = f"{evaluation}/{numbers[0].id}"
    samples = [
        json.dumps(sample, ensure_ascii=False, allow_nan=False)
        for record in records
        for sample in _samples(store, record, {"evaluation_id": evaluation, "evaluation_result_id": result})
    ]
    content = ("\n".join(samples) + "\n").encode()
    path = folder / f"{name}_samples.jsonl"
    write_atomic(out / path, content)
    aggregate = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation,
        "evaluation_timestamp": finished,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "icrbench",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "third_party",
        },
        "eval_library": _library(records[0]),
        "model_info": model,
        "evaluation_results": [
            {
                "evaluation_result_id": f"{evaluation}/{measured.id}",
                "evaluation_name": f"{COLLECTION}.{task}",
                "source_data": _source(records[0]),
                "evaluation_timestamp": finished,
                "metric_config": _metric_config(measured, records[0]),
                "score_details": measured.details,
                "generation_config": _configuration(group, line.label, records),
            }
            for measured in numbers
        ],
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": path.as_posix(),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(content).hexdigest(),
            "total_rows": len(samples),
            "additional_details": {"rows": "one an example and seed", "input_texts": "not part of the records"},
        },
    }
    target = out / folder / f"{name}.json"
    write_atomic(target, json.dumps(aggregate, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return target


@dataclass(frozen=True)
class _Measured:
    """One number of an evaluation."""

    metric: str
    calibrate: Calibration
    details: dict[str, Any]

    @property
    def id(self) -> str:
        return self.metric if self.calibrate == "none" else f"{self.metric}_{self.calibrate}"


def _measured(outcomes: Outcomes, records: Sequence[CellRecord], *, written: bool) -> list[_Measured]:
    """Accuracy first, then the other metrics, then accuracies corrected for the priors that all seeds have.

    Written answers have exact match alone.
    """
    if written:
        correct = [outcomes.answers(record).correct for record in records]
        return [_Measured("exact_match", "none", _accuracy(records, correct))]
    every: tuple[Calibration, ...] = ("none", *KINDS)
    kinds = [kind for kind in every if all(outcomes.has(record, kind) for record in records)]
    scores = [
        _Measured("accuracy", kind, _accuracy(records, [outcomes.answers(record, kind).correct for record in records]))
        for kind in kinds
    ]
    others = [
        _Measured(name, "none", {"score": float(np.mean([outcomes.metric(record, name) for record in records]))})
        for name in METRICS
        if name != "accuracy"
    ]
    return [scores[0], *others, *scores[1:]]


def _metric_config(measured: _Measured, record: CellRecord) -> dict[str, Any]:
    metric = replace(METRICS["accuracy"], title="Exact match")
    metric = METRICS.get(measured.metric, metric)
    how = f", corrected by {NAMES[measured.calibrate]}" if measured.calibrate in KINDS else ""
    return {
        "evaluation_description": f"{record['task']['title']}: {_extraction(record)}{how}",
        "metric_id": measured.id,
        "metric_name": metric.title + (f" ({measured.calibrate})" if how else ""),
        "metric_kind": measured.metric,
        "metric_unit": "proportion",
        "lower_is_better": metric.lower_is_better,
        "score_type": "continuous",
        "min_score": metric.least,
        "max_score": metric.most,
    }


def _accuracy(records: Sequence[CellRecord], correct: Sequence[npt.NDArray[np.bool_]]) -> dict[str, Any]:
    """Return the mean over seeds and its uncertainty."""
    known = [moments.moments(np.stack(correct))]
    interval, spread = stats.interval_and_spread(known)
    several = len(records) > 1
    return {
        "score": known[0].mean,
        "details": {
            f"accuracy_seed_{record['cell']['seed']}": str(float(right.mean()))
            for record, right in zip(records, correct, strict=True)
            if record["cell"]["seed"] is not None
        },
        "uncertainty": {
            "standard_error": {
                "value": ((spread.seeds or 0.0) ** 2 + spread.examples**2) ** 0.5,
                "method": "two-way analysis of variance over seeds and examples" if several else "analytic",
            },
            "confidence_interval": {
                "lower": interval.low,
                "upper": interval.high,
                "confidence_level": stats.CONFIDENCE,
                "method": "t over seeds and examples" if several else "Wilson",
            },
            "num_samples": known[0].n,
        },
    }


def _samples(store: Store, record: CellRecord, links: dict[str, str]) -> Iterator[dict[str, Any]]:
    cell, options = record["cell"], option_words(record)
    written = record["task"]["role"] == OPEN_ENDED
    for row in store.rows(record["key"]).to_pylist():
        predicted = row["text"] if written else _word(options, row["prediction"])
        right = row["gold_text"] if written else _word(options, row["gold"])
        yield {
            "schema_version": SCHEMA_VERSION,
            **links,
            "model_id": _model_info(record)["id"],
            "evaluation_name": f"{COLLECTION}.{cell['task']}",
            "sample_id": row["example_id"],
            "interaction_type": "single_turn",
            "input": {"raw": "", "reference": [right], **({} if written else {"choices": options})},
            "output": {"raw": [predicted]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": predicted,
                    "extraction_method": _extraction(record),
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": float(row["correct"]), "is_correct": bool(row["correct"])},
            "metadata": {
                "seed": str(cell["seed"]),
                "content_hash": row["content_hash"],
                "option_logits": json.dumps([round(float(logit), 5) for logit in row["option_logits"]]),
                "truncated": str(bool(row["truncated"])).lower(),
            },
        }


def _extraction(record: CellRecord) -> str:
    """How an answer was told."""
    form = str(record["identity"].get("task", {}).get("answer", ""))
    return _EXTRACTIONS.get(form, _FIRST_TOKEN)


def _word(options: Sequence[str], number: int) -> str:
    """Return an option; its number, if an old record, which has no hash, tells of fewer options than its rows use."""
    return options[number] if 0 <= number < len(options) else str(number)


def _model_info(record: CellRecord) -> dict[str, Any]:
    model = record["identity"].get("model", {})
    name, location = record["cell"]["model"], str(model.get("location", ""))
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", location)
    details = {key: model[key] for key in ("location", "revision", "dtype") if model.get(key) is not None}
    packages = record["environment"].get("packages") or {}
    return {
        "name": name,
        "id": location if hub else f"unknown/{_portable(name)}",
        "developer": location.split("/")[0] if hub else "unknown",
        "inference_engine": {"name": "transformers", "version": str(packages.get("transformers", "unknown"))},
        "additional_details": {
            "deployment_type": "self_deployed",
            "model_availability": "open_weights" if hub else "unknown",
            **{key: str(value) for key, value in details.items()},
        },
    }


def _library(record: CellRecord) -> dict[str, Any]:
    environment = record["environment"]
    packages = environment.get("packages") or {}
    known = {name: environment[name] for name in ("commit", "machine", "python") if environment.get(name)}
    return {
        "name": "icrbench",
        "version": str(packages.get("icrbench", "unknown")),
        "additional_details": {name: str(value) for name, value in (known | packages).items() if value},
    }


def _source(record: CellRecord) -> dict[str, Any]:
    data, result = record["data"], record["result"]
    details = {f"sha256_{split}": digest for split, digest in data["sha256"].items()}
    details |= {"rows_of_the_full_test_split": str(data["n_test_full"])}
    details |= {"revision": data["revision"]} if data["revision"] else {}
    details |= {"limit": str(data["limit"])} if data["limit"] is not None else {}
    source: dict[str, Any] = {"dataset_name": record["task"]["title"], "source_type": "other"}
    if data["kind"] == "hub":
        number = {"samples_number": result["n"]} if result else {}
        source |= {"source_type": "hf_dataset", "hf_repo": data["location"], **number}
    return source | {"additional_details": details}


def _configuration(group: Group, label: str, records: Sequence[CellRecord]) -> dict[str, Any]:
    record = records[0]
    task, method = record["identity"].get("task", {}), record["identity"].get("method", {})
    command = record["environment"].get("command")
    arguments = {"prompt_template": task.get("template"), "execution_command": command, "reasoning": False}
    seeds = [str(r["cell"]["seed"]) for r in records if r["cell"]["seed"] is not None]
    details = {
        "method": record["cell"]["method"],
        "label": label,
        "hyperparameters": json.dumps(method.get("hyperparameters", {}), sort_keys=True),
        "seeds": ", ".join(seeds) or "none: the method has no randomness",
        "protocol": group.protocol,
        "overlapping_training_examples_removed": str(group.clean).lower(),
        "table": group.title,
        "cells": ", ".join(r["key"] for r in records),
    }
    return {
        "generation_args": {name: value for name, value in arguments.items() if value is not None},
        "additional_details": details,
    }


def _portable(name: str) -> str:
    """Return a name for a folder on any file system."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("._") or "unnamed"


def _epoch(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())
