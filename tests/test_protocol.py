"""Which rows a method sees: never a test row, and out of domain only what the protocol allows."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cli_setup import lines
from icrbench.data.find_tasks import load_tasks
from icrbench.data.rules import Protocol, Rules
from icrbench.data.sources import Demo, LocalDir, Source, TaskData, load
from icrbench.data.task import Task
from icrbench.method import Method, Scope
from icrbench.methods.few_shot import FewShot
from icrbench.protocol import Datasets, needed_domains
from icrbench.registry import make_method
from icrbench.util.errors import UserError

TASKS = load_tasks()
DOMAINS = {"agnews", "csqa", "piqa", "sst2", "trec"}
PROTOCOLS: list[Protocol] = ["paper", "in_task"]
ZERO_SHOT, FEW_SHOT, ICR = (make_method(name, {}) for name in ("zero_shot", "few_shot", "icr"))


def datasets(
    names: str,
    *methods: Method,
    protocol: Protocol = "paper",
    clean: bool = False,
    limit: int | None = None,
    source: Source | None = None,
) -> Datasets:
    tasks = [TASKS[name] for name in names.split()]
    domains = needed_domains(TASKS.values(), tasks, methods, protocol)
    return Datasets(tasks, domains, source or Demo(), Rules(protocol, clean, limit), Path("unused"))


@pytest.mark.parametrize(
    ("protocol", "method", "task", "expected"),
    [
        ("paper", ZERO_SHOT, "sst2", set()),
        ("paper", FEW_SHOT, "sst2", {"sst2"}),
        ("paper", FEW_SHOT, "mr", DOMAINS),
        ("paper", FEW_SHOT, "cb", DOMAINS),
        ("paper", ICR, None, DOMAINS),
        ("in_task", ZERO_SHOT, "cb", set()),
        ("in_task", FEW_SHOT, "sst2", {"sst2"}),
        ("in_task", FEW_SHOT, "mr", {"mr"}),
        ("in_task", FEW_SHOT, "cb", {"cb"}),
        ("in_task", ICR, None, DOMAINS),
    ],
)
def test_pools_by_scope(protocol: Protocol, method: Method, task: str | None, expected: set[str]) -> None:
    found = datasets("sst2 mr cb", FEW_SHOT, ICR, protocol=protocol).for_fit(method, task)
    assert set(found.pools) == expected
    assert found.target == (task if task in expected else None)
    assert all(row.id.startswith(f"{name}/train/") for name, pool in found.pools.items() for row in pool.train)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_test_row_is_in_a_pool(protocol: Protocol) -> None:
    found = datasets(" ".join(TASKS), FEW_SHOT, ICR, protocol=protocol)
    for method, task in [(ICR, None), *((FEW_SHOT, name) for name in TASKS)]:
        for name, pool in found.pools(method, task).items():
            tested = {row.content_hash for row in found.data[name].test}
            assert not tested & {row.content_hash for row in pool.train}


@pytest.mark.parametrize(
    ("methods", "tasks", "protocol", "wanted"),
    [
        ([ZERO_SHOT], "sst2 cb", "paper", False),
        ([FEW_SHOT], "sst2", "paper", False),
        ([FEW_SHOT], "sst2 cb", "paper", True),
        ([FEW_SHOT], "sst2 cb", "in_task", False),
        ([ZERO_SHOT, ICR], "cb", "in_task", True),
    ],
)
def test_domains_are_loaded_only_for_who_needs_them(
    methods: list[Method], tasks: str, protocol: Protocol, wanted: bool
) -> None:
    chosen = [TASKS[name] for name in tasks.split()]
    found = needed_domains(TASKS.values(), chosen, methods, protocol)
    assert {task.name for task in found} == (DOMAINS if wanted else set())


def test_nothing_to_learn_from() -> None:
    found = Datasets([TASKS["cb"]], [], Demo(), Rules("paper", False, None), Path("unused"))
    with pytest.raises(UserError, match="no in-domain task"):
        found.pools(FEW_SHOT, "cb")


def test_the_test_rows_are_one_choice_for_all() -> None:
    alone = datasets("mr", limit=7).test("mr")
    among = datasets("sst2 mr cb", FEW_SHOT, ICR, protocol="in_task", clean=True, limit=7).test("mr")
    assert alone == among
    assert len(alone) == 7
    assert set(alone) <= set(datasets("mr").test("mr"))


SHARED = "the film is a long and winding road to nowhere at all"


def two_sentiment_tasks(folder: Path, train: list[dict[str, Any]]) -> LocalDir:
    for name, column in (("sst2", "sentence"), ("mr", "text")):
        lines(folder / name / "train.jsonl", [{column: row["text"], "label": row["label"]} for row in train])
        lines(folder / name / "test.jsonl", [{column: f"a {name} test", "label": 0}])
    lines(folder / "mr" / "test.jsonl", [{"text": f"And so {SHARED.upper()}!", "label": 0}, {"text": "x", "label": 1}])
    return LocalDir(folder)


def test_shared_texts_are_counted_and_with_clean_dropped(tmp_path: Path) -> None:
    train = [{"text": SHARED, "label": 0}, {"text": "fine", "label": 1}, {"text": "poor", "label": 0}]
    source = two_sentiment_tasks(tmp_path, train)
    plain = datasets("sst2 mr", FEW_SHOT, protocol="in_task", source=source)
    cleaned = datasets("sst2 mr", FEW_SHOT, protocol="in_task", source=source, clean=True)
    assert plain.overlap(FEW_SHOT, "mr") == {"mr->mr": 1}
    assert plain.overlap(FEW_SHOT, "mr") is not plain.overlap(FEW_SHOT, "mr")  # a record may keep it
    assert plain.overlap(FEW_SHOT, "sst2") == plain.overlap(ZERO_SHOT, "mr") == {}
    assert cleaned.overlap(FEW_SHOT, "mr") == {}
    for name in ("sst2", "mr"):  # sst2's pool, too, although mr alone holds the text among its test rows
        before, after = (found.pools(FEW_SHOT, name)[name] for found in (plain, cleaned))
        assert [row.id for row in after.train] == [f"{name}/train/1", f"{name}/train/2"]
        assert len(before.train) == 3
        assert before.sha256 != after.sha256


def test_clean_that_leaves_nothing(tmp_path: Path) -> None:
    source = two_sentiment_tasks(tmp_path, [{"text": SHARED, "label": 0}])
    with pytest.raises(UserError, match="nothing is left of the train rows of 'sst2'"):
        datasets("sst2 mr", FEW_SHOT, source=source, clean=True, protocol="in_task")


@pytest.mark.parametrize(
    "changed",
    [
        [{"text": "Fine", "label": 1}, {"text": "poor", "label": 0}],
        [{"text": "fine", "label": 0}, {"text": "poor", "label": 0}],
        [{"text": "poor", "label": 0}, {"text": "fine", "label": 1}],
        [{"text": "fine", "label": 1}],
    ],
)
def test_a_pools_hash_tells_apart_what_a_model_would_read(tmp_path: Path, changed: list[dict[str, Any]]) -> None:
    train = [{"text": "fine", "label": 1}, {"text": "poor", "label": 0}]
    one, two = (
        datasets("sst2", FEW_SHOT, source=two_sentiment_tasks(tmp_path / str(number), rows)).pools(FEW_SHOT, "sst2")
        for number, rows in enumerate((train, changed))
    )
    assert one["sst2"].sha256 != two["sst2"].sha256


def test_a_task_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(task: Task, source: Source) -> TaskData:
        loaded.append(task.name)
        return load(task, source)

    monkeypatch.setattr("icrbench.protocol.load", counted)
    datasets("sst2 mr", ICR)
    assert sorted(loaded) == sorted([*DOMAINS, "mr"])


class Everywhere(FewShot):
    scope: ClassVar[Scope] = Scope.UNIVERSAL


def test_universal_fits_see_no_target() -> None:
    assert datasets("mr", Everywhere()).for_fit(Everywhere(), None).target is None


def test_what_cleaning_leaves_does_not_depend_on_the_tasks_scored(tmp_path: Path) -> None:
    text = "a sentence long enough to be told apart from any other"
    source = LocalDir(tmp_path)
    for name, column, rows in (
        ("sst2", "sentence", [text, "another one about a film nobody has seen yet"]),
        ("mr", "text", [text, "a third one that no train split knows of at all"]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        lines = [json.dumps({column: row, "label": number, "idx": number}) for number, row in enumerate(rows)]
        (folder / "train.jsonl").write_text("\n".join(lines))
        (folder / "test.jsonl").write_text(json.dumps({column: rows[0] if name == "mr" else "quite new", "label": 0}))
    rules = Rules("in_task", True, None)
    alone = Datasets([TASKS["sst2"]], [], source, rules, tmp_path, TASKS.values())
    both = Datasets([TASKS["sst2"], TASKS["mr"]], [], source, rules, tmp_path, TASKS.values())
    assert alone.pools(FEW_SHOT, "sst2")["sst2"].sha256 == both.pools(FEW_SHOT, "sst2")["sst2"].sha256
    assert len(alone.pools(FEW_SHOT, "sst2")["sst2"].train) == 1
