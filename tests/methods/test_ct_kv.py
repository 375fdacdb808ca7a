import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_pool, demo_test
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.virtual import Virtual, attending, virtual_tokens
from icrbench.methods.ct_kv import CTKV, CTKVFitted
from icrbench.randomness import Randomness
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.util.errors import UserError
from method_setup import fit, logits, zero_shot_questions
from tiny import FAMILIES, tiny_backbone

QUICK: dict[str, Any] = {"per_class": 2, "epochs": 3, "learning_rate": 0.01}
STORED = json.loads((Path(__file__).parents[1] / "golden" / "ct_kv.json").read_text("utf-8"))
GOLDEN = {**STORED["inputs"], **STORED["expected"]}
families = pytest.mark.parametrize("family", FAMILIES)


def some_demonstrations(backbone: Backbone, count: int = 4) -> Demonstrations:
    pool = demo_pool("sst2")
    return Demonstrations.fitting(backbone, [Labelled(pool.task, row) for row in pool.train[:count]])


def in_context(backbone: Backbone, shown: Demonstrations) -> list[Question]:
    """The questions of `zero_shot_questions` after demonstrations."""
    task = demo_pool("sst2").task
    texts = [own.task.demonstration(own.example) for own in shown.shown]
    prompter = Prompter(backbone, task)
    return [Question(prompter(row, texts), row.label) for row in demo_test("sst2")[:5]]


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_before_training_it_is_few_shot(family: str, padding: Any) -> None:
    backbone = tiny_backbone(family)
    shown = some_demonstrations(backbone)
    with torch.no_grad():
        start = CTKVFitted.of(virtual_tokens(backbone, shown.tokens))
    found = logits(backbone, start, zero_shot_questions(backbone), padding)
    wanted = logits(backbone, None, in_context(backbone, shown))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)
    assert (logits(backbone, None, zero_shot_questions(backbone)) - wanted).abs().max() > 0.1


@families
def test_no_gradient_reaches_the_demonstration_that_is_asked(family: str) -> None:
    backbone = tiny_backbone(family)
    shown = some_demonstrations(backbone)
    spans = shown.spans(backbone)
    question = Questions(backbone)(shown.shown[-2])
    fixed = virtual_tokens(backbone, shown.tokens)
    keys, values = (tensor.detach().clone().requires_grad_(True) for tensor in (fixed.keys, fixed.values))
    hidden = torch.zeros(1, len(shown.tokens), dtype=torch.bool)
    hidden[0, slice(*spans[-2])] = True
    batch = make_batch([question.prompt.tokens], [""])
    with attending(backbone, batch, replace(fixed, keys=keys, values=values), hidden):
        backbone.logits(batch.at_last(backbone.hidden_states(batch)))[0, question.answer].backward()
    for tensor in (keys, values):
        assert tensor.grad is not None
        reached = tensor.grad.abs().amax((0, 1, 3)) > 0
        assert not reached[slice(*spans[-2])].any()
        assert reached[slice(*spans[-1])].any()  # within the reach of every window


@families
def test_spans_are_those_of_each_demonstration_with_its_separator(family: str) -> None:
    backbone = tiny_backbone(family)
    shown = some_demonstrations(backbone)
    texts = [own.task.demonstration(own.example) + "\n" for own in shown.shown]
    found = [backbone.tokenizer.decode(shown.tokens[start:end]) for start, end in shown.spans(backbone)]
    assert found == texts


@families
def test_with_all_but_bos_hidden_it_is_zero_shot_further_on(family: str) -> None:
    backbone = tiny_backbone(family)
    shown = some_demonstrations(backbone)
    virtual = virtual_tokens(backbone, shown.tokens)
    question = zero_shot_questions(backbone)[0]
    batch = make_batch([question.prompt.tokens], [""])
    hidden = torch.ones(1, len(shown.tokens), dtype=torch.bool)
    hidden[0, 0] = not virtual.has_bos
    with torch.no_grad(), attending(backbone, batch, virtual, hidden):
        found = backbone.logits(batch.at_last(backbone.hidden_states(batch)))
    if virtual.has_bos:  # it stays at its place, out of the reach of windows, and the prompt's own is not seen
        with torch.no_grad(), attending(backbone, batch, replace(virtual.kept([0]), length=len(shown.tokens))):
            wanted = backbone.logits(batch.at_last(backbone.hidden_states(batch)))
    else:
        moved = replace(batch, position_ids=batch.position_ids + len(shown.tokens))
        with torch.no_grad():
            wanted = backbone.logits(batch.at_last(backbone.hidden_states(moved)))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)


@families
def test_training_hides_what_it_says(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's own demonstration, and a share of the others, but never BOS."""
    backbone, seen = tiny_backbone(family), []

    def noted(_backbone: Any, batch: Any, virtual: Virtual, hidden: Tensor) -> Any:
        seen.append((batch.input_ids.clone(), batch.attention_mask.clone(), virtual.has_bos, hidden))
        return attending(_backbone, batch, virtual, hidden)

    monkeypatch.setattr("icrbench.methods.ct_kv.attending", noted)
    fit("ct_kv", backbone, **{**QUICK, "dropout": 0.25})
    assert len(seen) == 3
    shares = []
    for ids, mask, has_bos, hidden in seen:
        assert has_bos == backbone.adds_bos
        assert not (has_bos and hidden[:, 0].any())
        for row in range(len(ids)):
            asked = backbone.tokenizer.decode(ids[row][mask[row].bool()], skip_special_tokens=True)
            covered = hidden[row].float()
            shares.append(float(covered.mean()))
            assert covered.sum() >= len(asked)  # a byte is a token, and the whole demonstration is longer than that
    assert 0.3 < sum(shares) / len(shares) < 0.7  # a quarter at random, and a quarter of the rest


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_training_lowers_the_loss_and_leaves_float32(family: str) -> None:
    trained = fit(
        "ct_kv", tiny_backbone(family, torch.bfloat16), **{**QUICK, "per_class": 1, "epochs": 6, "dropout": 0.0}
    )
    assert trained.config["loss"][-1] < trained.config["loss"][0]
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in trained.tensors.values())


def test_nothing_is_random_once_it_is_trained() -> None:
    backbone = tiny_backbone("llama")
    trained, asked = fit("ct_kv", backbone, **QUICK), zero_shot_questions(backbone)
    assert torch.equal(logits(backbone, trained, asked), logits(backbone, trained, asked))


def test_a_single_demonstration_leaves_nothing_to_train() -> None:
    backbone = tiny_backbone("gpt2")
    shown = some_demonstrations(backbone, 1)
    with torch.no_grad():
        virtual = virtual_tokens(backbone, shown.tokens)
    questions = Questions(backbone).zero_shot(shown.shown)
    tuned = CTKV(epochs=2, learning_rate=0.1)._tuned(backbone, virtual, questions, shown.spans(backbone), Randomness(0))
    assert torch.equal(tuned.tensors["values"], virtual.values)


def _questions(pairs: Sequence[dict[str, Any]]) -> list[Question]:
    return [Question(Prompt(tuple(pair["tokens"]), "", (pair["answer"],), False, 0), 0) for pair in pairs]


def test_it_trains_as_the_authors_code_does() -> None:
    """Numbers of that code, run on the tiny GPT-2 without dropout; where they come from stands in the file."""
    backbone = tiny_backbone("gpt2")
    with torch.no_grad():
        virtual = virtual_tokens(backbone, GOLDEN["demonstrations"])
    settings = GOLDEN["settings"]
    method = CTKV(
        learning_rate=settings["lr"], epochs=settings["epochs"], batch_size=settings["batch_size"], dropout=0.0
    )
    spans = [(start, end) for start, end in GOLDEN["spans"]]
    tuned = method._tuned(backbone, virtual, _questions(GOLDEN["pairs"]), spans, Randomness(0))
    for name, start in (("keys", virtual.keys), ("values", virtual.values)):
        change = tuned.tensors[name] - start
        for layer, wanted in enumerate(GOLDEN[name]):
            assert float(change[layer].norm()) == pytest.approx(wanted["norm"], rel=1e-3)
            torch.testing.assert_close(
                change[layer, 0, :, 0], torch.tensor(wanted["first_channel"]), atol=2e-4, rtol=1e-2
            )
    query = Question(Prompt(tuple(GOLDEN["query"]), "", (0,), False, 0), 0)
    found = logits(backbone, tuned, [query])[0, : len(GOLDEN["logits"])]
    torch.testing.assert_close(found, torch.tensor(GOLDEN["logits"]), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("changes", [{"dropout": 1.0}, {"dropout": -0.1}, {"epochs": 0}])
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        fit("ct_kv", **changes)
