"""What made some results: command, commit, versions, machine, data and time."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from icrbench.store.records import CellRecord


def origin(records: Sequence[CellRecord]) -> list[tuple[str, str]]:
    """Pairs of a name and every distinct value among some records; none where there is no record."""
    if not records:
        return []
    # Many records, few environments: each is looked at once.
    shared = {id(record["environment"]): record["environment"] for record in records}  # as a store reads them
    environments = list({compact(environment): environment for environment in shared.values()}.values())
    commits = [
        f"{environment['commit']}{' with uncommitted changes' if environment.get('dirty') else ''}"
        for environment in environments
        if environment.get("commit")
    ]
    packages = [
        f"{name} {version}" for e in environments for name, version in (e.get("packages") or {}).items() if version
    ]
    data = {(r["cell"]["task"], id(r["data"])): r["data"] for r in records}
    sources = [f"{task}: {d['location']}{_at(d.get('resolved') or d['revision'])}" for (task, _), d in data.items()]
    hashes = [f"{task} {d['sha256'].get('test', '?')[:12]}" for (task, _), d in data.items() if d["sha256"]]
    pairs = [
        ("command", _distinct(e.get("command") for e in environments)),
        ("commit", _distinct(commits)),
        ("python", _distinct(e.get("python") for e in environments)),
        ("packages", _distinct(sorted(packages))),
        ("machine", _distinct(e.get("machine") for e in environments)),
        ("data", _distinct(sorted(set(sources)))),
        ("sha256 of the test data", _distinct(sorted(set(hashes)))),
        ("time", f"{min(r['started'] for r in records)} to {max(r['finished'] for r in records)}"),
    ]
    return [(name, value) for name, value in pairs if value]


def _at(revision: str | None) -> str:
    return f" at {revision[:12]}" if revision else ""


def compact(value: Any) -> str:
    """Write a value as one text."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _distinct(values: Iterable[Any]) -> str:
    return one_line("; ".join(dict.fromkeys(compact(value) for value in values if value)))


def one_line(text: str) -> str:
    """Without line breaks, which would end a list item or a comment of the output."""
    return " ".join(text.split())
