from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import pools
from icrbench.backbone import Backbone
from icrbench.backbone.sites import Site
from icrbench.data.find_tasks import load_tasks
from icrbench.method import FitData
from icrbench.methods.function_vector import FunctionVector, contributions, indirect_effects
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episode, Labelled, Question, Questions
from icrbench.toolkit.reading import last_token_vectors
from icrbench.util.errors import UserError
from method_setup import Slow, fit, logits, zero_shot_questions
from tiny import EVERY_FAMILY, FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", EVERY_FAMILY)
SST2 = load_tasks()["sst2"]
SMALL = {"per_class": 1, "mean_prompts": 4, "effect_prompts": 2, "held_out": 4, "filter_correct": False}
OUTPUT = {"gpt2": "attn.c_proj", "gpt_neox": "attention.dense"}  # the output projection, from the block
HEADS = 6


def some_questions(backbone: Backbone, count: int = 3) -> list[Question]:
    rows = [Labelled(SST2, row) for row in pools("sst2")["sst2"].train[:8]]
    return [Questions(backbone)(rows[number], rows[5:]) for number in range(count)]


def heads_of(backbone: Backbone, questions: Sequence[Question]) -> Tensor:
    """``[L, N, H*d_k]``."""
    states = last_token_vectors(backbone, questions, [Site("heads", layer) for layer in range(LAYERS)])
    return torch.stack([states[Site("heads", layer)] for layer in range(LAYERS)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Episode]]:
    """The episodes of each call for in-context prompts: clean ones first, then those with permuted labels."""
    found: list[list[Episode]] = []
    in_context = Questions.in_context

    def noted(self: Questions, episodes: Sequence[Episode]) -> list[Question]:
        found.append(list(episodes))
        return in_context(self, episodes)

    monkeypatch.setattr(Questions, "in_context", noted)
    return found


@families
def test_over_the_heads_contributions_add_up_to_what_attention_adds(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = some_questions(backbone)
    outputs = heads_of(backbone, questions)
    for layer in range(LAYERS):
        attention = last_token_vectors(backbone, questions, [Site("attention", layer)])[Site("attention", layer)]
        found = contributions(backbone, layer, outputs[layer])
        bias = getattr(backbone.part(layer, backbone.anatomy.output), "bias", None)
        assert found.shape == (HEADS, 48)
        total = found.sum(0) if bias is None else found.sum(0) + bias  # once, and no head's
        torch.testing.assert_close(total, attention.mean(0), atol=1e-4, rtol=1e-4)


@families
def test_a_head_s_own_output_in_its_place_has_no_effect(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = some_questions(backbone, 1)
    own = heads_of(backbone, questions)[:, 0].unflatten(-1, (HEADS, -1))
    assert indirect_effects(backbone, questions, own).abs().max() < 1e-6
    assert indirect_effects(backbone, questions, own + 0.5).abs().min() > 0


class SlowHeads:
    """A tiny model in float64 whose heads' outputs at the last token can be read and replaced."""

    def __init__(self, family: str) -> None:
        self.slow = Slow(family)
        self.projections = [
            self.slow.modules["block", layer].get_submodule(OUTPUT.get(family, "self_attn.o_proj"))
            for layer in range(LAYERS)
        ]
        self.transposed = family == "gpt2"

    def run(self, tokens: Sequence[int], layer: int, put: Callable[[Tensor], Tensor]) -> Tensor:
        """Probabilities after the last token; ``put`` maps one layer's heads ``[H*d_k]`` there."""

        def hook(_module: Any, args: Any) -> Any:
            changed = args[0].clone()
            changed[0, -1] = put(args[0][0, -1])
            return (changed,)

        handle = self.projections[layer].register_forward_pre_hook(hook)
        found = self.slow.logits(tokens)[-1].softmax(-1)
        handle.remove()
        return found

    def heads(self, tokens: Sequence[int]) -> Tensor:
        """``[L, H, d_k]``."""
        found: list[Tensor] = []
        for layer in range(LAYERS):
            self.run(tokens, layer, lambda heads: found.append(heads.clone()) or heads)
        return torch.stack(found).unflatten(-1, (HEADS, -1))

    def added(self, tokens: Sequence[int], layer: int, head: int) -> Tensor:
        """What one head adds to the residual stream in one prompt: the rest of the branch's output times its share."""
        weight = self.projections[layer].weight.T if self.transposed else self.projections[layer].weight
        heads = self.heads(tokens)[layer]
        width = heads.shape[1]
        alone = weight[:, head * width : (head + 1) * width] @ heads[head]
        whole, norm = weight @ heads.flatten(), self.slow.modules["attention", layer]
        if type(norm).__name__ == "Gemma3RMSNorm":
            return alone * (1 + norm.weight) / (whole.square().mean() + norm.eps).sqrt()
        if type(norm).__name__ == "Olmo2RMSNorm":
            return alone * norm.weight / (whole.square().mean() + norm.variance_epsilon).sqrt()
        return alone


@pytest.mark.parametrize("family", [*FAMILIES, "olmo2"])  # those whose attention writes in ways of their own
def test_it_is_what_the_formulas_say_in_float64(family: str, asked: list[list[Episode]]) -> None:
    backbone, slow = tiny_backbone(family), SlowHeads(family)
    fitted = fit("function_vector", backbone, heads=4, **SMALL)
    clean, permuted = ([Questions(backbone)(e.query, e.demonstrations) for e in group] for group in asked)
    assert (len(clean), len(permuted)) == (4, 2)
    means = torch.stack([slow.heads(question.prompt.tokens) for question in clean]).mean(0)
    effects = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    for question in permuted:
        tokens, answer = question.prompt.tokens, question.answer
        before = slow.run(tokens, 0, lambda heads: heads)[answer]
        for layer in range(LAYERS):
            for head in range(HEADS):

                def put(heads: Tensor, layer: int = layer, head: int = head) -> Tensor:
                    split = heads.unflatten(0, (HEADS, -1)).clone()
                    split[head] = means[layer, head]
                    return split.flatten()

                effects[layer, head] += (slow.run(tokens, layer, put)[answer] - before) / len(permuted)
    torch.testing.assert_close(torch.tensor(fitted.config["effects"]).double(), effects, atol=1e-5, rtol=1e-3)
    order = effects.flatten().argsort(descending=True)[:4].tolist()
    assert fitted.config["heads"] == [[place // HEADS, place % HEADS] for place in order]
    vector = sum(
        slow.added(question.prompt.tokens, place // HEADS, place % HEADS) / len(clean)
        for place in order
        for question in clean
    )
    torch.testing.assert_close(fitted.tensors["vector"].double(), vector, atol=1e-4, rtol=1e-4)

    questions = zero_shot_questions(backbone)
    found = logits(backbone, fitted, questions).double()
    for row, question in enumerate(questions):

        def add(states: Tensor) -> Tensor:
            changed = states.clone()
            changed[-1] += fitted.tensors["vector"].double()
            return changed

        wanted = slow.slow.logits(question.prompt.tokens, {("block", fitted.config["layer"]): add})[-1]
        torch.testing.assert_close(found[row], wanted, atol=2e-3, rtol=1e-3)


def test_permuted_labels_stay_within_their_task_and_the_query_keeps_its_own(asked: list[list[Episode]]) -> None:
    names = ("csqa", "sst2", "trec")
    fit("function_vector", names=names, target=None, per_task=3, layer=0, **SMALL)
    clean, permuted = asked
    asked.clear()
    fit("function_vector", names=names, target=None, per_task=3, layer=0, shuffle_labels=False, **SMALL)
    (_, plain) = asked
    assert [episode.query for episode in plain] == [episode.query for episode in clean[:2]]
    assert not {episode.demonstrations for episode in plain} & {episode.demonstrations for episode in clean}
    answers_moved = 0
    for before, after in zip(plain, permuted, strict=True):
        assert after.query == before.query
        for name in names:
            pairs = [
                (one.example, other.example)
                for one, other in zip(before.demonstrations, after.demonstrations, strict=True)
                if one.task.name == name
            ]
            assert all(one.fields == other.fields for one, other in pairs)
            task = load_tasks()[name]
            assert Counter(task.answer(one) for one, _ in pairs) == Counter(task.answer(other) for _, other in pairs)
            answers_moved += sum(task.answer(one) != task.answer(other) for one, other in pairs)
    assert answers_moved > 4


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_answered_prompts_are_as_many_as_asked_for(family: str, asked: list[list[Episode]]) -> None:
    """Wrongly answered ones are left out, and others drawn in their place."""
    backbone = tiny_backbone(family)
    settings = {**SMALL, "filter_correct": True, "mean_prompts": 6, "effect_prompts": 9, "shuffle_labels": False}
    fitted = fit("function_vector", backbone, layer=0, **settings)
    *clean, effects = asked
    right = []
    for episode in (episode for part in clean for episode in part):
        question = Questions(backbone)(episode.query, episode.demonstrations)
        if int(logits(backbone, None, [question])[0, list(question.prompt.options)].argmax()) == question.label:
            right.append(episode)
    assert len(clean) > 1
    assert sum(map(len, clean)) > len(right) >= 6
    assert fitted.config["answered"] == 6
    assert [episode.query for episode in effects] == [right[number % 6].query for number in range(9)]


def test_the_number_of_heads_follows_the_model_unless_given() -> None:
    assert len(fit("function_vector", layer=0, **SMALL).config["heads"]) == 3  # a tenth of 36
    strongest = fit("function_vector", layer=0, heads=36, **SMALL).config["heads"]
    assert len(strongest) == 36
    assert fit("function_vector", layer=0, heads=2, **SMALL).config["heads"] == strongest[:2]


def test_the_layer_is_swept_given_or_a_third_of_the_depth() -> None:
    swept = fit("function_vector", **{**SMALL, "held_out": 12}).config
    assert len(swept["sweep"]) == LAYERS
    assert swept["layer"] == swept["sweep"].index(max(swept["sweep"]))
    assert fit("function_vector", sweep=False, **SMALL).config["layer"] == 2
    assert fit("function_vector", layer=4, sweep=False, **SMALL).config["layer"] == 4


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"function_vector\.heads must be at least 1, not 0\."):
        FunctionVector(heads=0)
    with pytest.raises(UserError, match=r"function_vector\.layer must be 0 to 5 for this model, not 6\."):
        FunctionVector(layer=6, **SMALL).fit(
            tiny_backbone("llama"), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0)
        )
