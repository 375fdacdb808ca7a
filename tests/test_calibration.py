"""Priors: which texts are read, under which method, and that no test row and no label enters them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_setup import Commands, icrbench, lines
from icrbench.backbone import Backbone, Batch
from icrbench.backbone.reuse import Reused
from icrbench.data.find_tasks import load_tasks
from icrbench.data.rules import Protocol, Rules
from icrbench.data.sources import Demo
from icrbench.data.task import NO_LABEL
from icrbench.method import Fitted
from icrbench.protocol import Datasets
from icrbench.scoring import calibration
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.calibration import CONTENT_FREE, INPUTS, RANDOM_TEXTS, examples, measure
from icrbench.scoring.next_token import score
from icrbench.store.priors import read_priors
from method_setup import fit
from tiny import tiny_backbone

__all__ = ["icrbench"]  # a fixture

TASKS = load_tasks()
SST2, CSQA = TASKS["sst2"], TASKS["csqa"]
ZERO_SHOT = Fitted({}, {})


def datasets(names: str = "sst2", protocol: Protocol = "in_task") -> Datasets:
    return Datasets([TASKS[name] for name in names.split()], [], Demo(), Rules(protocol, False, None), Path("unused"))


def prior_files(icrbench: Commands, out: str = "out") -> dict[str, Any]:
    """The priors of every cell by task."""
    found = {
        record["cell"]["task"]: read_priors(icrbench.folder / out, record["key"]) for record in icrbench.records(out)
    }
    return found


# ---------------------------------------------------------------- the texts


def test_texts_without_content() -> None:
    found = examples(SST2, [SST2.options], None)
    assert set(found) == {"cc"}
    assert [example.fields["text"] for example in found["cc"][SST2.options]] == list(CONTENT_FREE)
    assert SST2.prompt(found["cc"][SST2.options][1]).endswith("Sentiment:")
    three = CSQA.options[:3]
    first = examples(CSQA, [three], None)["cc"][three][0]
    assert "A. N/A\nB. N/A\nC. N/A" in CSQA.prompt(first)
    assert "A/B/C" in CSQA.prompt(first)
    assert first.label == NO_LABEL


def test_random_words_are_those_of_the_inputs() -> None:
    inputs = datasets("csqa").inputs("csqa")
    assert inputs is not None
    texts = examples(CSQA, [CSQA.options], inputs)["dc"][CSQA.options]
    known = {word for example in inputs for word in example.fields["question"].split()}
    assert len(texts) == RANDOM_TEXTS == len({text.fields["question"] for text in texts})
    length = round(sum(len(example.fields["question"].split()) for example in inputs) / len(inputs))
    for text in texts:
        words = text.fields["question"].split()
        assert len(words) == length
        assert set(words) <= known
        assert [line[:3] for line in text.fields["choices"].split("\n")] == ["A. ", "B. ", "C. ", "D. ", "E. "]
    assert texts == examples(CSQA, [CSQA.options], inputs)["dc"][CSQA.options]


def test_inputs_are_train_rows_with_the_same_options_and_no_label() -> None:
    three = CSQA.options[:3]
    inputs = datasets("csqa").inputs("csqa")
    assert inputs is not None
    assert {example.label for example in inputs} == {NO_LABEL}
    some = [replace(example, options=three) if number < 5 else example for number, example in enumerate(inputs)]
    found = examples(CSQA, [three, CSQA.options], some)["bc"]
    assert {example.id for example in found[three]} == {example.id for example in some[:5]}
    assert {example.id for example in found[CSQA.options]} == {example.id for example in some[5:]}


@pytest.mark.parametrize(
    ("protocol", "task", "given"), [("paper", "sst2", True), ("paper", "mr", False), ("in_task", "mr", True)]
)
def test_what_a_protocol_gives(protocol: Protocol, task: str, given: bool) -> None:
    found = datasets(task, protocol)
    assert (found.inputs(task) is not None) == (found.inputs_sha256(task) is not None) == given


# ---------------------------------------------------------------- what is answered


class Reads(Fitted):
    """Notes the texts that a method which conditions on its query reads."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.seen: list[str] = []

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        self.seen += batch.texts
        yield


def test_a_method_reads_the_texts() -> None:
    fitted, texts = Reads(), examples(SST2, [SST2.options], None)
    measure(tiny_backbone("llama"), fitted, SST2, texts, ScoringOptions(), Reused())
    assert sorted(fitted.seen) == sorted(SST2.prompt(example) for example in texts["cc"][SST2.options])


def test_priors_are_under_the_method_behind_its_demonstrations() -> None:
    backbone, few_shot = tiny_backbone("llama"), fit("few_shot", per_class=2)
    texts = examples(SST2, [SST2.options], datasets().inputs("sst2"))
    (found,) = measure(backbone, few_shot, SST2, texts, ScoringOptions(), Reused())["cc"]
    own = texts["cc"][SST2.options]
    behind = [answer.option_logits for answer in score(backbone, few_shot, SST2, own)]
    alone = [answer.option_logits for answer in score(backbone, ZERO_SHOT, SST2, own)]
    assert [pytest.approx(logits, abs=1e-5) for logits in found.logits] == behind
    assert [pytest.approx(logits, abs=1e-3) for logits in found.logits] != alone


def test_what_a_method_shows_is_no_input() -> None:
    few_shot = fit("few_shot", per_class=4)
    inputs = datasets().inputs("sst2")
    assert inputs is not None
    shown = {
        example.id for example in inputs if any(SST2.prompt(example) in text for text in few_shot.prefix(SST2, example))
    }
    assert len(shown) == 8
    texts = examples(SST2, [SST2.options], inputs)
    (found,) = measure(tiny_backbone("llama"), few_shot, SST2, texts, ScoringOptions(), Reused())["bc"]
    assert set(found.ids) == {example.id for example in inputs} - shown


def test_no_more_inputs_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert INPUTS == 64
    monkeypatch.setattr(calibration, "INPUTS", 6)
    inputs = datasets().inputs("sst2")
    texts = examples(SST2, [SST2.options], inputs)
    (found,) = measure(tiny_backbone("llama"), ZERO_SHOT, SST2, texts, ScoringOptions(), Reused())["bc"]
    assert len(found.ids) == len(found.logits) == 6
    assert list(found.ids) == [example.id for example in texts["bc"][SST2.options][:6]]


# ---------------------------------------------------------------- in a run


def test_a_run_keeps_priors_where_the_protocol_allows(icrbench: Commands) -> None:
    assert icrbench.run(tasks="sst2,mr", priors=True).code == 0
    found = prior_files(icrbench)
    assert set(found["sst2"]["prompts"]) == {"cc", "dc", "bc"}
    assert set(found["mr"]["prompts"]) == {"cc"}  # out of domain a task has no inputs, and nothing stands in for them
    assert found["mr"]["inputs"] is None
    assert icrbench.run(tasks="mr", priors=True, protocol="in_task", out="own").code == 0
    assert set(prior_files(icrbench, "own")["mr"]["prompts"]) == {"cc", "dc", "bc"}


def test_a_short_run_adds_priors_and_scores_nothing(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    icrbench.run(methods="zero_shot,task_vector:layer=0")
    assert not (icrbench.folder / "out" / "priors").exists()
    before = {
        path: path.stat().st_mtime_ns
        for path in (icrbench.folder / "out").glob("*/*.*")
        if path.parent.name not in ("locks", "logs")
    }
    done = icrbench.run(methods="zero_shot,task_vector:layer=0", priors=True)
    assert done.counts == (0, 2, 0)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list((icrbench.folder / "out" / "priors").iterdir())) == 2
    priors = {path: path.read_bytes() for path in (icrbench.folder / "out" / "priors").iterdir()}
    monkeypatch.setattr("icrbench.runner.worker.Worker.priors", lambda *_: pytest.fail("they are there"))
    assert icrbench.run(methods="zero_shot,task_vector:layer=0", priors=True).code == 0
    assert all(path.read_bytes() == content for path, content in priors.items())


def reviews(folder: Path, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> Path:
    for split, rows in (("train", train), ("test", test)):
        lines(folder / "sst2" / f"{split}.jsonl", [{"sentence": text, "label": label} for text, label in rows])
    return folder


TRAIN = [(f"the film number {number} is a long one", number % 2) for number in range(9)]
TEST = [(f"a test of the {word} kind", 0) for word in ("first", "second", "third", "fourth")]
LONG = "and so a long and winding road to nowhere at all is what this film has to show"


def test_no_test_row_enters_a_prior(icrbench: Commands) -> None:
    shared = [*TRAIN, (TEST[1][0].upper(), 1), (LONG, 0)]  # one is a test row but for case, one is part of a test row
    data = reviews(icrbench.folder / "data", shared, [*TEST, (f"they say: {LONG}, indeed", 1)])
    for out, more in (("plain", ()), ("clean", ("--clean",))):
        done = icrbench.run(*more, data_dir=data, limit="all", priors=True, out=out)
        assert done.code == 0, done
        found = prior_files(icrbench, out)["sst2"]
        (read,) = found["prompts"]["bc"]
        rows = [int(name.removeprefix("sst2/train/")) for name in read["ids"]]
        expected = set(range(9)) | ({10} if out == "plain" else set())
        assert set(rows) == expected  # row 9 never
        assert found["overlap"] == (out == "plain")  # the text that is part of a test row: counted, or removed


def test_neither_labels_nor_other_test_rows_change_a_prior(icrbench: Commands) -> None:
    plain = reviews(icrbench.folder / "data", TRAIN, TEST)
    other = reviews(icrbench.folder / "other", [(text, 1 - label) for text, label in TRAIN], TEST)
    for out, data, limit in (("plain", plain, "all"), ("other", other, "all"), ("fewer", plain, 2)):
        assert icrbench.run(data_dir=data, limit=limit, priors=True, out=out).code == 0
    found = [prior_files(icrbench, out)["sst2"]["prompts"] for out in ("plain", "other", "fewer")]
    assert found[0] == found[1] == found[2]


def test_other_train_rows_give_other_priors(icrbench: Commands) -> None:
    """A method without a fit has the same cell whatever the train rows are, but not the same prior."""
    data = reviews(icrbench.folder / "data", TRAIN, TEST)
    icrbench.run(data_dir=data, limit="all", priors=True)
    first = prior_files(icrbench)["sst2"]
    reviews(data, TRAIN[:5], TEST)
    assert icrbench.run(data_dir=data, limit="all", priors=True).counts == (0, 1, 0)
    second = prior_files(icrbench)["sst2"]
    assert second["inputs"] != first["inputs"]
    assert len(second["prompts"]["bc"][0]["ids"]) == 5


def test_a_cell_without_priors_is_said(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("cannot read an empty text")

    monkeypatch.setattr("icrbench.runner.worker.measure", broken)
    done = icrbench.run(priors=True)
    assert done.code == 0
    assert "no priors: cannot read an empty text" in done.out
    assert "1 without priors" in done.out
    assert icrbench.records()[0]["status"] == "ok"


def test_a_report_of_a_run(icrbench: Commands) -> None:
    icrbench.run(methods="zero_shot,few_shot:per_class=2", tasks="sst2,trec", limit=6, priors=True)
    assert icrbench("report", icrbench.folder / "out", "--calibrate", "bc").code == 0
    assert (icrbench.folder / "out" / "leaderboard-bc.md").is_file()
    assert icrbench("report", icrbench.folder / "out", "--metric", "mcc", "--calibrate", "cc").code == 0
    assert (icrbench.folder / "out" / "leaderboard-cc-mcc.csv").is_file()
    done = icrbench("compare", icrbench.folder / "out", "few_shot:per_class=2", "zero_shot", "--calibrate", "bc")
    assert done.code == 0
    assert "calibrated by bc" in done.out
    icrbench.refused(icrbench("report", icrbench.folder / "out", "--metric", "f1"), "macro_f1")
    icrbench.refused(icrbench("report", icrbench.folder / "out", "--figures", "--metric", "mcc"), "--metric")
    content = json.loads(next((icrbench.folder / "out" / "priors").iterdir()).read_text())
    assert content["priors"]["command"].startswith("icrbench run")
