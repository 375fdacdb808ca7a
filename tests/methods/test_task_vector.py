from pathlib import Path

import pytest
import torch
from torch import Tensor

from icr_setup import demo_test, pools
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.sites import Site, captured
from icrbench.data.find_tasks import load_tasks
from icrbench.method import FitData
from icrbench.methods.task_vector import TaskVector, TaskVectorFitted
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episode, Episodes, Labelled, Question, Questions
from icrbench.toolkit.selection import accuracies
from icrbench.util.errors import UserError
from method_setup import asked
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["asked"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
SST2 = load_tasks()["sst2"]
SMALL = {"per_class": 2, "per_task": 1, "held_out": 6}


def fit(family: str = "llama", seed: int = 0, **settings: int) -> TaskVectorFitted:
    method = TaskVector(**{**SMALL, **settings})
    return method.fit(tiny_backbone(family), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(seed))


def logits(backbone: Backbone, question: Question, fitted: TaskVectorFitted | None = None) -> Tensor:
    batch = make_batch([question.prompt.tokens], [question.prompt.text])
    with torch.no_grad():
        if fitted is None:
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))
        with fitted.applied(backbone, batch):
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))


def states_at_the_end(backbone: Backbone, question: Question) -> list[Tensor]:
    batch = make_batch([question.prompt.tokens], [question.prompt.text])
    with torch.no_grad(), captured(backbone, [Site("block", layer) for layer in range(LAYERS)]) as seen:
        backbone.hidden_states(batch)
    return [seen[Site("block", layer)][0, -1] for layer in range(LAYERS)]


def put_in(vector: Tensor, layer: int) -> TaskVectorFitted:
    return TaskVectorFitted({"layer": layer, "sweep": []}, {"vector": vector})


def a_query_and_demonstrations() -> tuple[Labelled, tuple[Labelled, ...]]:
    rows = [Labelled(SST2, row) for row in pools("sst2")["sst2"].train[:5]]
    return rows[0], tuple(rows[1:])


@families
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_prompt_s_own_state_changes_nothing(family: str, layer: int) -> None:
    backbone, (query, _) = tiny_backbone(family), a_query_and_demonstrations()
    question = Questions(backbone)(query)
    own = put_in(states_at_the_end(backbone, question)[layer], layer)
    assert torch.equal(logits(backbone, question, own), logits(backbone, question))


@families
def test_the_few_shot_state_of_the_same_query_gives_the_few_shot_logits_at_the_last_block_only(family: str) -> None:
    backbone, (query, shown) = tiny_backbone(family), a_query_and_demonstrations()
    questions = Questions(backbone)
    zero_shot, few_shot = questions(query), questions(query, shown)
    wanted, states = logits(backbone, few_shot), states_at_the_end(backbone, few_shot)
    torch.testing.assert_close(
        logits(backbone, zero_shot, put_in(states[-1], LAYERS - 1)), wanted, atol=1e-4, rtol=1e-5
    )
    for layer in range(LAYERS - 1):  # above, attention still looks at the zero-shot prompt
        assert not torch.allclose(logits(backbone, zero_shot, put_in(states[layer], layer)), wanted, atol=1e-2)


def test_the_vector_is_the_mean_state_of_dummy_queries_after_the_same_demonstrations(asked: list[Episode]) -> None:
    backbone = tiny_backbone("llama")
    fitted = fit(dummies=3, layer=2)
    assert len(asked) == 3
    assert len({episode.demonstrations for episode in asked}) == 1
    states = [states_at_the_end(backbone, Questions(backbone)(e.query, e.demonstrations))[2].double() for e in asked]
    torch.testing.assert_close(fitted.tensors["vector"].double(), torch.stack(states).mean(0), atol=1e-4, rtol=1e-4)


def test_the_sweep_takes_the_lowest_of_the_best_layers_on_held_out_rows() -> None:
    fitted = fit(held_out=12)
    sweep = fitted.config["sweep"]
    assert len(sweep) == LAYERS
    assert fitted.config["layer"] == sweep.index(max(sweep))
    assert fit(layer=4).config == {"layer": 4, "sweep": []}


@families
def test_the_sweep_s_scores_are_those_of_whole_forward_passes(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit(family, held_out=12)
    data = FitData(pools("sst2"), "sst2", Path("unused"))
    episodes = Episodes(data, Randomness(0), per_class=2, per_task=1, held_out=12)
    held_out = Questions(backbone).zero_shot(episodes.held_out)
    candidates = [fit(family, held_out=12, layer=layer) for layer in range(LAYERS)]
    slow = accuracies(backbone, candidates, held_out, last_token_only=False)
    assert fitted.config["sweep"] == slow
    by_hand = [
        sum(
            int(logits(backbone, question, candidate)[0, list(question.prompt.options)].argmax()) == question.label
            for question in held_out
        )
        / len(held_out)
        for candidate in candidates
    ]
    assert slow == by_hand


def test_at_the_last_block_every_query_gets_the_same_answer() -> None:
    backbone, fitted = tiny_backbone("llama"), fit(layer=LAYERS - 1)
    questions = Questions(backbone).zero_shot(Labelled(SST2, row) for row in demo_test("sst2")[:6])
    first, *others = (logits(backbone, question, fitted) for question in questions)
    assert all(torch.allclose(other, first, atol=1e-4) for other in others)


def test_out_of_domain_the_dummy_query_is_not_always_of_the_same_task(asked: list[Episode]) -> None:
    data = FitData(pools("agnews", "csqa", "piqa", "sst2", "trec"), None, Path("unused"))
    for seed in range(8):
        TaskVector(per_task=1, held_out=5, layer=0).fit(tiny_backbone("llama"), data, Randomness(seed))
    assert len(asked) == 8
    assert len({episode.query.task.name for episode in asked}) > 2


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"task_vector\.layer must be 0 to 5 for this model, not 6\."):
        fit(layer=6)
