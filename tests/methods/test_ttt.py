"""Test-time training: what is trained on, that it starts from few-shot, and what stands in the prompt."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from icr_setup import demo_pool, demo_test
from icrbench.data.find_tasks import load_tasks
from icrbench.methods.few_shot import FewShotFitted
from icrbench.methods.ttt import LETTERS, TTT, TTTFitted, loss, several_answers
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.toolkit.episodes import Labelled, Questions
from icrbench.toolkit.lora import initial_lora
from icrbench.toolkit.prefix import prefix_config
from method_setup import DOMAINS, Slow, fit
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)
SST2 = load_tasks()["sst2"]
QUICK: dict[str, Any] = {"per_class": 2, "sequences": 4, "batch_size": 2, "rank": 2, "learning_rate": 0.01}


def shown(count: int = 3) -> list[Labelled]:
    pool = demo_pool("sst2")
    return [Labelled(pool.task, row) for row in pool.train[:count]]


def drawn(family: str, texts: list[str], strength: float = 0.2) -> TTTFitted:
    """Without training, but with factors that matter."""
    backbone = tiny_backbone(family)
    initial = initial_lora(
        backbone, Randomness(1), letters=LETTERS, blocks=range(LAYERS), rank=2, alpha=4.0, dropout=0.0
    )
    generator = torch.Generator().manual_seed(2)
    for name, tensor in initial.tensors.items():
        if name.endswith(".B"):
            tensor.copy_(strength * torch.randn(tensor.shape, generator=generator))
    return TTTFitted({**initial.config, **prefix_config(backbone, texts)}, initial.tensors)


def option_logits(family: str, fitted: Any, **options: Any) -> torch.Tensor:
    found = score(tiny_backbone(family), fitted, SST2, demo_test("sst2")[:4], ScoringOptions(**options))
    return torch.tensor([own.option_logits for own in found])


@families
def test_before_training_it_is_few_shot(family: str) -> None:
    texts = [own.task.demonstration(own.example) for own in shown()]
    wanted = option_logits(family, FewShotFitted({"demonstrations": texts}, {}))
    assert torch.equal(option_logits(family, drawn(family, texts, strength=0.0)), wanted)
    assert not torch.allclose(option_logits(family, drawn(family, texts)), wanted, atol=1e-2)


@families
def test_shown_demonstrations_are_read_by_the_adapted_model(family: str) -> None:
    fitted = drawn(family, [own.task.demonstration(own.example) for own in shown()])
    assert fitted.shares_prefix
    whole = option_logits(family, fitted, prefix_cache=False)
    torch.testing.assert_close(option_logits(family, fitted), whole, rtol=1e-4, atol=1e-3)


@families
def test_every_answer_of_a_sequence_is_trained_on(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    orders = [several_answers(backbone, shown()), several_answers(backbone, shown(2)[::-1])]
    losses = []
    for order, given in zip(orders, (shown(), shown(2)[::-1]), strict=True):
        assert len(order.cues) == len(order.answers) >= 2
        rows = given[-len(order.cues) :]  # those that fit
        logits = slow.logits(order.tokens)
        for place, (cue, row) in enumerate(zip(order.cues, rows, strict=True)):
            # What stands before an answer is its few-shot prompt after the demonstrations before it.
            question = Questions(backbone)(row, rows[:place])
            assert order.tokens[: cue + 1] == question.prompt.tokens
            assert order.answers[place] == question.answer
            losses.append(cross_entropy(logits[cue], torch.tensor(question.answer)))
    found = loss(backbone, drawn(family, [], strength=0.0), orders)
    torch.testing.assert_close(found.double(), torch.stack(losses).mean(), rtol=1e-4, atol=1e-3)


def test_orders_are_permutations() -> None:
    rows = shown(4)
    orders = TTT(sequences=5)._orders(rows, Randomness(0).python("orders"))
    assert len(orders) == 5
    assert all(sorted(own.example.id for own in order) == sorted(own.example.id for own in rows) for order in orders)
    assert len({tuple(own.example.id for own in order) for order in orders}) > 1


def test_left_out_is_what_has_the_same_content() -> None:
    rows = shown(3)
    twins = [*rows, rows[0]]
    orders = TTT(sequences=4, form="leave_one_out")._orders(twins, Randomness(0).python("orders"))
    assert [order[-1] for order in orders] == twins
    assert [len(order) for order in orders] == [3, 4, 4, 3]
    for order in orders:
        assert order[-1].example.content_hash not in {own.example.content_hash for own in order[:-1]}


@families
def test_factors_are_counted(family: str) -> None:
    backbone = tiny_backbone(family)
    for shots in (True, False):
        fitted = fit("ttt", backbone, **QUICK, shots_at_test=shots)
        assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims)
        assert bool(fitted.prefix(SST2, demo_test("sst2")[0])) == shots
    assert any("mlp" in name for name in fitted.tensors)
    assert not any(name.split("-")[1].startswith("k_proj") for name in fitted.tensors)


def test_training_lowers_the_loss() -> None:
    fitted = fit("ttt", **{**QUICK, "epochs": 8, "dropout": 0.0, "warmup": 0.0})
    assert fitted.config["loss"][-1] < fitted.config["loss"][0]
    assert fitted.config["sequences"] == 4


def test_it_says_that_it_is_explicit() -> None:
    assert make_method("ttt", {}).explicit
    assert not make_method("ttt", {"shots_at_test": "false"}).explicit
    mixed = fit("ttt", None, DOMAINS, None, **{**QUICK, "sequences": 2, "per_task": 1})
    assert len(mixed.config["demonstrations"]) == 5
