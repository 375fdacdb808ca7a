"""What distillation compares, and at which tokens; and that training touches nothing but a method's own tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_pool, pools
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.sites import Site, captured
from icrbench.method import FitData, Fitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.toolkit.distillation import Attempt, Distilled, Lesson, _common_end, attempt, taught
from icrbench.toolkit.episodes import Episode, Episodes, Labelled, Questions
from method_setup import DOMAINS, Slow, fit
from tiny import FAMILIES, tiny_backbone

SITES = [Site("mlp", 0), Site("mlp", 4)]
families = pytest.mark.parametrize("family", FAMILIES)


def drawn(count: int = 5, queries_per_set: int = 5, names: Any = ("sst2",), target: str | None = "sst2") -> Any:
    data = FitData(pools(*names), target, Path("unused"))
    episodes = Episodes(data, Randomness(0), per_class=2, per_task=1)
    return episodes.episodes(count, queries_per_set=queries_per_set)


def whole(backbone: Backbone, tokens: tuple[int, ...]) -> tuple[Tensor, dict[Site, Tensor]]:
    """Final state and vectors of one prompt, run alone and in full."""
    batch = make_batch([tokens], [""])
    with torch.no_grad(), captured(backbone, SITES) as seen:
        final = backbone.hidden_states(batch)[0, -1]
    return final, {site: vectors[0] for site, vectors in seen.items()}


def test_common_ends_are_counted_in_tokens() -> None:
    assert _common_end((256, 1, 2, 3), (256, 9, 9, 1, 2, 3)) == 3
    assert _common_end((1, 2, 3), (9, 9, 1, 2, 3)) == 3
    assert _common_end((1, 2, 3), (7, 1, 9, 2, 3)) == 2
    assert _common_end((1, 2), (1, 3)) == 0


@families
@pytest.mark.parametrize("queries_per_set", [1, 5])
def test_the_teacher_is_the_model_with_demonstrations(family: str, queries_per_set: int) -> None:
    """However much successive prompts share, the template's first words included."""
    backbone, episodes = tiny_backbone(family), drawn(queries_per_set=queries_per_set)
    questions = Questions(backbone)
    for episode, lesson in zip(episodes, taught(backbone, episodes, SITES), strict=True):
        zero, shown = questions(episode.query), questions(episode.query, episode.demonstrations)
        assert lesson.question == zero
        final, vectors = whole(backbone, shown.prompt.tokens)
        torch.testing.assert_close(lesson.taught, final, rtol=1e-4, atol=1e-4)
        own = len(zero.prompt.tokens) - backbone.adds_bos
        for site in SITES:
            torch.testing.assert_close(lesson.vectors[site], vectors[site][-own:], rtol=1e-4, atol=1e-4)


def test_queries_of_several_tasks_are_taught_together() -> None:
    backbone, episodes = tiny_backbone("llama"), drawn(6, 3, DOMAINS, None)
    assert len({episode.query.task.name for episode in episodes}) > 2
    questions = Questions(backbone)
    for episode, lesson in zip(episodes, taught(backbone, episodes), strict=True):
        shown = questions(episode.query, episode.demonstrations)
        torch.testing.assert_close(lesson.taught, whole(backbone, shown.prompt.tokens)[0], rtol=1e-4, atol=1e-4)


@families
def test_without_demonstrations_there_is_nothing_to_learn(family: str) -> None:
    backbone = tiny_backbone(family)
    alone = [Episode((), episode.query) for episode in drawn()]
    found = attempt(backbone, Fitted({}, {}), taught(backbone, alone, SITES), SITES)
    assert abs(float(found.divergence())) < 1e-6
    assert float(found.distance()) < 1e-8
    with_some = attempt(backbone, Fitted({}, {}), taught(backbone, drawn(), SITES), SITES)
    assert float(with_some.divergence()) > 0.001
    assert float(with_some.distance()) > 0.001


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama"])
def test_losses_are_those_of_the_formulas(family: str) -> None:
    backbone, slow, episodes = tiny_backbone(family), Slow(family), drawn()
    found = attempt(backbone, Fitted({}, {}), taught(backbone, episodes, SITES), SITES)
    questions = Questions(backbone)
    divergence, crossed, distance, count = 0.0, 0.0, 0.0, 0
    for episode in episodes:
        zero, shown = questions(episode.query), questions(episode.query, episode.demonstrations)
        # The position that predicts the answer's first token is the prompt's last: the answer itself comes after it.
        sequences = [[*own.prompt.tokens, own.answer] for own in (shown, zero)]
        teacher, student = (slow.logits(tokens)[-2].log_softmax(-1) for tokens in sequences)
        divergence += float((teacher.exp() * (teacher - student)).sum()) / len(episodes)
        crossed -= float(student[zero.answer]) / len(episodes)
        own = len(zero.prompt.tokens) - backbone.adds_bos
        outputs = [slow.outputs(one.prompt.tokens) for one in (shown, zero)]
        for site in SITES:
            both = [out["mlp", site.layer][-own:] for out in outputs]
            distance += float((both[0] - both[1]).square().sum())
            count += both[0].numel()
    assert float(found.divergence()) == pytest.approx(divergence, rel=1e-3)
    assert float(found.cross_entropy()) == pytest.approx(crossed, rel=1e-3)
    assert float(found.distance()) == pytest.approx(distance / count, rel=1e-3)


def lessons(backbone: Backbone, count: int = 10) -> list[Lesson]:
    pool = demo_pool("sst2")
    return [Lesson(one) for one in Questions(backbone).zero_shot([Labelled(pool.task, r) for r in pool.train[:count]])]


def test_every_query_is_asked_once_an_epoch_and_what_trains_is_the_method_alone() -> None:
    backbone = tiny_backbone("gpt2")
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    method = make_method("live", {"batch_size": 4, "epochs": 3})
    assert isinstance(method, Distilled)
    initial = fit("live", backbone, queries=2, per_class=1, epochs=1)
    kept = {name: tensor.clone() for name, tensor in initial.tensors.items()}
    asked: list[Lesson] = []

    def objective(own: Attempt) -> Tensor:
        asked.extend(own.lessons)
        return own.cross_entropy()

    own = lessons(backbone)
    trained = method.train(backbone, initial, {"vectors": 0.01}, own, objective, Randomness(0))
    order = [own.index(lesson) for lesson in asked]
    epochs = [order[start : start + 10] for start in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1]
    assert len(trained.config["loss"]) == 3
    assert not torch.equal(trained.tensors["vectors"], kept["vectors"])
    assert torch.equal(trained.tensors["scales"], kept["scales"])  # no rate was given for them
    for name, tensor in initial.tensors.items():
        assert torch.equal(tensor, kept[name])
    for name, tensor in backbone.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not any(tensor.requires_grad for tensor in trained.tensors.values())
    assert backbone.active is None


@pytest.mark.parametrize("name", ["hificl", "live", "m2iv", "mimic"])
def test_training_lowers_the_loss(name: str) -> None:
    settings: dict[str, Any] = {"queries": 12, "batch_size": 4, "epochs": 6, "learning_rate": 0.05}
    if name != "hificl":
        settings |= {"per_class": 1, "queries_per_set": 6}
    loss = fit(name, tiny_backbone("gemma3"), **settings).config["loss"]
    assert loss[-1] < loss[0] - 0.1
