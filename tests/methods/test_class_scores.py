"""Hidden calibration and kNN prompting: nearest by the formulas and by the authors' code, scored like any method."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from icr_setup import demo_pool, demo_test, pools
from icrbench.data.find_tasks import load_tasks
from icrbench.data.sources import Demo
from icrbench.method import FitData
from icrbench.methods.few_shot import FewShotFitted
from icrbench.methods.hidden_calibration import HiddenCalibrationFitted
from icrbench.methods.knn_prompting import KNNPromptingFitted, divergences, votes
from icrbench.protocol import Datasets, Rules
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.next_token import score
from icrbench.toolkit.class_scores import OUT_OF_QUESTION, ClassScores
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.util.errors import UserError
from method_setup import DOMAINS, Slow, fit, zero_shot_questions
from official import golden
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)
names = pytest.mark.parametrize("name", ["hidden_calibration", "knn_prompting"])
SST2 = load_tasks()["sst2"]


def read(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The prompts a fit will ask, with and without demonstrations."""
    found: list[Question] = []
    call = Questions.__call__

    def noted(self: Questions, query: Labelled, demonstrations: Any = ()) -> Question:
        found.append(call(self, query, demonstrations))
        return found[-1]

    monkeypatch.setattr(Questions, "__call__", noted)
    return found


def test_centroids_are_the_official_ones() -> None:
    given = golden("hidden_calibration")
    states, labels = torch.tensor(given["inputs"]["states"]), torch.tensor(given["inputs"]["labels"])
    centroids = torch.stack([states[labels == number].mean(0) for number in range(3)])
    fitted = HiddenCalibrationFitted({}, {"centroids": centroids})
    found = fitted.class_scores(tiny_backbone("llama"), torch.tensor(given["inputs"]["queries"])).softmax(1)
    torch.testing.assert_close(found, torch.tensor(given["expected"]["probabilities"]), rtol=1e-4, atol=1e-5)
    assert len(set(found.argmax(1).tolist())) == 3


@pytest.mark.parametrize("neighbours", [1, 3, 4])
def test_votes_are_the_official_ones(neighbours: int) -> None:
    given = golden("knn_prompting")
    inputs = given["inputs"]
    distances = divergences(torch.tensor(inputs["anchors"]), torch.tensor(inputs["queries"]))
    found = votes(distances, inputs["labels"], neighbours, inputs["classes"])
    assert found.argmax(1).tolist() == given["expected"]["predictions"][str(neighbours)]
    assert set(found.sum(1).tolist()) == {neighbours}


def test_equal_votes_go_to_the_lowest_class_and_equal_distances_to_the_first() -> None:
    distances = torch.tensor([[0.2, 0.1, 0.3, 0.3]])
    assert votes(distances, [2, 1, 0, 1], 2, 3).tolist() == [[0, 1, 1]]
    assert votes(distances, [2, 1, 0, 1], 3, 3).tolist() == [[1, 1, 1]]


@families
@pytest.mark.parametrize("shots", ["zero", "few"])
def test_they_are_what_the_formulas_say_in_float64(family: str, shots: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    questions = read(monkeypatch)
    settings = {"rows_per_class": 3, "shots": shots, "demonstrations": 2}
    fitted = fit("hidden_calibration", backbone, **settings)
    rows = [(own.label, slow.outputs(own.prompt.tokens)["final", LAYERS - 1][-1]) for own in questions]
    assert Counter(label for label, _ in rows) == {0: 3, 1: 3}
    centroids = torch.stack([torch.stack([h for own, h in rows if own == label]).mean(0) for label in (0, 1)])
    torch.testing.assert_close(fitted.tensors["centroids"].double(), centroids, rtol=1e-4, atol=1e-4)
    anchors = torch.stack([slow.logits(own.prompt.tokens)[-1] for own in questions]).log_softmax(1)
    nearest = fit("knn_prompting", backbone, **settings, neighbours=3)
    test = demo_test("sst2")[:6]
    found = score(backbone, fitted, SST2, test)
    voted = score(backbone, nearest, SST2, test)
    for own, vote in zip(found, voted, strict=True):
        state = slow.outputs(own.prompt.tokens)["final", LAYERS - 1][-1]
        wanted = -(centroids - state).norm(dim=1)
        torch.testing.assert_close(torch.tensor(own.option_logits).double(), wanted, rtol=1e-4, atol=1e-4)
        query = slow.logits(own.prompt.tokens)[-1].log_softmax(0)
        order = (anchors.exp() * (anchors - query)).sum(1).argsort()[:3].tolist()
        assert list(vote.option_logits) == [sum(rows[place][0] == label for place in order) for label in (0, 1)]


@names
def test_demonstrations_are_those_before_the_rows_and_none_of_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    questions = read(monkeypatch)
    fitted = fit(name, backbone, rows_per_class=3, shots="few", demonstrations=4)
    texts = fitted.prefix(SST2, demo_test("sst2")[0])
    assert len(texts) == 4
    lead = tuple(backbone.encode("\n".join(texts) + "\n"))
    assert all(own.prompt.tokens[: len(lead)] == lead for own in questions)
    assert not any(text.startswith(own.prompt.text) for own in questions for text in texts)
    shown = FewShotFitted({"demonstrations": list(texts)}, {})
    assert [own.prompt.tokens for own in score(backbone, fitted, SST2, demo_test("sst2")[:3])] == [
        own.prompt.tokens for own in score(backbone, shown, SST2, demo_test("sst2")[:3])
    ]
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims)
    assert fitted.cached_parameters > 2 * fitted.config["tokens"] * LAYERS
    assert make_method(name, {"shots": "few"}).explicit
    assert not make_method(name, {}).explicit


@names
def test_whatever_is_no_class_is_out_of_question(name: str) -> None:
    backbone, fitted = tiny_backbone("llama"), fit(name, rows_per_class=3)
    states = torch.randn(2, 5, backbone.dims.hidden, generator=torch.Generator().manual_seed(0))
    whole = fitted.logits(backbone, states)
    assert whole.shape == (2, 5, 300)
    classes = zero_shot_questions(backbone)[0].prompt.options
    assert fitted.config["classes"] == list(classes)
    others = [token for token in range(300) if token not in classes]
    assert (whole[..., others] == OUT_OF_QUESTION).all()
    assert (whole[..., list(classes)] > OUT_OF_QUESTION / 2).all()
    wanted = torch.tensor([*classes, 7])
    assert torch.equal(fitted.logits(backbone, states, wanted), whole[..., wanted])


@names
def test_classes_are_letters_where_answers_are_listed(name: str) -> None:
    backbone = tiny_backbone("llama")
    fitted = fit(name, backbone, ("csqa",), "csqa", rows_per_class=2)
    task = load_tasks()["csqa"]
    assert len(fitted.config["classes"]) == 5
    assert all(len(own.option_logits) == 5 for own in score(backbone, fitted, task, demo_test("csqa")[:3]))


def test_a_class_without_rows_is_never_given() -> None:
    pool = demo_pool("trec")
    some = tuple(row for row in pool.train if row.label in (1, 4))
    data = FitData({"trec": type(pool)(pool.task, some, "x")}, "trec", Path("unused"))
    backbone = tiny_backbone("llama")
    for name in ("hidden_calibration", "knn_prompting"):
        fitted = make_method(name, {"rows_per_class": 2}).fit(backbone, data, Randomness(0))
        assert {own.prediction for own in score(backbone, fitted, pool.task, demo_test("trec")[:8])} <= {1, 4}


@names
def test_tasks_without_rows_of_their_own_have_no_cells(name: str) -> None:
    method = make_method(name, {})
    with pytest.raises(UserError, match="labelled rows of the task itself"):
        method.fit(tiny_backbone("llama"), FitData(pools(*DOMAINS), None, Path("unused")), Randomness(0))


def test_the_protocol_says_where_they_apply(tmp_path: Path) -> None:
    tasks = [load_tasks()[name] for name in ("sst2", "cb")]
    method = make_method("hidden_calibration", {})
    for protocol, wanted in (("paper", [True, False]), ("in_task", [True, True])):
        domains = [load_tasks()[name] for name in DOMAINS]
        data = Datasets(tasks, domains, Demo(), Rules(protocol, False, None), tmp_path)  # type: ignore[arg-type]
        assert [data.applies(method, task.name) for task in tasks] == wanted
        assert all(data.applies(make_method("ltv", {}), task.name) for task in tasks)


def test_kept_are_states_not_distributions() -> None:
    fitted = fit("knn_prompting", rows_per_class=4)
    assert isinstance(fitted, KNNPromptingFitted)
    assert isinstance(fitted, ClassScores)
    assert fitted.tensors["anchors"].shape == (8, 48)
    assert fitted.cached_parameters == 8 * 48
