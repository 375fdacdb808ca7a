import pytest

from icr_setup import pools
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.data.find_tasks import load_tasks
from icrbench.method import Fitted
from icrbench.methods.task_vector import TaskVector
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.toolkit.selection import accuracies, batches, best, by_accuracy, by_layer
from icrbench.util.errors import UserError
from tiny import LAYERS, tiny_backbone


class Favouring(Fitted):
    """Makes one option's word likely: the state before the output head becomes that word's row of the head."""

    def intervene(self, backbone, batch):  # type: ignore[no-untyped-def]
        row = 50 * backbone.model.get_output_embeddings().weight[self.config["token"]]
        return steered(backbone, batch, {Site("block", LAYERS - 1): lambda states: row.expand_as(states)}, "last")


def held_out(count: int = 12) -> list[Question]:
    rows = [Labelled(load_tasks()["sst2"], row) for row in pools("sst2")["sst2"].train[:count]]
    return Questions(tiny_backbone("llama")).zero_shot(rows)


@pytest.mark.parametrize("last_token_only", [True, False])
def test_accuracy_is_the_share_of_questions_whose_option_wins(last_token_only: bool) -> None:
    questions = held_out()
    options = questions[0].prompt.options
    candidates = [Favouring({"token": token}, {}) for token in options]
    share = [sum(question.label == label for question in questions) / len(questions) for label in range(len(options))]
    found = accuracies(tiny_backbone("llama"), candidates, questions, last_token_only=last_token_only)
    assert found == pytest.approx(share)
    assert sum(found) == pytest.approx(1)


def test_of_equals_the_first_is_best() -> None:
    assert best([0.5, 0.75, 0.75, 0.2]) == 1


def test_batches_hold_every_question_once() -> None:
    backbone, questions = tiny_backbone("llama"), held_out()
    seen = [question for own, batch in batches(backbone, questions) for question in own if batch.texts]
    assert sorted(id(question) for question in seen) == sorted(id(question) for question in questions)


def test_a_given_layer_is_taken_without_trying() -> None:
    candidates = [Fitted({"layer": layer}, {}) for layer in range(3)]
    assert by_layer(TaskVector(), 2, tiny_backbone("llama"), candidates, []) is candidates[2]
    with pytest.raises(UserError, match=r"task_vector\.layer must be 0 to 2 for this model, not -1\."):
        by_layer(TaskVector(), -1, tiny_backbone("llama"), candidates, [])


class Biased(Fitted):
    """Answers as the plain model, but for a constant added to one option's logit."""

    def logits(self, backbone, states, token_ids=None):  # type: ignore[no-untyped-def]
        found = backbone.logits(states, token_ids)
        found[:, self.config["token"]] += self.config["bias"]
        return found


@pytest.mark.parametrize("last_token_only", [True, False])
def test_calibrated_accuracy_overlooks_a_constant_preference(last_token_only: bool) -> None:
    questions = held_out(13)
    token = questions[0].prompt.options[0]
    candidates = [Biased({"token": token, "bias": bias}, {}) for bias in (0.0, 9.0)]
    backbone = tiny_backbone("llama")
    raw = accuracies(backbone, candidates, questions, last_token_only=last_token_only)
    assert raw[1] == sum(question.label == 0 for question in questions) / 13  # always the same option
    plain, biased = accuracies(backbone, candidates, questions, "calibrated", last_token_only=last_token_only)
    assert plain == biased
    chosen = by_accuracy(backbone, candidates, questions, "calibrated", last_token_only=last_token_only)
    assert chosen.config["chosen_by"] == "calibrated"
    assert chosen.config["sweep"] == [plain, biased]


def test_a_single_question_of_its_options_is_left_as_it_is() -> None:
    """Its own prior would make every option alike."""
    questions = held_out(1)
    candidates = [Biased({"token": token, "bias": 9.0}, {}) for token in questions[0].prompt.options]
    found = accuracies(tiny_backbone("llama"), candidates, questions, "calibrated", last_token_only=True)
    assert sorted(found) == [0, 1]
