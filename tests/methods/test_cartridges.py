from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_pool, demo_test
from icrbench.backbone import Backbone
from icrbench.methods.cartridges import CartridgeFitted, Cartridges
from icrbench.scoring.prompting import Prompter
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import Attempt, attempt, taught
from icrbench.toolkit.episodes import Episode, Labelled, Question
from icrbench.util.errors import UserError
from method_setup import fit, logits, zero_shot_questions
from tiny import FAMILIES, tiny_backbone, tiny_model

QUICK: dict[str, Any] = {
    "per_class": 2,
    "per_task": 1,
    "queries": 8,
    "tokens": 8,
    "epochs": 2,
    "batch_size": 4,
    "learning_rate": 0.01,
}
families = pytest.mark.parametrize("family", FAMILIES)


def corpus(backbone: Backbone, count: int = 3) -> Demonstrations:
    pool = demo_pool("sst2")
    return Demonstrations.fitting(backbone, [Labelled(pool.task, row) for row in pool.train[:count]])


def initial(backbone: Backbone, **settings: Any) -> CartridgeFitted:
    return Cartridges(**settings)._initial(backbone, corpus(backbone))


def in_context(backbone: Backbone) -> list[Question]:
    """The questions of `zero_shot_questions` after the whole corpus."""
    task, shown = demo_pool("sst2").task, corpus(backbone).shown
    prompter = Prompter(backbone, task)
    texts = [task.demonstration(own.example) for own in shown]
    return [Question(prompter(row, texts), row.label) for row in demo_test("sst2")[:5]]


@families
@pytest.mark.parametrize("init", ["first", "spread"])
def test_with_a_slot_a_token_it_is_few_shot_before_training(family: str, init: Any) -> None:
    backbone = tiny_backbone(family)
    start = initial(backbone, tokens=1000, init=init)
    assert start.config["context"] == start.config["length"] == len(start.config["places"])
    found = logits(backbone, start, zero_shot_questions(backbone))
    torch.testing.assert_close(found, logits(backbone, None, in_context(backbone)), atol=1e-4, rtol=1e-5)
    shown = corpus(backbone).shown
    queries = [Labelled(demo_pool("sst2").task, row) for row in demo_test("sst2")[:3]]
    lessons = taught(backbone, [Episode(shown, query) for query in queries])
    with torch.no_grad():
        assert float(attempt(backbone, start, lessons).divergence()) == pytest.approx(0, abs=1e-5)


def test_slots_are_the_first_tokens_or_spread_over_the_corpus() -> None:
    backbone = tiny_backbone("gemma3")
    first, spread = initial(backbone, tokens=8), initial(backbone, tokens=8, init="spread")
    size = first.config["context"]
    assert first.config["places"] == list(range(8))
    assert first.config["length"] == 8
    assert first.config["has_bos"]
    assert spread.config["places"][0] == 0
    assert spread.config["places"][-1] == size - 1
    assert len(set(spread.config["places"])) == 8
    assert spread.config["length"] == size
    whole = initial(backbone, tokens=1000).virtual(backbone)
    for fitted in (first, spread):
        virtual = fitted.virtual(backbone)
        for own, all_of_it in ((virtual.keys, whole.keys), (virtual.values, whole.values)):
            torch.testing.assert_close(own, all_of_it[:, :, fitted.config["places"]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_training_lowers_the_divergence_and_leaves_the_sink(family: str) -> None:
    backbone = tiny_backbone(family)
    trained = fit("cartridges", backbone, **{**QUICK, "epochs": 3, "learning_rate": 0.03})
    untrained = fit("cartridges", backbone, **{**QUICK, "epochs": 1, "learning_rate": 0.0})
    assert trained.config["loss"][-1] < trained.config["loss"][0]
    for name in ("keys", "values"):
        assert torch.equal(trained.tensors[f"sink.{name}"], untrained.tensors[f"sink.{name}"])
        assert (trained.tensors[name] != untrained.tensors[name]).any()
        assert trained.tensors[name].dtype == torch.float32


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of names that peft still calls
def test_it_acts_as_peft_s_cartridge_of_the_same_tensors() -> None:
    from peft import CartridgeConfig, get_peft_model

    backbone = tiny_backbone("llama")
    fitted = initial(backbone, tokens=8)
    model: Any = tiny_model("llama")
    wrapped: Any = get_peft_model(
        model, CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=8, num_frozen_tokens=1)
    )
    virtual = fitted.virtual(backbone)
    # [p, 2L, G, d_k]: of each layer the keys, then the values
    both = torch.stack([virtual.keys, virtual.values], 1).flatten(0, 1).permute(2, 0, 1, 3)
    wrapped.prompt_encoder[wrapped.active_adapter].load_prompt_embeddings(both.flatten(1))
    wrapped.eval()
    questions = zero_shot_questions(backbone)
    wanted: list[Tensor] = []
    for question in questions:
        with torch.no_grad():
            wanted.append(wrapped(input_ids=torch.tensor([question.prompt.tokens])).logits[0, -1])
    torch.testing.assert_close(logits(backbone, fitted, questions), torch.stack(wanted), atol=1e-4, rtol=1e-5)


def test_queries_are_no_demonstrations_and_their_labels_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Episode] = []

    def noted(_backbone: Any, episodes: list[Episode]) -> Any:
        seen.extend(episodes)
        return taught(_backbone, episodes)

    monkeypatch.setattr("icrbench.methods.cartridges.taught", noted)
    fit("cartridges", **{**QUICK, "epochs": 1})
    assert len(seen) == 8
    assert len({episode.demonstrations for episode in seen}) == 1
    shown = {own.example.content_hash for own in seen[0].demonstrations}
    assert len(shown) == 4
    assert not shown & {episode.query.example.content_hash for episode in seen}
    backbone = tiny_backbone("llama")
    lessons = taught(backbone, seen[:2])
    with torch.no_grad():
        made = attempt(backbone, initial(backbone), lessons)
    other = Attempt(
        made.backbone,
        [type(one)(Question(one.question.prompt, 1 - one.question.label), one.taught) for one in lessons],
        made.batch,
        made.logits,
        made.vectors,
    )
    assert torch.equal(made.divergence(), other.divergence())


def test_at_most_half_of_the_rows_are_asked_and_the_corpus_fits() -> None:
    fitted = fit("cartridges", **{**QUICK, "queries": 1000, "per_class": 100, "context": 300, "epochs": 1})
    assert fitted.config["context"] <= 300
    assert 1 < fitted.config["shown"] < 20


@pytest.mark.parametrize("changes", [{"tokens": 1}, {"init": "last"}, {"context": 0}])
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        fit("cartridges", **changes)
