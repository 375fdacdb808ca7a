"""Which records may stand in one table: the rule that keeps results comparable.

A table holds one model, protocol and cleaning, one kind of data (demo, full, or a subset of a given size),
one edition of each task and one method behind each label. Cells that were varied
on purpose (``few_shot@order=3``) stand in the tables of `sensitivity` alone; of all others nothing is dropped:

* Another **model** under the same name (revision, dtype, ...): a table of its own, named by its revision.
* **Written answers** (``answer: generate``): a table of their own, because exact match is not accuracy among options.
* Another **edition** of a task (data hash, template, version): the newest of every task is the table; the
  ones before it go to a second table that says so. A method that was not run again on the newest edition has
  a gap in the first.
* Another **method** behind the same label (a default or the code changed): a row of its own, marked as older.

Where several methods were run, **variants** of one of them (``icr:rank=4`` beside ``icr``) are a leaderboard of their
own, beside the plain method and zero-shot: ranks and corrections of the first are then over methods, those of the
second over what was changed in one.

"Newest" is by the time the last of its cells finished. ``identity["model"]``, ``["task"]``, ``["method"]``
and ``["code"]`` are compared; what else an identity holds belongs to one cell, and
two results that differ only there are an error when the table is made.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from icrbench.data.task import OPEN_ENDED
from icrbench.report.origin import origin
from icrbench.report.text.names import display_name
from icrbench.store.records import CellRecord, by_protocol, quantisation_words

REFERENCES = {"zero_shot", "few_shot"}
"""What methods are compared with."""


@dataclass(frozen=True)
class Group:
    """The records of one table, each with the label of its row."""

    model: str
    protocol: str
    clean: bool
    data: str
    """For example "real data, 200 test rows a task"."""
    demo: bool
    variant: str
    """Tells apart two models of one name, and says how weights are quantised and whether prompts stand in a chat
    template; else empty."""
    edition: int
    """0: the newest edition of each task; 1: the one before it; ..."""
    records: tuple[tuple[str, CellRecord], ...]
    written: bool = False
    """Answers are written: what other tables call accuracy is exact match."""
    variants_of: str = ""
    """The method whose variants the table holds, beside the plain one and zero-shot; empty if it holds methods."""

    @property
    def title(self) -> str:
        """What the table holds, in one line."""
        parts = [self.model + (f" ({self.variant})" if self.variant else "")]
        parts += [f"variants of {display_name(self.variants_of)}"] if self.variants_of else []
        parts += [f"protocol {self.protocol}"]
        parts += ["overlapping training examples removed"] if self.clean else []
        parts += ["written answers"] if self.written else []
        parts += [self.data]
        parts += [f"superseded tasks ({self.edition} back)"] if self.edition else []
        return " · ".join(parts)

    def by_label(self) -> dict[str, list[CellRecord]]:
        """Return the records of each row."""
        found: dict[str, list[CellRecord]] = {}
        for label, record in self.records:
            found.setdefault(label, []).append(record)
        return found

    @cached_property
    def origin(self) -> list[tuple[str, str]]:
        """What made the table."""
        return origin([record for _, record in self.records])

    def place(self) -> dict[str, object]:
        """Where a number of the CSV files stands: what tells this table from others."""
        return {
            "model": self.model,
            "variant": self.variant,
            "protocol": self.protocol,
            "clean": self.clean,
            "data": self.data,
            "edition": self.edition,
            "written": self.written,
            "variants_of": self.variants_of,
        }

    def leaderboards(self) -> "list[Group]":
        """Split a group into its methods and the variants of each; a group with one method stays whole."""
        names = {label: record["cell"]["label"] for label, record in self.records}  # without a mark of age
        methods = {record["cell"]["method"] for _, record in self.records}
        plain = methods & set(names.values())
        variants: dict[str, set[str]] = {}
        for label, record in self.records:
            method = record["cell"]["method"]
            if names[label] != method and method in plain:
                variants.setdefault(method, set()).add(label)
        if not variants or len(methods - REFERENCES) < 2:
            return [self]
        apart = set().union(*variants.values())
        split = [replace(self, records=tuple(pair for pair in self.records if pair[0] not in apart))]
        for method, own in sorted(variants.items()):
            wanted = own | {"zero_shot", method}
            records = tuple(pair for pair in self.records if pair[0] in wanted)
            split.append(replace(self, records=records, variants_of=method))
        return split


def comparable_groups(records: Iterable[CellRecord]) -> list[Group]:
    """Split records into tables: real before demo data, full before subsets, then by model and protocol."""
    plain = (record for record in by_protocol(records) if "variation" not in record["cell"])
    keyed = sorted(((_place(record), record) for record in plain), key=lambda pair: pair[0])
    digests = _Digests()
    groups = []
    for (written, demo, rows, model, protocol, clean), members in groupby(keyed, key=lambda pair: pair[0]):
        models = _newest_first([record for _, record in members], lambda record: digests.of(record, "model"))
        for same_model in models:
            identity = same_model[0]["identity"].get("model", {})
            chat = "chat template" if "chat_template" in identity else ""
            variant = ", ".join(
                filter(
                    None, [quantisation_words(identity), chat, _model_words(same_model[0]) if len(models) > 1 else ""]
                )
            )
            for edition, chosen in enumerate(_editions(same_model, digests)):
                data = _data_label(demo, -rows)
                labelled = tuple(_labelled(chosen, digests))
                groups.append(Group(model, protocol, clean, data, demo, variant, edition, labelled, written))
    return groups


def _place(record: CellRecord) -> tuple[bool, bool, float, str, str, bool]:
    cell, limit = record["cell"], record["data"]["limit"]
    rows = float("inf") if limit is None else limit
    written = record["task"]["role"] == OPEN_ENDED
    return written, record["data"]["kind"] == "demo", -rows, cell["model"], cell["protocol"], cell["clean"]


def _data_label(demo: bool, rows: float) -> str:
    label = "demo data (bundled, hand-written)" if demo else "real data"
    if rows != float("inf"):
        return f"{label}, {rows:,.0f} test rows a task"
    return label if demo else f"{label}, full test sets"


def _editions(records: list[CellRecord], digests: "_Digests") -> list[list[CellRecord]]:
    """Group records by the edition of their task, the newest of every task first."""
    editions: list[list[CellRecord]] = []
    by_task = sorted(records, key=lambda record: record["cell"]["task"])
    for _, members in groupby(by_task, key=lambda record: record["cell"]["task"]):
        for number, edition in enumerate(_newest_first(list(members), digests.edition)):
            if number == len(editions):
                editions.append([])
            editions[number] += edition
    return editions


def _labelled(records: list[CellRecord], digests: "_Digests") -> Iterable[tuple[str, CellRecord]]:
    by_label = sorted(records, key=lambda record: record["cell"]["label"])
    for label, members in groupby(by_label, key=lambda record: record["cell"]["label"]):
        for number, same in enumerate(_newest_first(list(members), lambda r: digests.of(r, "method", "code"))):
            mark = f" (older, {(digests.of(same[0], 'method', 'code') or '?')[:4]})" if number else ""
            yield from ((label + mark, record) for record in same)


def _newest_first(records: list[CellRecord], variant: Callable[[CellRecord], Hashable]) -> list[list[CellRecord]]:
    """Partition records by ``variant(record)``, the most recently finished part first.

    A cell that failed before its variant was known (None) joins the newest.
    """
    parts: dict[Hashable, list[CellRecord]] = {}
    for record in records:
        parts.setdefault(variant(record), []).append(record)
    unknown = parts.pop(None, []) if len(parts) > 1 else []
    ordered = sorted(parts.values(), key=lambda part: max(record["finished"] for record in part), reverse=True)
    ordered[0] += unknown
    return ordered


class _Digests:
    """Hashes of parts of records, each part hashed once: records of one store share what they have in common.

    Parts are told apart by their ``id``, so this must not outlive the records.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str | int, ...], str] = {}

    def of(self, record: CellRecord, *fields: str) -> str | None:
        """Hash of some fields of the identity; None if it has none of them."""
        known = {field: record["identity"][field] for field in fields if field in record["identity"]}
        return self._hash(known, (*known, *map(id, known.values()))) if known else None

    def edition(self, record: CellRecord) -> str | None:
        """Hash of the data and the task, as far as they are known."""
        hashes = record["data"]["sha256"]
        task = record["identity"].get("task")
        return self._hash([hashes, task], ("edition", id(hashes), id(task))) if hashes else None

    def _hash(self, value: object, place: tuple[str | int, ...]) -> str:
        if place not in self._known:
            self._known[place] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        return self._known[place]


def _model_words(record: CellRecord) -> str:
    """Return what tells a model from another of its name: its revision if it has one."""
    model = record["identity"].get("model")
    revision = model.get("revision") if isinstance(model, dict) else None
    return f"revision {str(revision)[:12]}" if revision else f"identity {(_Digests().of(record, 'model') or '?')[:8]}"
