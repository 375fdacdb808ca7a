"""Whatever bytes a task file, a data file, an option or a model's folder holds: it is read, or refused in one sentence.

Each example is a random change of something that is whole. What is read in spite of it must be usable.
"""

import json
import shutil
from functools import partialmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_setup import Commands, icrbench, model_folder
from icrbench.backbone.load import load_backbone
from icrbench.data.find_tasks import builtin_folder, load_tasks
from icrbench.data.rows import LONGEST_TEXT, read_rows, to_examples
from icrbench.data.task import Task
from icrbench.data.task_yaml import read_task
from icrbench.registry import make_method, methods
from icrbench.runner.labels import parse_methods
from icrbench.runner.presets import Preset
from icrbench.util.errors import UserError
from icrbench.util.yamlfile import LARGEST, read_yaml
from mutations import EXAMPLES, Mutation, mutations

__all__ = ["icrbench"]  # a fixture
quickly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SENTENCE = 3000  # characters, at most
TASK_FILES = sorted(builtin_folder().glob("*.yaml"))


def one_sentence(error: UserError, name: str = "") -> None:
    message = str(error)
    assert name in message
    assert message
    assert len(message) < SENTENCE
    assert "Traceback" not in message


@quickly
@given(st.sampled_from(TASK_FILES), st.lists(mutations, min_size=1, max_size=3))
def test_task_files(tmp_path: Path, original: Path, changes: list[Mutation]) -> None:
    content = original.read_bytes()
    for change in changes:
        content = change.of(content) or b"\n"
    (tmp_path / "changed.yaml").write_bytes(content)
    try:
        task = read_task(tmp_path / "changed.yaml")
    except UserError as error:
        one_sentence(error, "changed.yaml")
    else:
        json.dumps(task.identity()).encode()  # as it goes into a cell's identity


VALUES = [
    "!!bool abc",
    '!!int ""',
    "!!timestamp x",
    "!!float ''",
    "!!binary '*'",
    "!!python/object/apply:os.system ['true']",
    "2026-99-99",
    '"\\ud800"',
    '"\\0"',
    '"a\\x07b"',
    "9" * 5000,
    "1e999",
    ".nan",
    "[" * 2000 + "]" * 2000,
    "{" * 2000,
    "*anchor",
    "&anchor [*anchor]",
    "null",
    "[]",
    "{}",
    "? [a]\n: b",
    "'" + "x" * 300_000 + "'",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:20])
@pytest.mark.parametrize("key", ["name", "version", "template", "options", "label", "fields", "source", "note"])
def test_values_of_task_files(tmp_path: Path, key: str, value: str) -> None:
    lines = ["name: mine", "title: T", "role: id", "version: 1", "license: x", "citation: x", "template: '{t} A:'"]
    lines += ["options: [a, b]", "fields: {t: text}", "label: {column: y, values: [0, 1]}"]
    lines += ["source: {files: {train: a.jsonl, test: b.jsonl}}"]
    kept = [line for line in lines if not line.startswith(f"{key}:")]
    (tmp_path / "changed.yaml").write_text("\n".join([*kept, f"{key}: {value}", ""]))
    try:
        json.dumps(read_task(tmp_path / "changed.yaml").identity()).encode()
    except UserError as error:
        one_sentence(error)


def test_aliases_are_refused_before_they_grow(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"bomb\.yaml, line 2: .*aliases are not read"):
        read_yaml(tmp_path / "bomb.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(UserError, match="no file written by a person"):
        read_yaml(tmp_path / "large.yaml")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_tasks()["csqa"]


@pytest.fixture(scope="module")
def rows() -> bytes:
    return (builtin_folder() / "demo" / "csqa" / "test.jsonl").read_bytes()


def read(path: Path, task: Task) -> None:
    try:
        examples = to_examples(task, "test", read_rows(path))
    except UserError as error:
        one_sentence(error, path.name)
    else:
        for example in examples:
            assert 0 <= example.label < len(example.options)
            task.demonstration(example).encode()


@quickly
@given(st.lists(mutations, min_size=1, max_size=3))
def test_json_lines(tmp_path: Path, task: Task, rows: bytes, changes: list[Mutation]) -> None:
    for change in changes:
        rows = change.of(rows) or b"\n"
    (tmp_path / "changed.jsonl").write_bytes(rows)
    read(tmp_path / "changed.jsonl", task)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@quickly
@given(st.sampled_from(["question", "choices", "answerKey"]), json_values)
def test_values_of_json_lines(tmp_path: Path, task: Task, rows: bytes, key: str, value: Any) -> None:
    row = {**json.loads(rows.split(b"\n")[0]), key: value}
    (tmp_path / "changed.jsonl").write_text(json.dumps(row))
    read(tmp_path / "changed.jsonl", task)


@quickly
@given(st.lists(mutations, min_size=1, max_size=2))
def test_parquet(tmp_path: Path, task: Task, rows: bytes, changes: list[Mutation]) -> None:
    path = tmp_path / "changed.parquet"
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in rows.splitlines()]), path)
    content = path.read_bytes()
    for change in changes:
        content = change.of(content) or b"\n"
    path.write_bytes(content)
    read(path, task)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "a", "question": "b"}', "key 'question' stands twice"),
        ('{"question": NaN}', "NaN is no number"),
        ('{"question": ' + "9" * 5000 + "}", "not a whole JSON object"),
        ('{"question": ' + "[" * 100_000 + "]" * 100_000 + "}", "not a whole JSON object"),
        (json.dumps({"question": "x" * (LONGEST_TEXT + 1)}), f"more than {LONGEST_TEXT}"),
        (json.dumps({"question": {"x": "y" * 10**6}}), "must be text, but is {'x': 'yyy"),
        (json.dumps(dict.fromkeys(map(str, range(10**5)))), "column 'question' is missing"),
    ],
    ids=["twice", "nan", "digits", "deep", "long", "object", "columns"],
)
def test_extremes_of_json_lines(tmp_path: Path, task: Task, line: str, said: str) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(UserError) as caught:
        to_examples(task, "test", read_rows(tmp_path / "rows.jsonl"))
    one_sentence(caught.value)
    assert said in str(caught.value)


NONE = Preset("none", None, (0,), {})
words = st.text(max_size=12) | st.sampled_from(["icr", "rank=4", "per_class=2", "few_shot", ":", "=", ",", "all", "."])


@quickly
@given(st.lists(words, max_size=6), st.lists(words, max_size=3))
def test_methods_and_settings(parts: list[str], set_: list[str]) -> None:
    try:
        found = parse_methods("".join(parts), ["".join(set_)] if set_ else [], NONE)
    except UserError as error:
        one_sentence(error)
    else:
        assert all(item.method.name in methods() for item in found)


@quickly
@given(st.sampled_from(sorted(methods())), st.data())
def test_hyperparameters(name: str, data: st.DataObject) -> None:
    known = make_method(name, {}).hyperparameters()
    if not known:
        return
    key = data.draw(st.sampled_from(sorted(known)))
    value = data.draw(st.text(max_size=12) | st.integers() | st.floats() | st.none() | st.just("9" * 5000))
    try:
        made = make_method(name, {key: value})
    except UserError as error:
        one_sentence(error)
    else:
        assert make_method(name, made.hyperparameters()) == made
        json.dumps(made.hyperparameters(), allow_nan=False)


EXTREMES = ["9" * 400, "9" * 5000, "x" * 10**6, "-1", "é"]
OPTIONS = ["limit", "seeds", "batch_size", "tasks", "preset", "protocol", "dtype", "device", "models", "methods"]


@quickly
@given(
    st.sampled_from(OPTIONS), st.text(max_size=20) | st.sampled_from(["9" * 400, "9" * 5000, "x" * 10**6, "-1", "é"])
)
def test_options(icrbench: Commands, option: str, value: str) -> None:
    done = icrbench.run("--dry-run", **{option: f"{value}"})
    assert done.code in (0, 2)
    if done.code == 2 and value not in ("-h", "--help"):
        assert done.err.count("\n") == 1
        assert len(done.err) < SENTENCE


PATHS = ["data_dir", "tasks_dir", "methods_dir", "out", "cache_dir"]


@pytest.mark.parametrize("option", [*PATHS, "models"])
@pytest.mark.parametrize("value", ["x" * 300, "a/" + "y" * 256, "p/" * 3000], ids=["long", "part", "deep"])
def test_paths_that_no_file_can_have(icrbench: Commands, option: str, value: str) -> None:
    done = icrbench.run(**{option: icrbench.folder / value if option != "out" else value})
    icrbench.refused(done)


@pytest.mark.parametrize("option", ["data_dir", "tasks_dir", "methods_dir", "models", "out"])
def test_folders_that_may_not_be_read(icrbench: Commands, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = icrbench.folder / "closed"
    closed.mkdir()

    for name in ("iterdir", "mkdir"):
        original = getattr(Path, name)
        monkeypatch.setattr(Path, name, partialmethod(_closed, closed=closed, original=original))
    done = icrbench.run(**{option: closed / "below" if option in ("out", "models") else closed})
    icrbench.refused(done)


def _closed(path: Path, *rest: Any, closed: Path, original: Any, **more: Any) -> Any:
    if closed in (path, *path.parents):
        raise PermissionError(13, "Permission denied", str(path))
    return original(path, *rest, **more)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(model_folder(), tmp_path_factory.mktemp("models") / "whole"))


@quickly
@given(st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]), mutations)
def test_model_folders(whole_model: Path, name: str, change: Mutation) -> None:
    path = whole_model / name
    content = path.read_bytes()
    path.write_bytes(change.of(content))
    try:
        load_backbone(str(whole_model), device="cpu")
    except UserError as error:
        one_sentence(error)
    finally:
        path.write_bytes(content)


@quickly
@given(mutations)
def test_weights_that_are_damaged_are_no_other_model_unseen(whole_model: Path, change: Mutation) -> None:
    path = whole_model / "model.safetensors"
    content = path.read_bytes()
    before = load_backbone(str(whole_model), device="cpu").identity()
    path.write_bytes(change.of(content))
    try:
        assert load_backbone(str(whole_model), device="cpu").identity() != before
    except UserError as error:
        one_sentence(error)
    finally:
        path.write_bytes(content)
