"""What the bundled tasks make of answers, and what becomes of numbers that are none."""

import json
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import torch
from lm_eval.api.model import LM

from icrbench.backbone import Backbone
from icrbench.lm_eval import ICRBenchLM
from icrbench.method import Fitted
from icrbench.util.errors import UserError
from lm_eval_setup import NAMES, artefact, evaluate
from tiny import tiny_backbone, tiny_model, tokenizer


class Says(LM):  # type: ignore[misc]  # lm-eval ships no types
    """Answers each question of the short answers in a given manner."""

    def __init__(self, manner: str) -> None:
        super().__init__()
        rows = resources.files("icrbench.lm_eval.example_tasks") / "short_answers.jsonl"
        self._answers = {
            row["question"]: row["answer"] for row in map(json.loads, rows.read_text("utf-8").splitlines())
        }
        self._manner = manner

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        questions = [request.args[0].split("\n")[0].removeprefix("Question: ") for request in requests]
        return [self._manner.format(self._answers[question]) for question in questions]

    def loglikelihood(self, requests: Any) -> Any: ...

    def loglikelihood_rolling(self, requests: Any) -> Any: ...


@pytest.mark.parametrize(
    ("manner", "score"),
    [("{}", 1.0), (" {}", 1.0), ("\t{} ", 1.0), (' "{}"', 1.0), (" {}, of course", 1.0), (" not {}", 0.0), ("", 0.0)],
)
def test_a_right_answer_scores(manner: str, score: float) -> None:
    results = evaluate(Says(manner), ["icrbench_short_answers"])["results"]["icrbench_short_answers"]
    assert results["exact_match,first_word"] == score


def test_upper_case_scores() -> None:
    lm = Says("{}")
    lm._answers = {question: answer.upper() for question, answer in lm._answers.items()}
    assert evaluate(lm, ["icrbench_short_answers"])["results"]["icrbench_short_answers"]["exact_match,first_word"] == 1


@pytest.fixture(scope="module")
def damaged() -> Backbone:
    """A model with one weight that is no number, as no file of a model may have."""
    whole = tiny_backbone("llama")
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_decoder().layers[2].mlp.up_proj.weight[3, 4] = torch.nan  # type: ignore[operator]
    return Backbone(model, tokenizer(), replace(whole.revision, name="damaged"))


@pytest.mark.parametrize("task", NAMES)
def test_numbers_that_are_none_are_no_score(damaged: Backbone, task: str) -> None:
    lm = ICRBenchLM(damaged, artefact(Fitted({}, {})))
    with pytest.raises(UserError, match=r"are not finite on model 'damaged': its weight .*up_proj.* fetch the model"):
        evaluate(lm, [task], limit=2)
