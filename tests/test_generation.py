"""Written answers: greedy, under every method, whatever the batch; and how they are compared with the right ones."""

from dataclasses import replace
from typing import Any

import pytest

from cli_setup import Commands, icrbench, model_folder, task_folder
from icrbench.backbone import make_batch
from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.data.rows import canonical_rows, to_examples
from icrbench.data.sources import Demo, load
from icrbench.data.task import Example
from icrbench.method import Fitted
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import Scored, score
from icrbench.scoring.written import exact_match, token_f1, words
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from reference import reference_logits
from test_scoring import ZERO_SHOT, AtTheEnd, Routed, Shown, families
from tiny import tiny_backbone

__all__ = ["icrbench"]

ANTONYMS = replace(load_tasks()["antonyms"], max_new_tokens=6)


def some_words(count: int = 6) -> list[Example]:
    return [
        Example(f"antonyms/test/{number}", {"word": "very " * number + "old"}, ("new",), 0, f"{number:016x}")
        for number in range(count)
    ]


def written(family: str, fitted: Fitted, **options: Any) -> list[Scored]:
    return score(tiny_backbone(family), fitted, ANTONYMS, some_words(), ScoringOptions(**options))


@families
def test_every_token_is_the_likeliest(family: str) -> None:
    backbone = tiny_backbone(family)
    for one in written(family, ZERO_SHOT)[:3]:
        tokens: list[int] = []
        for _ in range(ANTONYMS.max_new_tokens):
            logits = reference_logits(family, make_batch([[*one.prompt.tokens, *tokens]], [""]))[0, -1]
            tokens.append(int(logits.argmax()))
            if tokens[-1] == backbone.tokenizer.eos_token_id or "\n" in backbone.tokenizer.decode(tokens):
                break
        text = str(backbone.tokenizer.decode(tokens, skip_special_tokens=True))
        assert one.text == text.split("\n")[0].strip()


@families
@pytest.mark.parametrize("fitted", [AtTheEnd, Routed, Shown])
def test_neither_batches_nor_a_cached_prefix_change_texts(family: str, fitted: type[Fitted]) -> None:
    method = fitted({"family": family}, {})
    wanted = [one.text for one in written(family, method, batch_size=1, prefix_cache=False)]
    assert [one.text for one in written(family, method)] == wanted
    assert [one.text for one in written(family, method, batch_size=4)] == wanted
    if (family, fitted) != ("gpt_neox", Routed):  # which repeats one letter, routed or not
        assert wanted != [one.text for one in written(family, ZERO_SHOT)]


def test_an_answer_ends_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    answer = backbone.encode(" New\nWord")[1:]
    passes = iter(answer)

    def told(_backbone: object, _fitted: object, states: Any) -> Any:
        token = next(passes)
        return states.new_full((len(states),), token).long()

    monkeypatch.setattr("icrbench.scoring.generation._likeliest", told)
    (one,) = score(backbone, ZERO_SHOT, ANTONYMS, some_words(1))
    assert (one.text, one.prediction, one.f1) == ("New", 0, 1.0)
    assert len(list(passes)) == len("Word")  # what would follow was not computed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Answer, is 'New'.", ["answer", "is", "new"]),
        ("-3.5", ["-3.5"]),
        ("(-3)", ["-3"]),
        ("- 3", ["3"]),
        ("well-known", ["well-known"]),
        ("a", ["a"]),
        ("...", []),
    ],
)
def test_normalised_words(text: str, wanted: list[str]) -> None:
    assert words(text) == wanted


def test_exact_match_and_f1() -> None:
    assert exact_match("the New Delhi.", "New Delhi")
    assert not exact_match("Delhi New", "New Delhi")
    assert not exact_match("-3", "3")
    assert not exact_match("25", "2.5")
    assert token_f1("Delhi New", "New Delhi") == 1
    assert token_f1("New York City", "New Delhi") == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert token_f1("new new", "new") == pytest.approx(2 / 3)  # a word counts as often as it is right
    assert token_f1("old", "new") == token_f1("", "new") == 0


def test_bundled_tasks_are_whole_and_not_among_all() -> None:
    assert [task.name for task in get_tasks("open_ended")] == ["antonyms", "capitals", "sums"]
    assert not {"antonyms", "capitals", "sums"} & {task.name for task in get_tasks("all")}
    for task in get_tasks("open_ended"):
        data = load(task, Demo())
        assert (len(data.train), len(data.test), data.provenance.kind) == (40, 40, "demo")
        for example in (*data.train, *data.test):
            assert task.demonstration(example) == f"{task.prompt(example)} {example.options[0]}"
            assert words(task.answer(example))


def test_an_answer_must_be_one_line_of_text() -> None:
    for answer in ("", "two\nlines", None):
        with pytest.raises(UserError, match="opposite"):
            to_examples(ANTONYMS, "test", canonical_rows("here", [{"word": "old", "opposite": answer}]))


def test_a_run_keeps_texts_and_has_a_table_of_its_own(icrbench: Commands) -> None:
    done = icrbench.run(tasks="sst2,antonyms", methods="zero_shot,few_shot", models=model_folder())
    assert done.counts == (4, 0, 0), done
    store = Store(icrbench.folder / "out")
    (record,) = [r for r in store.records() if r["cell"]["task"] == "antonyms" and r["cell"]["method"] == "few_shot"]
    rows = store.rows(record["key"], ["text", "gold_text", "f1", "correct", "prediction"]).to_pylist()
    assert len(rows) == 4
    for row in rows:
        assert row["correct"] == exact_match(row["text"], row["gold_text"]) == (row["prediction"] == 0)
        assert row["f1"] == pytest.approx(token_f1(row["text"], row["gold_text"]))
    result = record["result"]
    assert result is not None
    assert result["f1"] == pytest.approx(sum(row["f1"] for row in rows) / 4)
    shown = icrbench("report", icrbench.folder / "out").out
    chosen, written = shown.split("written answers", 1)
    assert "Token F1 by task" not in chosen
    assert "antonyms" not in chosen.split("## ")[1]
    assert "Token F1 by task" in written
    assert "Exact match by task" in written
    assert "sst2" not in written.split("Provenance")[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "far_ood"}, ["role", "do not go together"]),
        ({"options": ["a", "b"]}, ["options", "remove it"]),
        ({"max_new_tokens": None}, ["max_new_tokens", "missing"]),
        ({"label": {"column": "label", "values": [0, 1]}}, ["values"]),
        ({"answer": "write"}, ["answer", "no form of answer"]),
    ],
)
def test_mistakes_in_a_task_file_are_named(icrbench: Commands, changes: dict[str, Any], words: list[str]) -> None:
    whole = {"answer": "generate", "role": "open_ended", "max_new_tokens": 4, "label": {"column": "text"}}
    changes = {"options": None, **changes}
    folder = task_folder(icrbench.folder / "tasks", **{**whole, **changes})
    icrbench.refused(icrbench.run(tasks="mine", tasks_dir=folder), "mine.yaml", *words)
