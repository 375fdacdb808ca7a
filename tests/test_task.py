from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.data.rows import canonical_rows, to_examples
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Task
from icrbench.util.errors import UserError

BUILTIN = ["agnews", "csqa", "piqa", "sst2", "trec", "mr", "mrpc", "sst5", "ai2scie", "cb", "copa", "creak"]
WRITTEN = ["antonyms", "capitals", "sums"]

MINE = """\
name: mine
title: Mine
role: far_ood
version: 1
license: CC0
citation: none
source:
  files: {train: train.jsonl, test: test.jsonl}
fields:
  text: body
label:
  column: gold
  values: [0, 1]
template: |-
  Text: {text}
  Class:
options: [bad, good]
"""

CHOICES = {"label": ["A", "B", "C"], "text": ["a stone", "water", "fire"]}

# Task -> a row as its source gives it, the prompt written by hand, the answer.
EXPECTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "agnews": ({"text": "Oil rises.", "label": 3}, "News: Oil rises.\nType:", "Technology"),
    "sst2": ({"sentence": "a joy", "label": 1, "idx": 4}, "Review: a joy\nSentiment:", "positive"),
    "mr": ({"text": "a bore", "label": 0}, "Review: a bore\nSentiment:", "negative"),
    "trec": ({"text": "Who was Ada ?", "coarse_label": 3}, "Question: Who was Ada ?\nAnswer Type:", "Person"),
    "csqa": (
        {
            "question": "What is wet?",
            "choices": {"label": list("ABCDE"), "text": ["sand", "sea", "sun", "salt", "sky"]},
            "answerKey": "B",
        },
        "Question: What is wet?\nA. sand\nB. sea\nC. sun\nD. salt\nE. sky\nAnswer (A/B/C/D/E):",
        "B",
    ),
    "piqa": (
        {"goal": "Cool tea.", "sol1": "Heat it.", "sol2": "Add ice.", "label": 1},
        "Goal: Cool tea.\nA. Heat it.\nB. Add ice.\nAnswer (A/B):",
        "B",
    ),
    "sst5": ({"text": "it is fine", "label": 2}, "Sentence: it is fine\nSentiment:", "neutral"),
    "mrpc": (
        {"sentence1": "He ran .", "sentence2": "He was running .", "label": 1},
        "He ran . He was running .\nA. Paraphrase\nB. Not paraphrase\nAnswer (A/B):",
        "A",
    ),
    "cb": (
        {"premise": "Ann knows it rained.", "hypothesis": "it rained", "label": 0},
        "Ann knows it rained. it rained\nA. Entailment\nB. Contradiction\nC. Neutral\nAnswer (A/B/C):",
        "A",
    ),
    "copa": (
        {
            "premise": "He fell.",
            "choice1": "It was icy.",
            "choice2": "He sang.",
            "question": "cause",
            "label": 0,
        },
        "He fell. What was the cause of this?\nA. It was icy.\nB. He sang.\nAnswer (A/B):",
        "A",
    ),
    "creak": ({"sentence": "Paris is in Peru.", "label": "false"}, "Claim: Paris is in Peru.\nLabel:", "no"),
    "ai2scie": (
        {"question": "What puts out a flame?", "choices": CHOICES, "answerKey": "B"},
        "Question: What puts out a flame?\nA. a stone\nB. water\nC. fire\nAnswer (A/B/C):",
        "B",
    ),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write MINE with a replacement into a folder of tasks."""

    def write(old: str = "", new: str = "", name: str = "mine.yaml") -> Path:
        assert old in MINE
        (tmp_path / name).write_text(MINE.replace(old, new) if old else MINE, encoding="utf-8")
        return tmp_path

    return write


def test_the_twelve_tasks_by_role_then_name() -> None:
    tasks = load_tasks(None)
    assert list(tasks) == [*BUILTIN, *WRITTEN]
    assert [task.name for task in get_tasks("id")] == ["agnews", "csqa", "piqa", "sst2", "trec"]
    assert [task.name for task in get_tasks("near_ood")] == ["mr", "mrpc", "sst5"]
    assert [task.name for task in get_tasks("far_ood")] == ["ai2scie", "cb", "copa", "creak"]


@pytest.mark.parametrize("name", BUILTIN)
def test_prompts_written_by_hand(name: str) -> None:
    row, prompt, answer = EXPECTED[name]
    task = load_tasks()[name]
    (example,) = to_examples(task, "test", canonical_rows("rows", [row]))
    assert task.prompt(example) == prompt
    assert task.answer(example) == answer
    assert task.demonstration(example) == f"{prompt} {answer}"
    assert example.id == f"{name}/test/0"


def test_every_label_of_every_task_maps_to_its_option() -> None:
    expected: dict[str, dict[Any, str]] = {
        "agnews": {0: "World", 1: "Sports", 2: "Business", 3: "Technology"},
        "sst2": {0: "negative", 1: "positive"},
        "mr": {0: "negative", 1: "positive"},
        "trec": dict(enumerate(["Abbreviation", "Entity", "Description", "Person", "Location", "Number"])),
        "sst5": dict(enumerate(["terrible", "negative", "neutral", "positive", "great"])),
        "mrpc": {1: "A", 0: "B"},
        "cb": {0: "A", 1: "B", 2: "C"},
        "creak": {"true": "yes", "false": "no"},
        "piqa": {0: "A", 1: "B"},
        "copa": {0: "A", 1: "B"},
        "csqa": {letter: letter for letter in "ABCDE"},
        "ai2scie": {letter: letter for letter in "ABC"},
    }
    for task in get_tasks("all"):
        name = task.name
        for value, option in expected[name].items():
            row = {**EXPECTED[name][0], task.label_column: value}
            (example,) = to_examples(task, "test", canonical_rows("rows", [row]))
            assert task.answer(example) == option, (name, value)


def test_ai2scie_takes_up_to_eight_choices() -> None:
    assert load_tasks()["ai2scie"].max_options == 8
    assert load_tasks()["csqa"].max_options == 5


def test_braces_in_the_data_are_text() -> None:
    task = load_tasks()["mr"]
    row = {"text": "{text} {0} {{x}}", "label": 0}
    (example,) = to_examples(task, "test", canonical_rows("rows", [row]))
    assert task.prompt(example) == "Review: {text} {0} {{x}}\nSentiment:"


def test_demonstrations_are_joined_by_a_line_break() -> None:
    assert DEMONSTRATION_SEPARATOR == "\n"


def test_get_tasks_keeps_the_order_asked_and_names_each_once() -> None:
    assert [task.name for task in get_tasks("sst2, mr,near_ood")] == ["sst2", "mr", "mrpc", "sst5"]
    assert [task.name for task in get_tasks("all")] == BUILTIN


def test_get_tasks_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown task 'sst3': did you mean .*sst2"):
        get_tasks("sst3")
    with pytest.raises(UserError, match="no task in ' , '"):
        get_tasks(" , ")


def test_a_users_task_joins_the_others(write: Callable[..., Path]) -> None:
    folder = write()
    assert [task.name for task in get_tasks("mine,cb", folder)] == ["mine", "cb"]
    assert len(load_tasks(folder)) == len([*BUILTIN, *WRITTEN, "mine"])


def test_a_block_template_may_end_in_a_line_break(write: Callable[..., Path]) -> None:
    task = load_tasks(write("template: |-", "template: |"))["mine"]
    (example,) = to_examples(task, "test", canonical_rows("rows", [{"body": "x", "gold": 1}]))
    assert task.demonstration(example) == "Text: x\nClass: good"


def test_identity_holds_what_changes_a_result(write: Callable[..., Path]) -> None:
    def identity(old: str = "", new: str = "") -> dict[str, object]:
        return load_tasks(write(old, new))["mine"].identity()

    base = identity()
    assert base["template"] == "Text: {text}\nClass:"
    for old, new in [
        ("version: 1", "version: 2"),
        ("Class:", "Kind:"),
        ("[bad, good]", "[poor, good]"),
        ("[0, 1]", "[1, 0]"),
        ("text: body", "text: other"),
    ]:
        assert identity(old, new) != base
    assert identity("title: Mine", "title: Other") == base


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "problem"),
    [
        ("role: far_ood", "role: ood", 3, "role", "'ood' is no role"),
        ("role: far_ood", "roles: far_ood", 3, "roles", "did you mean role"),
        ("title: Mine\n", "", 1, "title", "missing"),
        ("title: Mine", "name: mine", 2, "name", "stands twice"),
        ("name: mine", "name: My task", 1, "name", "lower-case"),
        ("name: mine", "name: near_ood", 1, "name", "group of tasks"),
        ("version: 1", "version: one", 4, "version", "whole number"),
        ("version: 1", "version: true", 4, "version", "whole number"),
        ("[bad, good]", "[bad, bad]", 17, "options", "'bad' twice"),
        ("[bad, good]", "[yes, no]", 17, "options", "quote it"),
        ("[bad, good]", "good", 17, "options", "must be a list"),
        ("[bad, good]", "[good]", 17, "options", "at least two"),
        ("[bad, good]", '[bad, " good"]', 17, "options", "spaces around"),
        (
            "Text: {text}",
            "Text: {body}",
            14,
            "template",
            r"uses \{body\}, which is not mapped: known fields are text",
        ),
        ("Text: {text}", "Text: {text!r}", 14, "template", "not mapped"),
        ("Text: {text}", "Text: {text", 14, "template", "brace"),
        ("Text: {text}", "Text:", 14, "template", r"does not use \{text\}"),
        ("text: body", "text: body\n  more: other", 15, "template", r"does not use \{more\}"),
        ("text: body", "choices: body", 10, "fields.choices", "kept for multiple choice"),
        ("[0, 1]", "[0, 1, 2]", 13, "label.values", "3 values for 2 options"),
        ("[0, 1]", "[0, 0]", 13, "label.values", "twice"),
        ("[0, 1]", "names", 13, "label.values", "needs 'choices'"),
        ("column: gold", "colum: gold", 12, "label.colum", "did you mean column"),
        ("files:", "file:", 8, "source.file", "did you mean files"),
        ("{train: train.jsonl, test", "{test", 8, "source.files.train", "missing"),
        ("source:\n", "source: here\nsauce:\n", 8, "sauce", "unknown key 'sauce'"),
        ("options:", "choices: [a, b]\noptions:", 18, "options", "letters A, B, C"),
    ],
)
def test_a_broken_file_is_named_with_line_and_key(
    write: Callable[..., Path], old: str, new: str, line: int, key: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        load_tasks(write(old, new))
    assert f"mine.yaml, line {line}, key '{key}'" in str(caught.value)


def test_yaml_syntax_errors_name_the_line(write: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml, line 18: this is not valid YAML"):
        load_tasks(write("options: [bad, good]", "options: [bad, good"))
    with pytest.raises(UserError, match=r"mine\.yaml, line 2: this is not valid YAML"):
        load_tasks(write("title: Mine", "\ttitle: Mine"))


@pytest.mark.parametrize(
    "content", [b"", b"- a\n- b\n", b"just text", b"\xff\xfe\x00", b"name: !!python/object:os.x {}"]
)
def test_a_file_that_is_no_mapping(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"odd\.yaml"):
        load_tasks(tmp_path)


def test_names_must_be_new(write: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="'sst2' is a built-in task"):
        load_tasks(write("name: mine", "name: sst2"))
    write()
    with pytest.raises(UserError, match="both name the task 'mine'"):
        load_tasks(write(name="again.yml"))


def test_a_missing_or_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_tasks(tmp_path / "none")
    with pytest.raises(UserError, match=r"holds no \.yaml file"):
        load_tasks(tmp_path)


@pytest.mark.parametrize("task", get_tasks("all"), ids=lambda task: task.name)
def test_built_in_files_say_where_the_data_is_from(task: Task) -> None:
    assert task.license
    assert task.citation
    assert task.name in EXPECTED
