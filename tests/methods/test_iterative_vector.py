from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import demo_pool, demo_test
from icrbench.backbone import make_batch
from icrbench.data.find_tasks import load_tasks
from icrbench.methods.iterative_vector import STRENGTHS, IterativeVector, IterativeVectorFitted
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.toolkit.episodes import Episode, Labelled, Question, Questions
from icrbench.util.errors import UserError
from method_setup import Slow, asked, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone, tokenizer

__all__ = ["asked"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
SST2 = load_tasks()["sst2"]
SMALL: dict[str, Any] = {"episodes": 4, "batch": 2, "held_out": 4, "strength": 0.5}
FEW: dict[str, Any] = {**SMALL, "variant": "few_shot"}
Vectors = dict[str, list[Tensor]]


def cues(tokens: Sequence[int]) -> list[int]:
    """The last tokens of all answer cues of sst2 in a prompt (one token a byte)."""
    text = tokenizer().decode(list(tokens), clean_up_tokenization_spaces=False)
    bos = len(tokens) - len(text.removeprefix("<s>").encode())
    raw = text.removeprefix("<s>").encode()
    places, start = [], 0
    while (start := raw.find(b"\nSentiment:", start)) >= 0:
        start += len(b"\nSentiment:")
        places.append(start - 1 + bos)
    return places


def by_hand(slow: Slow, family: str, episodes: Sequence[Episode], alpha: float, updates: Sequence[int]) -> Vectors:
    """Mean differences by class and for the query, written from the formulas; ``[d]`` a layer."""
    backbone = tiny_backbone(family)
    changes: dict[str, list[Tensor]] = {}
    current: Vectors = {}
    for number, episode in enumerate(episodes):
        kinds = [str(shown.example.label) for shown in episode.demonstrations] + ["query"]
        tokens = Questions(backbone)(episode.query, episode.demonstrations).prompt.tokens
        alone = Questions(backbone)(episode.query).prompt.tokens
        columns = cues(tokens)
        assert len(columns) == len(kinds)
        negative = slow.outputs(alone)
        seen: list[Tensor] = []

        def edit(layer: int, columns: Any = columns, kinds: Any = kinds, seen: Any = seen, now: Any = current) -> Any:
            def change(states: Tensor) -> Tensor:
                states = states.clone()
                for column, kind in zip(columns, kinds, strict=True):
                    if kind in now:
                        states[column] += alpha * now[kind][layer]
                seen.append(states)
                return states

            return change

        slow.logits(tokens, {("attention", layer): edit(layer) for layer in range(LAYERS)})
        for column, kind in zip(columns, kinds, strict=True):
            own = torch.stack([seen[layer][column] - negative["attention", layer][-1] for layer in range(LAYERS)])
            changes.setdefault(kind, []).append(own)
        if number in updates:
            current = {kind: list(torch.stack(own).mean(0)) for kind, own in changes.items()}
    return current


@families
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_the_vectors_are_those_of_the_formulas_in_float64(family: str, alpha: float, asked: list[Episode]) -> None:
    fitted = fit("iterative_vector", tiny_backbone(family), **FEW, extraction_strength=alpha)
    assert len(asked) == 4
    wanted = by_hand(Slow(family), family, asked, alpha, updates=(0, 2, 3))
    assert fitted.config["classes"] == ["sst2/0", "sst2/1"]
    found = fitted.tensors["vectors"].double()
    assert found.shape == (3, LAYERS, 48)
    for place, kind in enumerate(["query", "0", "1"]):
        torch.testing.assert_close(found[place], torch.stack(wanted[kind]), atol=1e-3, rtol=1e-3)


def test_without_strength_in_extraction_the_batch_does_not_matter() -> None:
    first, second, third = (
        fit("iterative_vector", **{**FEW, "batch": batch}, extraction_strength=alpha).tensors["vectors"]
        for batch, alpha in ((1, 0.0), (3, 0.0), (1, 0.4))
    )
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first, third, atol=1e-3)


@families
def test_zero_shot_adds_the_query_s_vectors_at_the_last_token(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = fit("iterative_vector", backbone, **SMALL)
    few = fit("iterative_vector", backbone, **FEW)
    assert torch.equal(fitted.tensors["vectors"], few.tensors["vectors"][:1])
    assert fitted.last_token_only
    assert not few.last_token_only
    questions = zero_shot_questions(backbone)
    found = logits(backbone, fitted, questions).double()
    for row, question in enumerate(questions):

        def add(layer: int) -> Any:
            def change(states: Tensor) -> Tensor:
                states = states.clone()
                states[-1] += 0.5 * fitted.tensors["vectors"][0, layer].double()
                return states

            return change

        edits = {("attention", layer): add(layer) for layer in range(LAYERS)}
        wanted = slow.logits(question.prompt.tokens, edits)[-1]
        torch.testing.assert_close(found[row], wanted, atol=5e-3, rtol=1e-3)


def in_context(fitted: IterativeVectorFitted, family: str, count: int = 4) -> list[Question]:
    rows = [Labelled(SST2, row) for row in demo_test("sst2")[:count]]
    by_text = {SST2.demonstration(row): Labelled(SST2, row) for row in demo_pool("sst2").train}
    shown = [by_text[text] for text in fitted.prefix(SST2, rows[0].example)]
    return [Questions(tiny_backbone(family))(row, shown) for row in rows]


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_few_shot_adds_each_demonstration_s_class_at_its_own_cue(family: str, padding: Any) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = fit("iterative_vector", backbone, **FEW, per_class=2)
    questions = in_context(fitted, family)
    labels = {SST2.demonstration(row): row.label for row in demo_pool("sst2").train}
    shown = fitted.prefix(SST2, demo_test("sst2")[0])
    assert len(shown) == 4
    kinds = [labels[text] + 1 for text in shown] + [0]
    found = logits(backbone, fitted, questions, padding).double()
    for row, question in enumerate(questions):
        columns = cues(question.prompt.tokens)
        assert len(columns) == 5 - question.prompt.dropped  # GPT-2 is too short for all

        def add(layer: int, columns: Any = columns) -> Any:
            def change(states: Tensor) -> Tensor:
                states = states.clone()
                for column, kind in zip(columns, kinds[-len(columns) :], strict=True):
                    states[column] += 0.5 * fitted.tensors["vectors"][kind, layer].double()
                return states

            return change

        edits = {("attention", layer): add(layer) for layer in range(LAYERS)}
        wanted = slow.logits(question.prompt.tokens, edits)[-1]
        torch.testing.assert_close(found[row], wanted, atol=5e-3, rtol=1e-3)


@families
def test_strength_zero_is_the_clean_prompt(family: str) -> None:
    backbone = tiny_backbone(family)
    for settings in (SMALL, FEW):
        fitted = fit("iterative_vector", backbone, **{**settings, "strength": 0.0})
        questions = in_context(fitted, family)
        assert torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_demonstrations_that_were_dropped_get_nothing(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("iterative_vector", backbone, **FEW)
    query = Labelled(SST2, demo_test("sst2")[0])
    text, cue, place = fitted.config["demonstrations"][1]
    alone = IterativeVectorFitted({**fitted.config, "demonstrations": [[text, cue, place]]}, fitted.tensors)
    tokens = backbone.encode("\n".join([text, SST2.prompt(query.example)]))
    batch = make_batch([tokens], [SST2.prompt(query.example)])
    with torch.no_grad():
        found = []
        for own in (fitted, alone):
            with own.applied(backbone, batch):
                found.append(backbone.hidden_states(batch))
        assert torch.equal(found[0], found[1])
        wrong = replace(batch, texts=("another text",))
        with pytest.raises(ValueError, match="does not consist of"), fitted.applied(backbone, wrong):
            pass
        with fitted.applied(backbone, replace(batch, texts=("",))):  # a request without a text has no demonstrations
            pass


@families
def test_decoding_after_demonstrations_is_one_long_pass(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("iterative_vector", backbone, **FEW)
    questions = in_context(fitted, family, 3)
    batch = make_batch([own.prompt.tokens for own in questions], [own.prompt.text for own in questions], padding="left")
    more = torch.randint(0, 256, (3, 2), generator=torch.Generator().manual_seed(1))
    longer = replace(
        batch,
        input_ids=torch.cat([batch.input_ids, more], 1),
        attention_mask=torch.cat([batch.attention_mask, torch.ones_like(more)], 1),
        position_ids=torch.cat([batch.position_ids, batch.position_ids[:, -1:] + torch.tensor([[1, 2]])], 1),
    )
    cache = DynamicCache(config=backbone.model.config)
    with torch.no_grad(), fitted.applied(backbone, batch):
        whole = backbone.hidden_states(longer)
        backbone.hidden_states(batch, cache)
        for column in (-2, -1):
            end = longer.input_ids.shape[1] + column + 1
            step = replace(
                longer,
                input_ids=longer.input_ids[:, end - 1 : end],
                attention_mask=longer.attention_mask[:, :end],
                position_ids=longer.position_ids[:, end - 1 : end],
            )
            last = backbone.hidden_states(step, cache)[:, 0]
            torch.testing.assert_close(last, whole[:, column], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("variant", ["zero_shot", "few_shot"])
def test_the_strength_is_the_best_on_held_out_rows(variant: str) -> None:
    settings = {**SMALL, "strength": None, "variant": variant, "held_out": 12}
    config = fit("iterative_vector", **settings).config
    assert len(config["strengths"]) == len(STRENGTHS)
    assert config["strength"] == STRENGTHS[config["strengths"].index(max(config["strengths"]))]
    assert fit("iterative_vector", **SMALL).config["strengths"] == []


def test_classes_of_several_tasks_are_told_apart() -> None:
    backbone = tiny_backbone("llama")
    fitted = fit("iterative_vector", backbone, names=("piqa", "sst2"), target=None, **FEW)
    assert fitted.config["classes"] == ["piqa/0", "piqa/1", "sst2/0", "sst2/1"]
    assert fitted.tensors["vectors"].shape == (5, LAYERS, 48)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 5 * LAYERS * 48
    mr = load_tasks()["mr"]
    found = [
        torch.tensor([row.option_logits for row in score(backbone, fitted, mr, demo_test("mr")[:3], options)])
        for options in (ScoringOptions(), ScoringOptions(batch_size=1, padding="left"))
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


def test_a_class_that_no_episode_shows_has_no_vector() -> None:
    fitted = fit("iterative_vector", names=("trec", "sst2"), target=None, **{**FEW, "episodes": 1})
    lengths = fitted.tensors["vectors"].abs().sum((1, 2))
    assert (lengths == 0).sum() == 6  # of eight classes one a task was shown
    assert lengths.isfinite().all()


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"iterative_vector\.episodes must be at least 1, not 0\."):
        IterativeVector(episodes=0)
