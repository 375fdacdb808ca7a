"""Synthetic records for the tests of the store and of the reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from icrbench.store.records import SCHEMA_VERSION, CellRecord, identity_key
from icrbench.store.store import Store

N = 40  # examples of a cell that `fill` writes
TASKS = {
    "sst2": ("SST-2", "id"),
    "trec": ("TREC", "id"),
    "mr": ("MR", "near_ood"),
    "cb": ("CB", "far_ood"),
}


def record(
    task: str = "sst2",
    label: str = "zero_shot",
    seed: int | None = None,
    correct: Sequence[bool] = (True, False),
    *,
    error: str | None = None,
    kind: str = "hub",
    limit: int | None = None,
    sha: str = "aa",
    version: int = 1,
    revision: str = "r1",
    finished: str = "2026-11-30T10:00:00+00:00",
    identity: dict[str, Any] | None = None,
    contamination: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    truncated: int = 0,
    explicit: bool | None = None,
    protocol: str = "paper",
    model: str = "tiny",
    more: dict[str, Any] | None = None,
) -> CellRecord:
    method = label.split(":")[0]
    full_identity = {
        "method": {"name": label, "version": 1},
        "model": {"name": model, "revision": revision},
        "task": {"name": task, "version": version},
        "data": {"sha": sha, "limit": limit, "kind": kind},
        "seed": seed,
        **(identity or {}),
    }
    title, role = TASKS[task]
    result: Any = {
        "accuracy": sum(correct) / len(correct),
        "n": len(correct),
        "correct": sum(correct),
        "truncated": truncated,
        "seconds_score": 1.0,
        "seconds_fit": 0.0,
        "cached_parameters": 0,
        "prompt_tokens": 10,
        **(more or {}),
    }
    made: Any = {
        "schema": SCHEMA_VERSION,
        "key": identity_key(full_identity),
        "status": "failed" if error else "ok",
        "cell": {
            "method": method,
            "label": label,
            "model": model,
            "task": task,
            "seed": seed,
            "protocol": protocol,
            "clean": False,
            "explicit": method == "few_shot" if explicit is None else explicit,
            "own_rows": method == "hidden_calibration",
        },
        "identity": full_identity,
        "task": {"title": title, "role": role, "n_options": 2},
        "data": {
            "kind": kind,
            "location": f"org/{task}",
            "revision": None,
            "sha256": {"train": "t" + sha, "test": sha},
            "n_test_full": 872,
            "limit": limit,
            "contamination": contamination or {},
        },
        "result": None if error else result,
        "error": {"type": "RuntimeError", "message": error, "traceback": "..."} if error else None,
        "environment": environment or {"python": "3.11", "packages": {"torch": "2.13"}, "commit": "abc"},
        "started": "2026-11-30T09:00:00+00:00",
        "finished": finished,
    }
    return made  # type: ignore[no-any-return]


def rows(task: str, correct: Sequence[bool], order: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Example rows, in another order if asked."""
    made = [
        {
            "example_id": f"{task}/test/{number}",
            "content_hash": f"{number:x}",
            "gold": 1,
            "prediction": int(right),
            "correct": bool(right),
            "option_logits": [0.0, 1.5],
            "prompt_tokens": 5,
            "truncated": False,
        }
        for number, right in enumerate(correct)
    ]
    return [made[number] for number in order] if order is not None else made


def add(store: Store, task: str, label: str, seed: int | None, correct: Sequence[bool], **more: Any) -> str:
    """Write one synthetic cell; returns its key."""
    made = record(task, label, seed, correct, **more)
    store.write(made, None if more.get("error") else rows(task, correct))
    return made["key"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty results folder."""
    return Store(tmp_path / "results")


def answers(n_correct: int, n: int = N) -> list[bool]:
    return [number < n_correct for number in range(n)]


def fill(store: Store, label: str, seed: int | None, counts: Sequence[int], **more: Any) -> None:
    """Cells of the first tasks, with so many right answers of ``N`` each."""
    for task, count in zip(TASKS, counts, strict=False):
        add(store, task, label, seed, answers(count), **more)


def unmeasured(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a result that are the same whenever it is computed: all but times and memory."""
    measured = ("seconds", "bytes", "taken")  # parts of their names
    return {name: value for name, value in result.items() if not any(part in name for part in measured)}
