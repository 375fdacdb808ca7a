"""What distillation compares, and at which tokens; and that training touches nothing but a method's own tensors."""

import weakref
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
from icrbench.util.errors import UserError
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
        own = len(zero.prompt.tokens) - 1  # a prompt's first token, whatever it is, is left out
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
    divergence, crossed, distance = 0.0, 0.0, 0.0
    for episode in episodes:
        zero, shown = questions(episode.query), questions(episode.query, episode.demonstrations)
        # The position that predicts the answer's first token is the prompt's last: the answer itself comes after it.
        sequences = [[*own.prompt.tokens, own.answer] for own in (shown, zero)]
        teacher, student = (slow.logits(tokens)[-2].log_softmax(-1) for tokens in sequences)
        divergence += float((teacher.exp() * (teacher - student)).sum()) / len(episodes)
        crossed -= float(student[zero.answer]) / len(episodes)
        own = len(zero.prompt.tokens) - 1  # a prompt's first token, whatever it is, is left out
        outputs = [slow.outputs(one.prompt.tokens) for one in (shown, zero)]
        for site in SITES:
            both = [out["mlp", site.layer][-own:] for out in outputs]
            distance += float((both[0] - both[1]).square().mean()) / len(SITES) / len(episodes)
    assert float(found.divergence()) == pytest.approx(divergence, rel=1e-3)
    assert float(found.cross_entropy()) == pytest.approx(crossed, rel=1e-3)
    assert float(found.distance()) == pytest.approx(distance, rel=1e-3)
    assert len({len(lesson.question.prompt.tokens) for lesson in found.lessons}) > 1  # means over tokens differ


@pytest.mark.parametrize("queries_per_set", [1, 5])
def test_a_lesson_keeps_nothing_but_its_own_vectors(queries_per_set: int) -> None:
    """However many demonstrations there were: no slice of a larger tensor, whose whole would stay."""
    backbone = tiny_backbone("llama")
    assert not backbone.adds_bos
    for lesson in taught(backbone, drawn(queries_per_set=queries_per_set), SITES):
        for vectors in (lesson.taught, *lesson.vectors.values()):
            assert vectors.untyped_storage().nbytes() == vectors.numel() * vectors.element_size()


def test_the_first_token_of_a_prompt_is_in_no_distance() -> None:
    """In a model without a beginning-of-sequence token it is a word, to which all others attend."""
    backbone = tiny_backbone("qwen2")
    assert not backbone.adds_bos
    found = attempt(backbone, Fitted({}, {}), taught(backbone, drawn(), SITES), SITES)
    plain = float(found.distance())
    for vectors in found.vectors.values():
        vectors[:, 0] += 1000  # padding is on the right
    assert float(found.distance()) == plain
    for vectors in found.vectors.values():
        vectors[:, 1] += 1000
    assert float(found.distance()) > 100 * plain


def test_the_teacher_shows_new_demonstrations_at_every_step_and_keeps_one_minibatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = tiny_backbone("llama")
    shown: list[list[Episode]] = []
    alive: list[weakref.ref[Lesson]] = []
    most = 0

    def noted(backbone: Backbone, episodes: list[Episode], sites: Any) -> list[Lesson]:
        nonlocal most
        shown.append(list(episodes))
        found = taught(backbone, episodes, sites)
        alive.extend(weakref.ref(lesson) for lesson in found)
        most = max(most, sum(lesson() is not None for lesson in alive))
        return found

    monkeypatch.setattr("icrbench.toolkit.distillation.taught", noted)
    fit("mimic", backbone, queries=8, batch_size=4, queries_per_set=2, epochs=3, per_class=2)
    assert [len(step) for step in shown] == [4] * 6
    for step in shown:
        sets = [episode.demonstrations for episode in step]
        assert sets[0] == sets[1]
        assert sets[2] == sets[3]
        assert sets[0] != sets[2]
    by_query: dict[str, set[Any]] = {}
    for episode in (episode for step in shown for episode in step):
        by_query.setdefault(episode.query.example.id, set()).add(episode.demonstrations)
    assert {len(sets) for sets in by_query.values()} == {3}  # every epoch its own
    assert most <= 2 * 4  # the minibatch of the step before goes as the next one comes


def test_training_ends_after_most_steps() -> None:
    steps: list[int] = []

    def objective(own: Attempt) -> Tensor:
        steps.append(len(own.lessons))
        return own.cross_entropy()

    backbone = tiny_backbone("gpt2")
    method = make_method("live", {"batch_size": 4, "epochs": 3, "most_steps": 4})
    assert isinstance(method, Distilled)
    initial = fit("live", backbone, queries=2, per_class=1, epochs=1)
    trained = method.train(backbone, initial, {"vectors": 0.01}, lessons(backbone), objective, Randomness(0))
    assert sorted(steps[:3]) == [2, 4, 4]
    assert len(steps) == 4
    assert len(trained.config["loss"]) == 2
    assert method.asked(10) == 16
    with pytest.raises(UserError, match=r"live\.most_steps must be at least 1, not 0\."):
        make_method("live", {"most_steps": 0})


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
