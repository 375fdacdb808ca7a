import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetInfo, HfApi

from icrbench.data.find_tasks import load_tasks
from icrbench.data.sources import Demo, Hub, LocalDir, TaskData, load, subsample
from icrbench.data.task import Example, HubSource, Task
from icrbench.util.errors import UserError

TASKS = load_tasks()
TRAIN = [{"text": "a warm film", "label": 1}, {"text": "a cold film", "label": 0}]
TEST = [{"text": "a long film", "label": 0}]


def lines(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., TaskData]:
    """Write the two splits of a task and load them."""

    def put(name: str = "mr", train: Any = TRAIN, test: Any = TEST) -> TaskData:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for split, content in (("train", train), ("test", test)):
            raw = content if isinstance(content, bytes) else lines(content).encode()
            (folder / f"{split}.jsonl").write_bytes(raw)
        return load(TASKS[name], LocalDir(tmp_path))

    return put


def test_rows_end_at_a_line_feed_alone(put: Callable[..., TaskData]) -> None:
    odd = "one\u0085two\u2028three\x0bfour\x1cfive"
    data = put(test=[{"text": odd, "label": 1}, {"text": "next", "label": 0}])
    assert [example.fields["text"] for example in data.test] == [odd, "next"]
    assert [example.id for example in data.test] == ["mr/test/0", "mr/test/1"]


def test_windows_line_ends_a_byte_order_mark_and_a_blank_last_line(put: Callable[..., TaskData]) -> None:
    data = put(test=b'\xef\xbb\xbf{"text": "x", "label": 1}\r\n{"text": "y", "label": 0}\r\n\r\n')
    assert [example.fields["text"] for example in data.test] == ["x", "y"]


def test_text_is_kept_but_for_white_space_around_it(put: Callable[..., TaskData]) -> None:
    data = put("sst2", [{"sentence": "fine ", "label": 1}], [{"sentence": " Bad  film ", "label": 0}])
    assert data.test[0].fields == {"text": "Bad  film"}


def test_provenance_of_a_folder(put: Callable[..., TaskData], tmp_path: Path) -> None:
    data = put()
    assert data.provenance.kind == "local"
    assert data.provenance.location == str(tmp_path)
    assert data.provenance.revision is None
    for split in ("train", "test"):
        raw = (tmp_path / "mr" / f"{split}.jsonl").read_bytes()
        assert data.provenance.sha256[split] == hashlib.sha256(raw).hexdigest()
    assert (data.provenance.n_train, data.provenance.n_test) == (2, 1)


def test_train_rows_of_the_test_split_are_dropped_and_counted(put: Callable[..., TaskData]) -> None:
    train = [*TRAIN, {"text": "A  Long\tFILM", "label": 1}]
    data = put(train=train)
    assert [example.id for example in data.train] == ["mr/train/0", "mr/train/1"]
    assert data.provenance.train_dropped_in_test == 1
    assert data.provenance.n_train == 2


def test_option_order_makes_no_new_content(put: Callable[..., TaskData]) -> None:
    one = {"goal": "Cool tea.", "sol1": "Heat it.", "sol2": "Add ice.", "label": 1}
    swapped = {"goal": "cool tea.", "sol1": "Add ice.", "sol2": "Heat it.", "label": 0}
    other = {"goal": "Cool tea.", "sol1": "Heat it.", "sol2": "Drink it.", "label": 1}
    data = put("piqa", [swapped, other], [one])
    assert [example.id for example in data.train] == ["piqa/train/1"]
    assert data.provenance.train_dropped_in_test == 1


def test_equal_texts_of_two_tasks_have_equal_hashes(put: Callable[..., TaskData]) -> None:
    one = put("mr").test[0]
    two = put("sst2", [{"sentence": "x", "label": 0}], [{"sentence": "A long film ", "label": 1}]).test[0]
    assert one.content_hash == two.content_hash
    assert len(one.content_hash) == 16


def test_labels_by_position_among_the_rows_own_names(put: Callable[..., TaskData]) -> None:
    def row(names: list[str], key: str) -> dict[str, object]:
        choices = {"label": names, "text": ["ice", "fog", "dew"]}
        return {"question": f"What is {key}?", "choices": choices, "answerKey": key}

    data = put("ai2scie", [row(["A", "B", "C"], "A")], [row(["A", "B", "C"], "C"), row(["1", "2", "3"], "2")])
    assert [example.label for example in data.test] == [2, 1]
    assert data.test[1].options == ("A", "B", "C")
    assert data.test[1].fields["choices"] == "A. ice\nB. fog\nC. dew"
    with pytest.raises(
        UserError, match=r"train\.jsonl, line 1, field 'answerKey': label '3' is not among 'A', 'B', 'C'"
    ):
        put("ai2scie", [row(["A", "B", "C"], "3")], [row(["A", "B", "C"], "C")])


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (
            [*TEST, {"text": "x", "label": 2}],
            r"test\.jsonl, line 2, field 'label': label 2 is not among 0, 1",
        ),
        ([*TEST, {"text": "x", "label": -1}], r"label -1 is not among 0, 1: .*hidden test labels"),
        ([*TEST, {"text": "x", "label": "1"}], r"label '1' is not among 0, 1"),
        ([*TEST, {"text": "x", "label": True}], r"label True is not among 0, 1"),
        (
            [{"body": "x", "label": 1}],
            r"line 1: column 'text' is missing; the columns there are: body, label",
        ),
        ([{"text": None, "label": 1}], r"line 1, field 'text': must be text, but is None"),
        ([{"text": ["x"], "label": 1}], r"line 1, field 'text': must be text"),
        ([["x", 1]], r"test\.jsonl, line 1: must be a JSON object"),
        (b'{"text": "x", "label": 1}\n{"text": "half', r"test\.jsonl, line 2: is not a whole JSON object"),
        (
            b'{"text": "x", "label": 1}\n\n{"text": "\xff", "label": 1}\n',
            r"test\.jsonl, line 3: is not UTF-8",
        ),
        (b'{"text": "\\ud83d", "label": 1}\n', r"line 1, field 'text': holds half a character"),
        (b"", r"test\.jsonl has no rows"),
        (b"\n\n", r"test\.jsonl has no rows"),
    ],
)
def test_broken_rows_are_named(put: Callable[..., TaskData], test: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        put(test=test)


def test_empty_train_and_train_within_test(put: Callable[..., TaskData]) -> None:
    with pytest.raises(UserError, match=r"train\.jsonl has no rows"):
        put(train=[])
    with pytest.raises(UserError, match="every train row also occurs in"):
        put(train=TEST)


def test_too_many_choices(put: Callable[..., TaskData]) -> None:
    row = {"question": "?", "choices": {"label": list("ABCDEF"), "text": list("abcdef")}, "answerKey": "A"}
    with pytest.raises(UserError, match=r"field 'choices\.text': has 6 choices, not 2 to 5"):
        put("csqa", [row], [row])


def test_missing_files_say_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no data for 'csqa': put train\.jsonl .* in .*csqa \(columns: question, choices"
    ):
        load(TASKS["csqa"], LocalDir(tmp_path))
    with pytest.raises(UserError, match="no data for 'mr'"):
        load(TASKS["mr"], LocalDir(tmp_path / "nowhere"))


def test_parquet_is_read_like_json_lines(put: Callable[..., TaskData], tmp_path: Path) -> None:
    row = {"question": "q?", "choices": {"label": ["A", "B"], "text": ["x", "y"]}, "answerKey": "B"}
    expected = put("ai2scie", [{**row, "question": "r?"}], [row])
    path = tmp_path / "ai2scie" / "test.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(UserError, match=r"both test\.jsonl and test\.parquet"):
        load(TASKS["ai2scie"], LocalDir(tmp_path))
    (tmp_path / "ai2scie" / "test.jsonl").unlink()
    data = load(TASKS["ai2scie"], LocalDir(tmp_path))
    assert data.test == expected.test
    assert data.provenance.sha256["test"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.98])
def test_a_cut_off_parquet_file(put: Callable[..., TaskData], tmp_path: Path, keep: float) -> None:
    put()
    (tmp_path / "mr" / "test.jsonl").unlink()
    path = tmp_path / "mr" / "test.parquet"
    pq.write_table(pa.Table.from_pylist(TEST * 50), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UserError, match=r"test\.parquet is no whole parquet file"):
        load(TASKS["mr"], LocalDir(tmp_path))


def test_parquet_rows_are_named_as_rows(tmp_path: Path, put: Callable[..., TaskData]) -> None:
    put()
    (tmp_path / "mr" / "test.jsonl").unlink()
    pq.write_table(pa.Table.from_pylist([*TEST, {"text": "x", "label": 7}]), tmp_path / "mr" / "test.parquet")
    with pytest.raises(UserError, match=r"test\.parquet, row 2, field 'label': label 7"):
        load(TASKS["mr"], LocalDir(tmp_path))


@pytest.mark.parametrize("source", [Hub(), Demo(), LocalDir(Path("elsewhere"))])
def test_a_users_task_reads_its_own_files(tmp_path: Path, source: Hub | Demo | LocalDir) -> None:
    (tmp_path / "mine.yaml").write_text(
        "{name: mine, title: Mine, role: far_ood, version: 1, license: CC0, citation: none,"
        " source: {files: {train: data/a.jsonl, test: data/b.jsonl}}, fields: {text: text},"
        " label: {column: label, values: [0, 1]}, template: 'T: {text}', options: [bad, good]}"
    )
    task = load_tasks(tmp_path)["mine"]
    with pytest.raises(UserError, match=r"cannot read .*a\.jsonl \(No such file"):
        load(task, source)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(lines(TRAIN))
    (tmp_path / "data" / "b.jsonl").write_text(lines(TEST))
    data = load(task, source)
    assert data.provenance.kind == "local"
    assert data.provenance.location == str(tmp_path / "data")
    assert task.demonstration(data.test[0]) == "T: a long film bad"


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_bundled_rows_load(task: Any) -> None:
    data = load(task, Demo())
    assert data.provenance.kind == "demo"
    assert data.provenance.train_dropped_in_test == 0
    assert len(data.train) >= 20
    assert len(data.test) >= 20
    for example in data.test:
        assert task.prompt(example) == task.prompt(example).strip()
        assert task.answer(example) in example.options
    # Every answer occurs, save those that only some questions have.
    wanted = min(len(example.options) for example in data.train)
    assert len({example.label for example in data.train}) >= wanted


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Answer calls of `datasets.load_dataset` from memory, and note them."""
    calls: list[dict[str, Any]] = []

    def load_dataset(path: str, name: str | None, *, split: str, revision: str) -> datasets.Dataset:
        calls.append({"path": path, "name": name, "split": split, "revision": revision})
        texts = ["a dull film", "a fine film"] if split == "train" else ["a film"]
        features = datasets.Features(
            {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["n", "p"])}
        )
        rows = {"sentence": texts, "label": list(range(len(texts)))}
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_data(hub: list[dict[str, Any]]) -> None:
    data = load(TASKS["sst2"], Hub())
    revision = "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb"
    assert hub == [
        {"path": "stanfordnlp/sst2", "name": None, "split": split, "revision": revision}
        for split in ("train", "validation")
    ]
    assert [TASKS["sst2"].answer(example) for example in data.train] == ["negative", "positive"]
    assert data.provenance.kind == "hub"
    assert data.provenance.location == "stanfordnlp/sst2"
    assert (data.provenance.revision, data.provenance.resolved) == (revision, revision)
    canonical = b'{"label":0,"sentence":"a film"}\n'
    assert data.provenance.sha256["test"] == hashlib.sha256(canonical).hexdigest()


@pytest.fixture
def moving() -> Task:
    source = TASKS["sst2"].source
    assert isinstance(source, HubSource)
    return replace(TASKS["sst2"], source=replace(source, revision="main"))


def test_a_revision_that_moves_is_resolved_and_both_splits_are_read_at_its_commit(
    hub: list[dict[str, Any]], moving: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def dataset_info(_api: HfApi, repo_id: str, *, revision: str | None, timeout: float) -> DatasetInfo:
        asked.append((repo_id, revision))
        return DatasetInfo(id=repo_id, sha="c" * 40, private=False, disabled=False, tags=[])

    monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
    provenance = load(moving, Hub()).provenance
    assert asked == [("stanfordnlp/sst2", "main")]
    assert (provenance.revision, provenance.resolved) == ("main", "c" * 40)
    assert [call["revision"] for call in hub] == ["c" * 40] * 2


def test_without_a_hub_to_ask_the_cache_is_read_as_asked(
    hub: list[dict[str, Any]], moving: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    provenance = load(moving, Hub()).provenance
    assert (provenance.revision, provenance.resolved) == ("main", None)
    assert [call["revision"] for call in hub] == ["main"] * 2


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'stanfordnlp/sst2' on the Hub (OfflineModeIsEnabled)\nmore"),
        RuntimeError("Dataset scripts are no longer supported, but found sst2.py"),
        datasets.exceptions.DatasetNotFoundError("gone"),
        ValueError('Unknown split "validation"'),
    ],
)
def test_an_unreachable_hub_names_the_ways_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError, match=r"stanfordnlp/sst2.*--data-dir.*--demo") as caught:
        load(TASKS["sst2"], Hub())
    assert "\n" not in str(caught.value)


def test_a_folder_cannot_stand_in_for_the_hub(
    hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stanfordnlp" / "sst2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"hides the hub dataset stanfordnlp/sst2"):
        load(TASKS["sst2"], Hub())
    assert hub == []


def test_subsample_depends_on_its_key_alone() -> None:
    rows = load(TASKS["mr"], Demo()).train
    chosen = subsample(rows, 10, "limit", "mr", 0)
    assert chosen == subsample(rows, 10, "limit", "mr", 0)
    assert chosen != subsample(rows, 10, "limit", "mr", 1)
    assert subsample(rows, 10, "ab", "c") != subsample(rows, 10, "a", "bc")
    places = [rows.index(example) for example in chosen]
    assert places == sorted(set(places))
    assert len(chosen) == 10


def test_subsample_is_the_same_on_every_machine() -> None:
    rows = [Example(str(number), {}, ("a", "b"), 0, "") for number in range(100)]
    chosen = subsample(rows, 5, "limit", "mr", 42)
    assert [example.id for example in chosen] == ["2", "16", "19", "52", "92"]


def test_subsample_keeps_all_or_refuses() -> None:
    rows = load(TASKS["mr"], Demo()).test
    assert subsample(rows, None, "x") == rows
    assert subsample(rows, len(rows) + 1, "x") == rows
    with pytest.raises(UserError, match="at least 1"):
        subsample(rows, 0, "x")
