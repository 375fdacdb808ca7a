import json
import os
import stat
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from icrbench.report.leaderboard import leaderboards
from icrbench.store import index
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import TASKS, add, record, rows

RIGHT = (True, False, True, True)


@pytest.fixture(autouse=True)
def _small_folders_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "WORTH", 1)
    monkeypatch.setattr(index, "SETTLED", 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "results")
    for task in TASKS:
        add(made, task, "zero_shot", None, RIGHT)
        add(made, task, "icr", 0, RIGHT[::-1])
        add(made, task, "icr", 1, RIGHT)
    add(made, "sst2", "few_shot", 0, RIGHT, error="out of memory")
    return made


def index_file(store: Store) -> Path:
    return store.folder / "index" / "cells"


def truth(store: Store) -> list[object]:
    """The records without any index."""
    records = [json.loads(path.read_text()) for path in sorted((store.folder / "cells").glob("*.json"))]
    return [{name: value for name, value in record.items() if name != "sha256"} for record in records]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the json files that are read while the test runs."""
    names: list[str] = []
    original = Store._read

    def counted(path: Path) -> object:
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(Store, "_read", staticmethod(counted))
    return names


def test_an_index_gives_what_the_files_hold_and_reads_none_twice(store: Store, reads: list[str]) -> None:
    first = store.records()
    assert first == truth(store)
    assert len(reads) == len(first)
    reads.clear()
    again = Store(store.folder)
    assert again.records() == first
    assert reads == []
    for made in first:
        if made["status"] == "ok":
            answers = again.answers(made)
            frame = store.examples(made["key"])
            assert answers.ids == tuple(frame["example_id"])
            assert answers.correct.tolist() == frame["correct"].tolist()
    assert [type(value) for value in again.records()[0]["result"].values()] == [
        type(value) for value in first[0]["result"].values()
    ]


def test_records_share_what_they_have_in_common(store: Store) -> None:
    records = [made for made in store.records() if made["cell"]["task"] == "mr"]
    assert len({id(made["environment"]) for made in records}) == 1
    assert len({id(store.answers(made).ids) for made in records}) == 1


def test_one_new_cell_reads_one_file(store: Store, reads: list[str]) -> None:
    store.records()
    reads.clear()
    key = add(store, "mr", "icr", 2, RIGHT)
    assert Store(store.folder).records() == truth(store)
    assert reads == [f"{key}.json"]
    reads.clear()
    assert Store(store.folder).records() == truth(store)
    assert reads == []


def test_a_changed_record_counts_at_once(store: Store) -> None:
    before = store.records()
    key = before[0]["key"]
    add(store, before[0]["cell"]["task"], before[0]["cell"]["label"], before[0]["cell"]["seed"], (False,) * 4)
    found = next(made for made in Store(store.folder).records() if made["key"] == key)
    assert found["result"] is not None
    assert found["result"]["correct"] == 0


def test_a_change_that_keeps_size_and_time_counts(store: Store) -> None:
    key = store.records()[0]["key"]
    path = store.folder / "cells" / f"{key}.json"
    times = path.stat()
    text = path.read_text().replace('"python": "3.11"', '"python": "3.12"')
    path.write_text(text)  # in place: the same inode and size
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    with pytest.raises(UserError, match="damaged"):
        Store(store.folder).records()


def test_changed_examples_count_at_once(store: Store) -> None:
    made = next(made for made in store.records() if made["status"] == "ok")
    path = store.folder / "examples" / f"{made['key']}.parquet"
    table = pq.read_table(path)
    flipped = table.set_column(4, "correct", [[not right for right in table["correct"].to_pylist()]])
    pq.write_table(flipped, path)
    again = Store(store.folder)
    (changed,) = [other for other in again.records() if other["key"] == made["key"]]
    with pytest.raises(UserError, match="missing, damaged or not ours"):
        again.answers(changed)


def test_a_deleted_record_is_gone(store: Store) -> None:
    key = store.records()[3]["key"]
    (store.folder / "cells" / f"{key}.json").unlink()
    again = Store(store.folder)
    assert key not in [made["key"] for made in again.records()]
    assert again.records() == truth(store)
    known = index._read_index(index_file(store))
    assert known is not None
    assert known.num_rows == len(truth(store))


@pytest.mark.parametrize("damage", ["half", "empty", "foreign"])
def test_a_damaged_record_is_named(store: Store, damage: str) -> None:
    key = store.records()[3]["key"]
    path = store.folder / "cells" / f"{key}.json"
    text = path.read_text()
    path.write_text({"half": text[: len(text) // 2], "empty": "", "foreign": "{}"}[damage])
    for _ in range(2):
        with pytest.raises(UserError, match=key):
            Store(store.folder).records()
    path.write_text(text)
    assert Store(store.folder).records() == truth(store)


@pytest.mark.parametrize("damage", ["half", "empty", "gone"])
def test_damaged_examples_are_named(store: Store, damage: str) -> None:
    key = next(made["key"] for made in store.records() if made["cell"]["label"] == "icr")
    path = store.folder / "examples" / f"{key}.parquet"
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{key}\.parquet is missing"):
            leaderboards(Store(store.folder))
    path.write_bytes(content)
    assert leaderboards(Store(store.folder))


@pytest.mark.parametrize("damage", ["half", "empty", "foreign", "other version"])
def test_a_damaged_index_is_built_anew(
    store: Store, reads: list[str], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.records()
    path = index_file(store)
    content = path.read_bytes()
    if damage == "other version":
        with monkeypatch.context() as patch:
            patch.setattr(index, "FORMAT", b"0")
            store.records()
    elif damage == "foreign":
        pq.write_table(pq.read_table(store.folder / "examples" / f"{store.records()[0]['key']}.parquet"), path)
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    reads.clear()
    assert Store(store.folder).records() == truth(store)
    assert len(reads) == len(truth(store))
    reads.clear()
    Store(store.folder).records()
    assert reads == []


def test_flipped_bytes_in_the_index_are_noticed(store: Store) -> None:
    store.records()
    content = bytearray(index_file(store).read_bytes())
    for place in range(4, len(content) // 2, 97):
        content[place] ^= 0xFF
    index_file(store).write_bytes(bytes(content))
    assert Store(store.folder).records() == truth(store)


def test_what_changed_just_now_is_not_trusted(store: Store, monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    monkeypatch.setattr(index, "SETTLED", 10**12)
    store.records()
    reads.clear()
    assert Store(store.folder).records() == truth(store)
    assert len(reads) == len(truth(store))  # written a moment ago: a further write might leave the same stamp


def test_few_cells_need_no_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "WORTH", len(truth(store)) + 1)
    assert store.records() == truth(store)
    assert not index_file(store).parent.exists()


def test_a_folder_that_cannot_be_written_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise UserError(f"cannot write in {path.parent}")

    monkeypatch.setattr(index, "write_atomic", refuse)
    assert store.records() == truth(store)
    assert leaderboards(store)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_is_reported(store: Store) -> None:
    store.folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert store.records() == truth(store)
    finally:
        store.folder.chmod(stat.S_IRWXU)


def test_tables_are_the_same_with_and_without_an_index(store: Store) -> None:
    first = leaderboards(Store(store.folder))
    assert index_file(store).exists()
    second = leaderboards(Store(store.folder))
    index_file(store).unlink()
    third = leaderboards(Store(store.folder))
    assert first == second == third


def test_records_of_different_shapes(store: Store) -> None:
    odd = record("mr", "icr", 5, RIGHT, identity={"new": [1, 1.0, True, None, "ü"], "empty": {}})
    store.write(odd, rows("mr", RIGHT))
    plain = record("mr", "icr", 6, RIGHT)
    plain["data"]["contamination"] = {"pairs": {"a->b": 1}}
    store.write(plain, rows("mr", RIGHT))
    for _ in range(2):
        found = Store(store.folder).records()
        assert found == truth(store)
        (read,) = [made for made in found if made["key"] == odd["key"]]
        assert [type(value) for value in read["identity"]["new"]] == [int, float, bool, type(None), str]
        assert "new" not in found[0]["identity"] or found[0]["key"] == odd["key"]


def test_answers_are_packed_without_loss(store: Store) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 7, 8, 9, 100):
        correct = (rng.random(n) < 0.5).tolist()
        made = record("mr", "icr", 10 + n, correct)
        store.write(made, rows("mr", correct))
    records = Store(store.folder)
    for made in records.records():
        if made["status"] == "ok":
            assert records.answers(made).correct.tolist() == store.examples(made["key"])["correct"].tolist()
