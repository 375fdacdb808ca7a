import json
from pathlib import Path
from typing import Any

import pytest
import torch

from icr_setup import demo_pool
from icrbench.backbone import make_batch
from icrbench.backbone.sites import Site, captured
from icrbench.methods.ia2 import IA2, activations
from icrbench.randomness import Randomness
from icrbench.scoring.prompting import Prompt
from icrbench.toolkit.distillation import Attempt, Lesson, attempt, taught
from icrbench.toolkit.episodes import Episode, Labelled, Question, Questions
from icrbench.toolkit.lora import LoRAFitted, initial_lora
from method_setup import fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

QUICK: dict[str, Any] = {"per_class": 2, "epochs": 2, "rank": 2, "learning_rate": 0.01}
STORED = json.loads((Path(__file__).parents[1] / "golden" / "ia2.json").read_text("utf-8"))
GOLDEN = {**STORED["inputs"], **STORED["expected"]}
SITES = [Site("attention", layer) for layer in range(LAYERS)]
families = pytest.mark.parametrize("family", FAMILIES)


def initial(family: str, **settings: Any) -> LoRAFitted:
    own = {"letters": "qko", "blocks": range(LAYERS), "rank": 2, "alpha": 4.0, "dropout": 0.0, **settings}
    return initial_lora(tiny_backbone(family), Randomness(0), **own)


def golden_lessons() -> list[Lesson]:
    """What the frozen model makes of the recorded prompts."""
    backbone, found = tiny_backbone("llama"), []
    for row in GOLDEN["rows"]:
        batch = make_batch([row["in_context"]], [""])
        with torch.no_grad(), captured(backbone, SITES) as seen:
            final = batch.at_last(backbone.hidden_states(batch))[0]
        vectors = {site: seen[site][0, -1:] for site in SITES}
        question = Question(Prompt(tuple(row["alone"]), "", (row["teacher"],), False, 0), 0)
        found.append(Lesson(question, final, vectors))
    return found


def golden_start() -> LoRAFitted:
    """The factors that the recorded training started from."""
    start, generator = initial("llama", alpha=GOLDEN["alpha"]), torch.Generator().manual_seed(7)
    for name in sorted(start.tensors):
        start.tensors[name].copy_(0.1 * torch.randn(start.tensors[name].shape, generator=generator))
    return start


def losses(fitted: LoRAFitted) -> dict[str, list[float]]:
    """Each stage's loss of each recorded row."""
    backbone, found = tiny_backbone("llama"), {}
    for stages in ("act", "tok", "tna"):
        ((objective, _),) = IA2(stages=stages, w_answer=GOLDEN["w_answer"])._objectives(SITES)  # type: ignore[arg-type]
        with torch.no_grad():
            found[stages] = [
                float(objective(attempt(backbone, fitted, [lesson], SITES))) for lesson in golden_lessons()
            ]
    return found


def test_losses_and_training_are_those_of_the_authors_code() -> None:
    """Numbers of that code; where they come from stands in the file."""
    backbone, lessons, fitted = tiny_backbone("llama"), golden_lessons(), golden_start()
    likely = [int(backbone.logits(lesson.taught).argmax()) for lesson in lessons]
    assert likely == [row["teacher"] for row in GOLDEN["rows"]]
    assert losses(fitted) == {name: pytest.approx(own, rel=1e-4) for name, own in GOLDEN["at_first"].items()}
    rate = GOLDEN["learning_rate"]
    for stages, epochs, wanted in (
        ("act", GOLDEN["epochs"][0], "after_act"),
        ("tok", GOLDEN["epochs"][1], "after_a2t"),
    ):
        method = IA2(stages=stages, epochs=epochs, batch_size=3, clip=1e9)  # type: ignore[arg-type]
        fitted = method._trained(backbone, fitted, rate, lessons, Randomness(0), SITES)
        assert losses(fitted) == {name: pytest.approx(own, rel=5e-3) for name, own in GOLDEN[wanted].items()}
    start = golden_start().tensors
    for name, wanted in GOLDEN["change"].items():
        assert float((fitted.tensors[name] - start[name]).norm()) == pytest.approx(wanted, rel=1e-2)


@families
def test_a_teacher_without_demonstrations_is_matched_from_the_start(family: str) -> None:
    backbone, pool = tiny_backbone(family), demo_pool("sst2")
    lessons = taught(backbone, [Episode((), Labelled(pool.task, row)) for row in pool.train[:3]], SITES, most=1)
    with torch.no_grad():
        made = attempt(backbone, initial(family), lessons, SITES)
    assert float(activations(made)) < 1e-8


@families
def test_only_the_prompt_s_last_token_is_compared(family: str) -> None:
    """Against the definition, row by row."""
    backbone, pool = tiny_backbone(family), demo_pool("sst2")
    rows = [Labelled(pool.task, row) for row in pool.train[:5]]
    episodes = [Episode(tuple(rows[:2]), query) for query in rows[2:]]
    lessons, questions = taught(backbone, episodes, SITES, most=1), Questions(backbone)
    differences = []
    for episode in episodes:
        ends = []
        for question in (questions(episode.query), questions(episode.query, episode.demonstrations)):
            batch = make_batch([question.prompt.tokens], [""])
            with torch.no_grad(), captured(backbone, SITES) as seen:
                backbone.hidden_states(batch)
            ends.append(torch.stack([seen[site][0, -1] for site in SITES]).double())
        differences.append((ends[0] - ends[1]).square().mean() * LAYERS)
    with torch.no_grad():
        found = activations(attempt(backbone, initial(family), lessons, SITES))
    assert float(found) == pytest.approx(float(torch.stack(differences).mean()), rel=1e-4)


def test_each_row_follows_all_others_and_never_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Episode] = []

    def noted(backbone: Any, episodes: list[Episode], sites: Any, most: int) -> Any:
        seen.extend(episodes)
        assert most == 1
        return taught(backbone, episodes, sites, most)

    monkeypatch.setattr("icrbench.methods.ia2.taught", noted)
    fit("ia2", **{**QUICK, "per_class": 3, "epochs": 1})
    everyone = {episode.query for episode in seen}
    assert len(seen) == len(everyone) == 6
    for episode in seen:
        assert set(episode.demonstrations) == everyone - {episode.query}
    assert len({tuple(own.example.id for own in episode.demonstrations)[:2] for episode in seen}) > 2  # orders differ


def test_stages_follow_each_other_on_the_same_factors() -> None:
    both, first = fit("ia2", **QUICK), fit("ia2", stages="act", **QUICK)
    assert len(both.config["loss"]) == 4
    assert both.config["loss"][:2] == first.config["loss"]
    assert any((both.tensors[name] != tensor).any() for name, tensor in first.tensors.items())


def test_weights_zero_and_one_of_both_losses_are_either() -> None:
    lessons, fitted = golden_lessons(), golden_start()
    with torch.no_grad():
        made = attempt(tiny_backbone("llama"), fitted, lessons, SITES)
    for weight, other in ((0.0, "act"), (1.0, "tok")):
        ((both, _),) = IA2(stages="tna", w_answer=weight)._objectives(SITES)
        ((alone, _),) = IA2(stages=other)._objectives(SITES)  # type: ignore[arg-type]
        assert torch.equal(both(made), alone(made))


def test_with_gold_answers_the_second_stage_is_lora() -> None:
    ((objective, sites),) = IA2(stages="tok", targets="gold")._objectives(SITES)
    assert objective is Attempt.cross_entropy
    assert not sites


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_training_lowers_the_losses(family: str) -> None:
    fitted = fit("ia2", tiny_backbone(family), **{**QUICK, "per_class": 1, "epochs": 4})
    first, second = fitted.config["loss"][:4], fitted.config["loss"][4:]
    assert first[-1] < first[0]
    assert second[-1] < second[0]
    assert 0 <= fitted.config["teacher"] <= 1


@families
def test_before_training_it_is_zero_shot_bit_for_bit(family: str) -> None:
    backbone, asked = tiny_backbone(family), zero_shot_questions(tiny_backbone(family))
    assert torch.equal(logits(backbone, initial(family), asked), logits(backbone, None, asked))


def test_the_learning_rate_is_chosen_on_held_out_rows_unless_it_is_given() -> None:
    small = {**QUICK, "per_class": 1, "epochs": 1, "held_out": 3}
    assert len(fit("ia2", **{**small, "learning_rate": 0.0}).config["sweep"]) == 3
    assert fit("ia2", **small).config["sweep"] == []


def test_lessons_can_be_cut_to_the_last_tokens() -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    rows = [Labelled(pool.task, row) for row in pool.train[:4]]
    episodes = [Episode(tuple(rows[:2]), query) for query in rows[2:]]
    for whole, cut in zip(taught(backbone, episodes, SITES), taught(backbone, episodes, SITES, most=3), strict=True):
        torch.testing.assert_close(cut.taught, whole.taught, atol=1e-4, rtol=1e-4)
        for site in SITES:
            assert cut.vectors[site].shape == (3, 48)
            torch.testing.assert_close(cut.vectors[site], whole.vectors[site][-3:], atol=1e-4, rtol=1e-4)
