"""Reports over many cells: the first, which gathers the index, and every later one.

The results folder is synthetic: records and rows of the real size and shape, answers drawn at random.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from icrbench.data.find_tasks import get_tasks
from icrbench.runner.environment import machine
from icrbench.store.records import EXAMPLE_SCHEMA, SCHEMA_VERSION, CellRecord, identity_key, record_text
from icrbench.store.rows import rows_file

MODELS = 20
FULL = 100_000
VARIANTS = 50  # of a task's answers; every cell has a file of its own
# The kernel's count of a child's memory starts with its parent's, so the child tells its own.
_REPORT = """
import re, sys
from icrbench.cli import main
code = main(["report", sys.argv[1], "--out", sys.argv[2]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1], file=open(sys.argv[3], "w"))
sys.exit(code)
"""


def main() -> None:
    """Make the folder, measure, print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=5_000, help="records of the synthetic folder (default: 5,000)")
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} cells; takes about 2 GB of disk")
    parser.add_argument("--rows", type=int, default=100, help="example rows a cell")
    parser.add_argument("--seeds", type=int, default=3, help="seeds a method; 1: every table is of single seeds")
    parser.add_argument("--folder", type=Path, help="where the results go and stay (default: a temporary folder)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary) / "results"
        count = FULL if asked.full else asked.cells
        if not (folder / "cells").exists():
            count = synthesise(folder, count, asked.rows, asked.seeds)
        lines = [
            [f"{count:,}", f"{count * asked.rows:,}", which, *report(folder, Path(temporary) / "out")]
            for which in ("first", "again")
        ]
        size = (folder / "index" / "cells").stat().st_size / 2**20
        print(f"\nicrbench report on a synthetic folder ({machine()}); its index: {size:.1f} MiB\n")
        header = ["cells", "example rows", "report", "seconds", "CPU seconds", "peak memory MiB"]
        print(tabulate(lines, header, floatfmt=".1f"))


def report(folder: Path, out: Path) -> tuple[float, float, float]:
    """Seconds, seconds of processor time (for a machine with other work) and peak memory of one `icrbench report`."""
    begin, peak = time.perf_counter(), out.with_name("peak")
    command = [sys.executable, "-c", _REPORT, folder, out, peak]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the report ended with exit code {process.returncode}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, int(peak.read_text()) / 1024


def synthesise(folder: Path, cells: int, rows: int, seeds: int) -> int:
    """Write about ``cells`` records in whole tables, without the syncs of a real run; returns how many."""
    tasks = get_tasks("all")
    labels = max(1, round(cells / (MODELS * (len(tasks) * seeds)) - 1 / seeds))
    for name in ("cells", "examples"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    written = 0
    answers = {task.name: _answers(task.name, rows) for task in tasks}
    for model in range(MODELS):
        for label, number in [("zero_shot", None), *((f"icr:rank={n + 1}", n) for n in range(labels))]:
            for task in tasks:
                record = _record(f"model-{model}", label, number, task, rows)
                for seed in [None] if number is None else range(seeds):
                    key = identity_key({**record["identity"], "seed": seed})
                    correct, parquet = answers[task.name][int(key[:4], 16) % VARIANTS]
                    text = record_text(_filled(record, key, seed, correct, rows, parquet))
                    (folder / "examples" / f"{key}.parquet").write_bytes(parquet)
                    (folder / "cells" / f"{key}.json").write_bytes(text)
                    written += 1
    return written


def _answers(task: str, rows: int) -> list[tuple[int, bytes]]:
    """Numbers of right answers, and files of examples with as many."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(VARIANTS):
        correct = rng.random(rows) < 0.4 + 0.2 * rng.random()
        made.append((int(correct.sum()), rows_file(_rows(task, correct))))
    return made


def _filled(record: dict[str, Any], key: str, seed: int | None, correct: int, rows: int, parquet: bytes) -> CellRecord:
    """Return the record of one cell."""
    clock = f"{int(key[:2], 16) % 60:02}:{int(key[2:4], 16) % 60:02}+00:00"
    own = {"accuracy": correct / rows, "correct": correct}
    own |= {"seconds_score": int(key[:5], 16) / 1000, "prompt_tokens": int(key[5:9], 16)}
    filled: Any = {
        **record,
        "key": key,
        "cell": {**record["cell"], "seed": seed},
        "identity": {**record["identity"], "seed": seed},
        "result": {**record["result"], **own},
        "started": f"2026-11-30T09:{clock}",
        "finished": f"2026-11-30T10:{clock}",
        "examples_sha256": hashlib.sha256(parquet).hexdigest(),
    }
    return cast(CellRecord, filled)


def _record(model: str, label: str, number: int | None, task: Any, rows: int) -> dict[str, Any]:
    """Return a record of the real size and shape, less what ``_filled`` adds."""
    words = {
        "name": task.name,
        "role": task.role,
        "version": task.version,
        "template": task.template,
        "options": [f"option {n}" for n in range(4)],
        "fields": {"text": "sentence"},
        "choices": None,
        "label_column": "label",
        "label_values": [0, 1, 2, 3],
    }
    hyperparameters = {f"hyperparameter_{n}": 0.1 * n for n in range(28)} | {"rank": number}
    identity = {
        "method": {"name": label.split(":")[0], "hyperparameters": hyperparameters},
        "code": dict.fromkeys(("core", "method", "torch", "transformers"), "906ed68d623d9b62"),
        "model": {"name": model, "location": model, "revision": "df422bc165b6117e", "dtype": "float32"},
        "pools": {f"pool-{n}": {"rows": "f2cdc2b900eb5649", "task": words} for n in range(5)},
        "target": None,
        "protocol": "paper",
        "clean": False,
        "task": words,
        "test": {"sha256": hashlib.sha256(task.name.encode()).hexdigest(), "limit": rows},
        "scoring": {"max_query_tokens": 512},
    }
    return {
        "schema": SCHEMA_VERSION,
        "status": "ok",
        "cell": {
            "method": label.split(":")[0],
            "label": label,
            "model": model,
            "task": task.name,
            "protocol": "paper",
            "clean": False,
        },
        "identity": identity,
        "task": {"title": task.title, "role": task.role, "n_options": 4},
        "data": {
            "kind": "local",
            "location": "/data",
            "revision": None,
            "sha256": {part: hashlib.sha256((part + task.name).encode()).hexdigest() for part in ("train", "test")},
            "n_test_full": 10 * rows,
            "limit": rows,
            "contamination": {"pairs": {}, "clean": False},
        },
        "result": {
            "n": rows,
            "truncated": 0,
            "seconds_fit": 282.275,
            "cached_parameters": 277064,
        },
        "error": None,
        "environment": {
            "python": "3.11.7",
            "packages": {f"package-{n}": "1.2.3" for n in range(9)},
            "machine": "2 cores x86_64, 2 threads",
            "commit": "398cff56e9bc21a15d6ef5d8504d54c9960d41bf",
            "dirty": False,
            "command": f"icrbench run --models {model} --data-dir /data --preset cpu --methods zero_shot,icr",
        },
    }


def _rows(task: str, correct: Any) -> pa.Table:
    count = len(correct)
    columns = {
        "example_id": [f"{task}/test/{n}" for n in range(count)],
        "content_hash": [hashlib.sha256(f"{task}{n}".encode()).hexdigest()[:16] for n in range(count)],
        "gold": np.ones(count, dtype=np.int16),
        "prediction": correct.astype(np.int16),
        "correct": correct,
        "option_logits": list(np.arange(4 * count, dtype=np.float32).reshape(count, 4)),
        "prompt_tokens": np.full(count, 40, dtype=np.int32),
        "truncated": np.zeros(count, dtype=bool),
    }
    return pa.table(columns, schema=EXAMPLE_SCHEMA)


if __name__ == "__main__":
    main()
