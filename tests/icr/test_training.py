import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import ToyEncoder, some_directions, training_prompts
from icrbench.methods.icr import training
from icrbench.methods.icr.objective import Weights, terms
from icrbench.methods.icr.router import Router
from icrbench.methods.icr.routing import Directions
from icrbench.methods.icr.training import Training, epoch_batches, routed_logits, train_router
from icrbench.methods.icr.trunkstore import TrunkStore
from icrbench.util.errors import UserError
from tiny import tiny_backbone

DEPTH = (2.6, 3.0)
WEIGHTS = Weights(0.01, 0.001, 0.02, DEPTH, 1 / 3)
HOW = Training(
    epochs=2,
    batch_size=4,
    learning_rate=1e-2,
    weight_decay=0.01,
    clip=1.0,
    final_scale=0.8,
    length_groups=1,
    routing_scale="attention",
)
BACKBONE = "llama"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrunkStore:
    backbone = tiny_backbone(BACKBONE)
    domains = [training_prompts(backbone, name, 7) for name in ("sst2", "trec")]
    made = TrunkStore(backbone, 4, domains, tmp_path_factory.mktemp("trunks"))
    made.fill()
    return made


def new_router(seed: int = 0) -> Router:
    return Router.initial(ToyEncoder.width, 2, 3, 6, 16, torch.Generator().manual_seed(seed))


def train(
    store: TrunkStore,
    router: Router,
    how: Training = HOW,
    weights: Weights = WEIGHTS,
    order: int = 0,
    directions: Directions | None = None,
) -> list[dict[str, float]]:
    backbone = tiny_backbone(BACKBONE)
    return train_router(
        backbone,
        router,
        directions or some_directions(backbone),
        store,
        how,
        weights,
        ToyEncoder(),
        random.Random(order),
    )


def test_every_prompt_once_an_epoch_in_a_new_order() -> None:
    lengths, rng = list(range(10, 33)), random.Random(0)
    first, second = (list(epoch_batches(lengths, 4, 1, rng)) for _ in range(2))
    for batches in (first, second):
        assert [len(rows) for rows in batches] == [4, 4, 4, 4, 4, 3]
        assert sorted(row for rows in batches for row in rows) == list(range(23))
    assert first != second
    assert list(epoch_batches(lengths, 4, 1, random.Random(0))) == first


def test_grouping_by_length_keeps_every_prompt_and_saves_padding() -> None:
    lengths = random.Random(8).choices(range(5, 400), k=63)

    def waste(batches: list[list[int]]) -> int:
        return sum(
            max(lengths[row] for row in rows) * len(rows) - sum(lengths[row] for row in rows) for rows in batches
        )

    plain = list(epoch_batches(lengths, 4, 1, random.Random(0)))
    grouped = list(epoch_batches(lengths, 4, 8, random.Random(0)))
    assert sorted(row for rows in grouped for row in rows) == list(range(63))
    assert max(map(len, grouped)) == 4
    assert waste(grouped) < waste(plain) / 2
    means = [sum(lengths[row] for row in rows) / len(rows) for rows in grouped[:8]]
    assert means != sorted(means)  # the batches of a group come in random order


def test_training_lowers_the_loss_and_reports_each_epoch(store: TrunkStore) -> None:
    router = new_router()
    history = train(store, router, replace(HOW, epochs=6, learning_rate=5e-2))
    assert len(history) == 6
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"] - 0.3
    assert set(history[0]) == {"cross_entropy", "confidence", "sparsity", "gate", "accuracy"}
    assert history[0]["sparsity"] > 0
    assert 0 < history[0]["gate"] < 1


def test_the_same_order_gives_the_same_router(store: TrunkStore) -> None:
    first, again, other = new_router(), new_router(), new_router()
    history = train(store, first)
    torch.manual_seed(12345)
    assert train(store, again) == history
    train(store, other, order=1)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.alpha[2].weight, other.alpha[2].weight)


def test_steps_are_those_of_adamw_on_the_clipped_gradient(store: TrunkStore) -> None:
    """The whole loop written out once more, one epoch of four steps (14 prompts)."""
    backbone = tiny_backbone(BACKBONE)
    found = some_directions(backbone)
    how, weights = replace(HOW, epochs=1, clip=0.05), Weights(0.5, 0.3, 0.2, DEPTH, 1 / 3)
    router, expected = new_router(), new_router()
    history = train(store, router, how, weights)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-2)
    order = list(range(14))
    random.Random(0).shuffle(order)
    cross = 0.0
    for step, scale in enumerate((1.0, 0.95, 0.85, 0.8)):  # 0.8 + 0.1 (1 + cos(pi step / 3))
        rows = order[4 * step : 4 * step + 4]
        data = store.load(rows)
        logits, alpha, gamma = routed_logits(backbone, expected, found, data, "attention", ToyEncoder(), scale)
        parts = terms(logits, data.answers, data.entropy, alpha, gamma, weights)
        cross += parts.cross_entropy.item() * len(rows) / 14
        loss = parts.cross_entropy + 0.5 * parts.confidence + 0.3 * parts.sparsity + 0.2 * parts.gate
        gradients = torch.autograd.grad(loss, list(expected.parameters()))
        norm = torch.sqrt(sum((gradient.square().sum() for gradient in gradients), torch.tensor(0.0)))
        assert norm > 0.05  # so that clipping matters
        for parameter, gradient in zip(expected.parameters(), gradients, strict=True):
            parameter.grad = gradient * 0.05 / norm
        optimizer.step()
    for name, tensor in router.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], atol=2e-5, rtol=1e-3)
    assert history[0]["cross_entropy"] == pytest.approx(cross, rel=1e-4)


def test_the_weight_decay_is_the_one_asked_for(store: TrunkStore) -> None:
    """Dead inputs get no gradient, so that AdamW only shrinks what they lead to."""
    start, decayed = new_router(), new_router()
    with torch.no_grad():
        for router in (start, decayed):
            router.gamma[2].weight[:, 0] = 0.7
            router.gamma[0].weight[0] = 0.0
            router.gamma[0].bias[0] = -1.0  # never above zero
    train(store, decayed, replace(HOW, epochs=1, weight_decay=0.5))
    expected = 0.7 * (1 - 1e-2 * 0.5) ** 4
    torch.testing.assert_close(decayed.gamma[2].weight[:, 0], torch.full((12,), expected))


def test_a_loss_that_is_not_finite_ends_the_training(store: TrunkStore) -> None:
    router = new_router()
    with torch.no_grad():
        router.alpha[2].bias.fill_(torch.nan)
    with pytest.raises(UserError, match=r"the router: the loss is not finite at step 1: nothing is trained yet"):
        train(store, router)


def free_directions() -> Directions:
    found = some_directions(tiny_backbone(BACKBONE))
    found.queries.requires_grad_()
    found.keys.requires_grad_()
    return found


def test_learned_directions_take_the_router_s_steps(store: TrunkStore) -> None:
    """One optimizer, one learning rate, one norm to clip, and nothing that pulls them back to orthonormal."""
    backbone = tiny_backbone(BACKBONE)
    how = replace(HOW, epochs=1, clip=0.05)
    router, directions = new_router(), free_directions()
    train(store, router, how, directions=directions)
    expected, moved = new_router(), free_directions()
    trained = [*expected.parameters(), moved.queries, moved.keys]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    order = list(range(14))
    random.Random(0).shuffle(order)
    for step, scale in enumerate((1.0, 0.95, 0.85, 0.8)):
        data = store.load(order[4 * step : 4 * step + 4])
        logits, alpha, gamma = routed_logits(backbone, expected, moved, data, "attention", ToyEncoder(), scale)
        loss = terms(logits, data.answers, data.entropy, alpha, gamma, WEIGHTS).total(WEIGHTS)
        gradients = torch.autograd.grad(loss, trained)
        norm = torch.sqrt(sum((gradient.square().sum() for gradient in gradients), torch.tensor(0.0)))
        assert norm > 0.05  # so that clipping matters
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient * 0.05 / norm
        optimizer.step()
    torch.testing.assert_close(directions.queries, moved.queries, atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(directions.keys, moved.keys, atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(router.alpha[2].weight, expected.alpha[2].weight, atol=2e-5, rtol=1e-3)
    start = some_directions(backbone)
    for learned, given in ((directions.queries, start.queries), (directions.keys, start.keys)):
        assert (learned - given).abs().amax((1, 2)).min() > 1e-3  # in every layer
        gram = learned[0].T @ learned[0]
        assert (gram - torch.eye(3)).abs().max() > 1e-3


def test_directions_that_want_no_gradient_stay(store: TrunkStore) -> None:
    directions = some_directions(tiny_backbone(BACKBONE))
    train(store, new_router(), directions=directions)
    start = some_directions(tiny_backbone(BACKBONE))
    assert torch.equal(directions.queries, start.queries)
    assert torch.equal(directions.keys, start.keys)


def test_alpha_is_annealed_over_all_epochs(store: TrunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []

    def spy(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        scales.append(args[-1])
        return routed_logits(*args)

    monkeypatch.setattr(training, "routed_logits", spy)
    train(store, new_router(), replace(HOW, epochs=3))
    assert len(scales) == 12
    assert scales[0] == 1.0
    assert scales[-1] == pytest.approx(0.8)
    assert scales == sorted(scales, reverse=True)
    assert scales[4] > 0.9 > scales[8]


def test_a_first_step_starts_from_the_plain_model(store: TrunkStore) -> None:
    backbone, data = tiny_backbone(BACKBONE), store.load([0, 8])
    with torch.no_grad():
        plain = backbone.logits(data.batch.at_last(backbone.hidden_states(data.batch)))
        logits, _, _ = routed_logits(
            backbone, new_router(), some_directions(backbone), data, "paper", ToyEncoder(), 1.0
        )
    assert (logits - plain).abs().max() < 5e-3 * plain.abs().max()  # half-precision trunk


def test_the_model_is_left_as_it_was(store: TrunkStore, tmp_path: Path) -> None:
    backbone = tiny_backbone(BACKBONE)
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    train(store, new_router())
    after = backbone.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in backbone.model.parameters())


@pytest.mark.parametrize("term", ["sparsity", "gate"])
def test_a_heavy_penalty_shrinks_what_it_penalises(term: str, store: TrunkStore) -> None:
    heavy = Weights(0.01, 50.0 if term == "sparsity" else 0.0, 50.0 if term == "gate" else 0.0, DEPTH, 1.0)
    light = Weights(0.01, 0.0, 0.0, DEPTH, 1.0)
    how = replace(HOW, epochs=4)
    heavily, lightly = train(store, new_router(), how, heavy), train(store, new_router(), how, light)
    assert heavily[-1][term] < 0.8 * lightly[-1][term]
