"""No stored number can be changed unseen: records, rows, and the index over them."""

import contextlib
import json
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icrbench.backbone.metering import Cost
from icrbench.method import Fitted
from icrbench.registry import make_method
from icrbench.report import write_report
from icrbench.report.every_eval_ever import export
from icrbench.report.leaderboard import leaderboards
from icrbench.store import index
from icrbench.store.artefact import Artefact, DamagedArtefact
from icrbench.store.rows import rows_file
from icrbench.store.store import Store
from icrbench.util.cache import sealed
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic
from mutations import EXAMPLES, Mutation, mutations
from records import TASKS, add, record, rows
from tiny import tiny_backbone

RIGHT = (True, False, True, True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "results")
    for task in TASKS:
        add(made, task, "zero_shot", None, RIGHT)
        for seed in (0, 1):
            add(made, task, "icr", seed, RIGHT[::-1])
    return made


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be copied."""
    made = Store(tmp_path_factory.mktemp("whole") / "results")
    for task in ("sst2", "mr"):
        add(made, task, "zero_shot", None, RIGHT)
        add(made, task, "icr", 0, RIGHT[::-1])
    return made.folder


def reseal(path: Path, **changes: Any) -> None:
    """Change a record, and its hash with it."""
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_bytes(sealed({**content, **changes}))


def older(path: Path, **changes: Any) -> None:
    """Make a record one of schema 1."""
    content = json.loads(path.read_text())
    for name in ("sha256", "examples_sha256"):
        del content[name]
    path.write_text(json.dumps({**content, "schema": 1, **changes}, indent=1))


def numbers(store: Store) -> list[Any]:
    """All that tables of a folder say of accuracy."""
    return [[(row.label, row.scores) for row in table.rows] for table in leaderboards(store)]


def cell_file(store: Store, number: int = 0) -> Path:
    return store.folder / "cells" / f"{store.records()[number]['key']}.json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"accuracy": 0.75', '"accuracy": 0.85'),
        ('"seed": 1', '"seed": 2'),
        ('"task": "sst2"', '"task": "trec"'),
        ('"label": "icr"', '"label": "icv"'),
        ('"limit": null', '"limit": 200'),
        ('"test": "aa"', '"test": "ab"'),
        ('"seconds_fit": 0.0', '"seconds_fit": 9.0'),
        ('"schema": 2', '"schema": 1'),
        ('"kind": "hub"', '"kind":  "hub"'),
    ],
)
def test_an_edited_record_is_refused_with_one_sentence(store: Store, old: str, new: str) -> None:
    path = next(path for path in (store.folder / "cells").iterdir() if old in path.read_text())
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=rf"{path.name} is damaged \(it was changed after it was written\): delete"):
        store.records()
    with pytest.warns(UserWarning, match="the cell will be run again"):
        assert store.completed(path.stem) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"identity": {"model": {"revision": "other"}}}, "its key is not that of its identity"),
        ({"result": None}, "status, result and error disagree"),
        ({"finished": 3}, "finished of the record is of another type"),
        ({"cell": {"method": "icr"}}, "cell has no clean"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(store: Store, changes: dict[str, Any], problem: str) -> None:
    path = cell_file(store)
    reseal(path, **changes)
    with pytest.raises(UserError, match=problem):
        store.records()


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"accuracy": 0.5}, "its accuracy is not that of its right answers"),
        ({"n": 0}, "other than 0 to n right answers"),
        ({"correct": 5}, "other than 0 to n right answers"),
        ({"correct": True}, "correct of result is of another type"),
        ({"accuracy": "0.75"}, "accuracy of result is of another type"),
    ],
)
def test_a_result_that_cannot_be_is_refused(store: Store, part: dict[str, Any], problem: str) -> None:
    path = cell_file(store)
    reseal(path, result={**json.loads(path.read_text())["result"], **part})
    with pytest.raises(UserError, match=problem):
        store.records()


def test_rows_of_another_cell_are_refused(store: Store) -> None:
    first, second = sorted((store.folder / "examples").iterdir())[:2]
    shutil.copy(second, first)
    with pytest.raises(UserError, match=rf"{first.name} is missing, damaged or not ours"):
        leaderboards(store)
    with pytest.raises(UserError, match=rf"{first.name} is missing, damaged or not ours"):
        store.rows(first.stem)


def test_answers_are_marked_as_prediction_and_gold_say(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record("sst2", "icr", 7, RIGHT)
    wrong = rows("sst2", RIGHT)
    wrong[0]["prediction"] = 0
    with pytest.raises(ValueError, match="otherwise than as prediction and gold say"):
        store.write(made, wrong)
    key = add(store, "sst2", "icr", 7, RIGHT)
    with monkeypatch.context() as patch:
        patch.setattr("icrbench.store.rows.check_answers", lambda table: None)
        (store.folder / "examples" / f"{key}.parquet").write_bytes(rows_file(wrong))
    older(store.folder / "cells" / f"{key}.json")  # has no hash of its rows
    with pytest.raises(UserError, match=f"{key}.parquet is missing, damaged or not ours"):
        leaderboards(store)


def test_what_would_be_refused_is_not_written(store: Store) -> None:
    before = store.records()
    made: Any = record("sst2", "icr", 7, RIGHT)
    for changes in ({"started": 3}, {"key": "0" * 16}, {"result": {**made["result"], "accuracy": 0.5}}):
        with pytest.raises(ValueError, match=r"is of another type|its key is not|its accuracy is not"):
            store.write({**made, **changes}, rows("sst2", RIGHT))
    assert store.records() == before


def test_records_of_the_first_schema_are_reported(store: Store) -> None:
    expected = numbers(store)
    for path in (store.folder / "cells").iterdir():
        older(path)
    assert {made["schema"] for made in store.records()} == {1}
    assert numbers(Store(store.folder)) == expected
    path = cell_file(store)
    assert store.completed(path.stem)
    older_text = json.loads(path.read_text())
    path.write_text(json.dumps({**older_text, "result": {**older_text["result"], "accuracy": 0.5}}))
    with pytest.raises(UserError, match="its accuracy is not that of its right answers"):
        store.records()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"schema": ' + "9" * 5000 + "}", '{"a": NaN}', "\ud800"]
)
def test_what_json_readers_choke_on(store: Store, text: str) -> None:
    path = cell_file(store)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="is not readable as json"):
        store.records()


def test_files_of_the_system_are_no_records(store: Store) -> None:
    before = store.records()
    for name in ("cells/._x.json", "cells/.DS_Store", "examples/._x.parquet"):
        (store.folder / name).write_bytes(b"\x00\x05\x16\x07")
    assert store.records() == before
    empty = Store(store.folder / "none")
    (empty.folder / "cells").mkdir(parents=True)
    (empty.folder / "cells" / "._x.json").write_bytes(b"")
    assert empty.empty


def test_what_may_not_be_read_is_not_called_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cell_file(store)
    read = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.stem == path.stem and self.suffix == suffix:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for suffix in (".json", ".parquet"):
        with pytest.raises(UserError, match=rf"{path.stem}\{suffix} \(Permission denied\): ask its owner"):
            leaderboards(Store(store.folder))
        with pytest.raises(UserError, match="ask its owner"):
            store.completed(path.stem)


def test_what_a_killed_run_left_is_removed(store: Store) -> None:
    for name in ("cells", "examples"):
        (store.folder / name / f".a.json~{platform.node()}~999999999~ab.partial").write_text("")
    store.check_writable()
    assert not list(store.folder.rglob("*.partial"))


@contextlib.contextmanager
def copy_of(folder: Path, target: Path) -> Iterator[Path]:
    shutil.copytree(folder, target / "copy")
    try:
        yield target / "copy"
    finally:
        shutil.rmtree(target / "copy")


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutations, st.integers(0, 7))
def test_no_change_of_a_results_folder_changes_a_number(
    results: Path, tmp_path_factory: pytest.TempPathFactory, mutation: Mutation, number: int
) -> None:
    with copy_of(results, tmp_path_factory.mktemp("mutated")) as folder:
        path = sorted(path for path in folder.rglob("*.*") if path.is_file())[number]
        write_atomic(path, mutation.of(path.read_bytes()))
        with pytest.raises(UserError, match=path.stem):
            leaderboards(Store(folder))


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutations)
def test_no_change_of_the_index_changes_a_number(
    results: Path, tmp_path_factory: pytest.TempPathFactory, mutation: Mutation
) -> None:
    with pytest.MonkeyPatch.context() as patch, copy_of(results, tmp_path_factory.mktemp("mutated")) as folder:
        patch.setattr(index, "WORTH", 1)
        patch.setattr(index, "SETTLED", 0)
        expected = Store(folder).records()
        path = folder / "index" / "cells"
        write_atomic(path, mutation.of(path.read_bytes()))
        assert Store(folder).records() == expected


PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(0, 1) | st.text(max_size=3)
NESTED = st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=2)
VALUES = PLAIN | NESTED | st.lists(NESTED, max_size=2) | st.dictionaries(st.text(max_size=3), NESTED, max_size=2)


@settings(max_examples=EXAMPLES, deadline=None)
@given(VALUES, st.integers(0, 3), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
def test_a_record_without_a_hash_with_any_value_in_place_of_another_is_reported_or_refused(
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
    value: object,
    number: int,
    places: list[float],
) -> None:
    with copy_of(results, tmp_path_factory.mktemp("mutated")) as folder:
        path = sorted((folder / "cells").iterdir())[number]
        older(path)
        content = json.loads(path.read_text())
        part: Any = content
        for place in places:
            inner, name = part, sorted(part)[int(place * len(part))]
            part = part[name]
            if not isinstance(part, dict) or not part:
                break
        inner[name] = value
        path.write_text(json.dumps(content))
        for write in (lambda: write_report(folder, folder / "out"), lambda: export(folder, folder / "out", "lab")):
            with contextlib.suppress(UserError):
                write()


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutations, st.booleans())
def test_no_change_of_a_fit_is_unseen(
    tmp_path_factory: pytest.TempPathFactory, mutation: Mutation, weights: bool
) -> None:
    backbone = tiny_backbone("llama")
    folder = tmp_path_factory.mktemp("fits") / "fit"
    fitted = Fitted({"layers": [1, 2], "alpha_scale": 0.8, "text": "ünïcode"}, {"a": torch.ones(3, 4)})
    Artefact(make_method("zero_shot", {}), fitted, backbone.identity(), Cost(1.5, 7, 90, None)).save(folder)
    path = folder / ("fitted.safetensors" if weights else "fitted.json")
    write_atomic(path, mutation.of(path.read_bytes()))
    with pytest.raises(DamagedArtefact, match="does not hold a fitted method that can be read"):
        Artefact.load(folder, backbone)
