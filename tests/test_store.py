import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icrbench.store import store as store_module
from icrbench.store.records import EXAMPLE_SCHEMA
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic
from records import add, record, rows

RIGHT = (True, False, True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def test_what_is_written_is_read(store: Store) -> None:
    made = record("sst2", "icr", 0, RIGHT, error=None)
    made["environment"]["machine"] = "ünïcode ☃"
    store.write(made, rows("sst2", RIGHT))
    file = store.folder / "examples" / f"{made['key']}.parquet"
    assert store.records() == [{**made, "examples_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}]
    assert store.completed(made["key"])
    read = store.examples(made["key"])
    assert read["correct"].tolist() == list(RIGHT)
    assert read["option_logits"].iloc[0].tolist() == [0.0, 1.5]
    assert pq.read_schema(file).equals(EXAMPLE_SCHEMA)
    frame = store.frame()
    assert frame.loc[0, "accuracy"] == pytest.approx(2 / 3)
    assert frame.loc[0, "label"] == "icr"


def test_an_arrow_table_is_as_good_as_rows(store: Store) -> None:
    made = record("sst2", "icr", 0, RIGHT)
    store.write(made, pa.Table.from_pylist(rows("sst2", RIGHT)))  # int64 columns are narrowed
    assert store.completed(made["key"])
    assert store.examples(made["key"])["gold"].dtype == "int16"


def test_failed_cell_is_a_record_but_not_completed(store: Store) -> None:
    key = add(store, "sst2", "icr", 0, RIGHT, error="out of memory")
    assert not store.completed(key)
    assert store.records()[0]["status"] == "failed"


def test_failure_after_success_leaves_no_examples(store: Store) -> None:
    key = add(store, "sst2", "icr", 0, RIGHT)
    assert add(store, "sst2", "icr", 0, RIGHT, error="out of memory") == key
    with pytest.raises(UserError, match=f"{key}.parquet is missing"):
        store.examples(key)


def test_unknown_cell_is_not_completed_and_says_nothing(store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.completed("0" * 16)


def test_crash_between_examples_and_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(path: Path, content: str) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write_atomic(path, content)

    made = record("sst2", "icr", 0, RIGHT)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_atomic", die)
        with pytest.raises(KeyboardInterrupt):
            store.write(made, rows("sst2", RIGHT))
    assert (store.folder / "examples" / f"{made['key']}.parquet").exists()
    assert not store.completed(made["key"])
    store.write(made, rows("sst2", RIGHT))
    assert store.completed(made["key"])


@pytest.mark.parametrize("part", ["cells", "examples"])
@pytest.mark.parametrize("damage", ["half", "empty", "gone"])
def test_damaged_files_count_as_absent(store: Store, part: str, damage: str) -> None:
    key = add(store, "sst2", "icr", 0, RIGHT)
    (path,) = (store.folder / part).iterdir()
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    if (part, damage) == ("cells", "gone"):
        assert not store.completed(key)
        return
    with pytest.warns(UserWarning, match=path.name):
        assert not store.completed(key)
    with pytest.raises(UserError, match=path.name):
        store.records() if part == "cells" else store.examples(key)


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', "null", "3", '"x"', "{", "\xff"])
def test_foreign_json(store: Store, content: str) -> None:
    key = add(store, "sst2", "icr", 0, RIGHT)
    path = store.folder / "cells" / f"{key}.json"
    path.write_text(content, encoding="latin1")
    with pytest.warns(UserWarning, match=path.name):
        assert not store.completed(key)
    with pytest.raises(UserError, match=path.name):
        store.records()


def test_record_under_another_name_or_schema(store: Store) -> None:
    key = add(store, "sst2", "icr", 0, RIGHT)
    path = store.folder / "cells" / f"{key}.json"
    copy = path.with_name("0000000000000000.json")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="another cell"):
        store.records()
    copy.unlink()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(UserError, match="schema 99"):
        store.records()


def test_rows_that_do_not_match_the_record(store: Store) -> None:
    made = record("sst2", "icr", 0, RIGHT)
    with pytest.raises(ValueError, match="2 examples, 1 right, but n is 3"):
        store.write(made, rows("sst2", RIGHT[:2]))
    with pytest.raises(ValueError, match="status ok"):
        store.write(made, None)
    store.write(made, rows("sst2", RIGHT))
    pq.write_table(
        pa.Table.from_pylist(rows("sst2", RIGHT[:1]), EXAMPLE_SCHEMA),
        store.folder / "examples" / f"{made['key']}.parquet",
    )
    with pytest.warns(UserWarning, match=r"parquet is missing or damaged"):
        assert not store.completed(made["key"])


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (object(), TypeError)])
def test_what_json_refuses_leaves_no_file(store: Store, value: object, error: type[Exception]) -> None:
    made = record("sst2", "icr", 0, RIGHT)
    made["environment"]["machine"] = value
    with pytest.raises(error):
        store.write(made, rows("sst2", RIGHT))
    assert not store.folder.exists()


def test_empty_folder_names_the_fix(store: Store) -> None:
    with pytest.raises(UserError, match="no results in"):
        store.records()


def test_writable_is_checked_early(store: Store, tmp_path: Path) -> None:
    store.check_writable()
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write in"):
        Store(tmp_path / "file").check_writable()


def test_one_owner_a_cell(store: Store) -> None:
    with store.lock("a") as mine, store.lock("a") as twice, store.lock("b") as other:
        assert (mine, twice, other) == (True, False, True)
    with store.lock("a") as again:
        assert again
    assert list((store.folder / "locks").iterdir()) == []


def test_lock_across_processes_dies_with_its_owner(store: Store) -> None:
    code = (
        "import sys, time; from pathlib import Path; from icrbench.store.store import Store\n"
        "with Store(Path(sys.argv[1])).lock('a') as mine: print(mine, flush=True); time.sleep(60)"
    )
    root = str(Path(__file__).resolve().parent.parent)
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(store.folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"True\n"
        with store.lock("a") as mine:
            assert not mine
        owner.kill()
        owner.wait()
    with store.lock("a") as mine:
        assert mine
