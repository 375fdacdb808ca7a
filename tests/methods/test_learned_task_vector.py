from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from icrbench.backbone.last_token import prepared
from icrbench.methods.learned_task_vector import LearnedTaskVectorFitted
from icrbench.toolkit.distillation import answer_loss
from icrbench.toolkit.episodes import Question
from icrbench.toolkit.selection import question_batch
from icrbench.util.errors import UserError
from method_setup import Slow, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

SMALL: dict[str, Any] = {"per_class": 2, "epochs": 3, "batch_size": 2, "held_out": 6}
families = pytest.mark.parametrize("family", FAMILIES)


def added(vector: Tensor, layer: int, where: str = "last") -> LearnedTaskVectorFitted:
    return LearnedTaskVectorFitted({"layer": layer, "where": where, "sweep": []}, {"vector": vector})


def some_vector() -> Tensor:
    return torch.randn(48, generator=torch.Generator().manual_seed(3))


@families
@pytest.mark.parametrize("where", ["last", "all"])
def test_it_is_added_to_the_states_after_its_block(family: str, where: Any) -> None:
    """Against a model in float64 with a hook of its own."""
    backbone, vector = tiny_backbone(family), some_vector()
    (question,) = zero_shot_questions(backbone, count=1)

    def edit(states: Tensor) -> Tensor:
        more = torch.zeros_like(states)
        more[-1 if where == "last" else slice(None)] = vector.double()
        return states + more

    wanted = Slow(family).logits(question.prompt.tokens, {("block", 2): edit})[-1]
    found = logits(backbone, added(vector, 2, where), [question])[0]
    torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=1e-3)
    assert (found - logits(backbone, None, [question])[0]).abs().max() > 0.1


@families
def test_gradients_behind_cached_keys_are_those_of_whole_prompts(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = zero_shot_questions(backbone, count=3)
    texts = [question.prompt.text for question in questions]
    ends = prepared(backbone, [0, 1, 2], [question.prompt.tokens for question in questions], texts)
    whole = question_batch(backbone, questions)
    gradients = []
    for batch, states in ((ends.batch, ends.states), (whole, lambda: whole.at_last(backbone.hidden_states(whole)))):
        vector = (0.1 * some_vector()).requires_grad_(True)
        with added(vector, 1).applied(backbone, batch):
            found = states()
        answer_loss(backbone.logits(found), questions).backward()
        assert vector.grad is not None
        gradients.append(vector.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)
    assert gradients[0].abs().max() > 1e-3


@families
def test_after_the_last_block_the_loss_is_that_of_the_head_by_hand(family: str) -> None:
    slow, vector = Slow(family), some_vector()
    backbone = tiny_backbone(family)
    questions = zero_shot_questions(backbone, count=3)
    losses = []
    for question in questions:
        state = slow.outputs(question.prompt.tokens)["block", LAYERS - 1][-1]
        by_hand = slow.model.get_output_embeddings()(  # type: ignore[operator]
            slow.modules["final", LAYERS - 1]((state + vector.double())[None])
        )
        losses.append(cross_entropy(by_hand, torch.tensor([question.answer])))
    found = answer_loss(logits(backbone, added(vector, LAYERS - 1), questions), questions)
    torch.testing.assert_close(found.double(), torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
@pytest.mark.parametrize("where", ["last", "all"])
def test_training_lowers_the_loss_at_every_block(family: str, where: Any) -> None:
    backbone = tiny_backbone(family)
    for layer in (0, LAYERS - 1):
        trained = fit("learned_task_vector", backbone, layer=layer, where=where, **{**SMALL, "epochs": 12})
        assert trained.config["loss"][-1] < trained.config["loss"][0]
        assert len(trained.config["loss"]) == 12
        assert not trained.tensors["vector"].requires_grad


def test_steps_are_relative_to_the_size_of_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: dict[str, float] = {}

    def noted(groups: Any, _loss: Any, _items: Any, schedule: Any, description: str) -> list[float]:
        rates[description] = groups[0][1]
        assert schedule.steps == 6
        return [0.0] * 6

    monkeypatch.setattr("icrbench.toolkit.answer_training.optimise", noted)
    backbone, asked = tiny_backbone("gemma3"), []

    def kept(_backbone: Any, questions: list[Question], sites: Any) -> Any:
        asked.extend(questions)
        return {site: torch.full((4, 48), 2.0 * (site.layer + 1)) for site in sites}

    monkeypatch.setattr("icrbench.methods.learned_task_vector.last_token_vectors", kept)
    fit("learned_task_vector", backbone, learning_rate=0.5, every=2, **SMALL)
    assert list(rates.values()) == [1.0, 3.0, 5.0]
    assert len(asked) == 4


def test_the_sweep_takes_the_lowest_of_the_best_blocks_tried() -> None:
    swept = fit("learned_task_vector", every=2, **{**SMALL, "held_out": 12})
    assert swept.config["blocks"] == [0, 2, 4]
    assert swept.config["layer"] == [0, 2, 4][swept.config["sweep"].index(max(swept.config["sweep"]))]
    given = fit("learned_task_vector", layer=swept.config["layer"], **{**SMALL, "held_out": 12})
    assert given.config["sweep"] == []
    assert torch.equal(given.tensors["vector"], swept.tensors["vector"])


def test_a_layer_that_is_not_there_is_refused_before_any_training() -> None:
    with pytest.raises(UserError, match=r"learned_task_vector\.layer must be 0 to 5 for this model, not 6\."):
        fit("learned_task_vector", layer=6, **SMALL)
