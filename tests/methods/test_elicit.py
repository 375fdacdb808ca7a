from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_test
from icrbench.backbone import Backbone
from icrbench.data.find_tasks import load_tasks
from icrbench.methods.elicit import Elicit, ElicitFitted
from icrbench.methods.task_vector import TaskVectorFitted
from icrbench.registry import make_method
from icrbench.runner.presets import preset
from icrbench.toolkit.episodes import Episode, Question, Questions
from icrbench.toolkit.layer_vector import LayerVector
from icrbench.util.errors import UserError
from method_setup import Slow, asked, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["asked"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
SMALL: dict[str, Any] = {"prompts": 3, "shots": 3, "k": 3, "held_out": 4}
TWO = {"names": ("sst2", "trec"), "target": None}


def with_config(fitted: ElicitFitted, **values: Any) -> ElicitFitted:
    assert set(values) <= set(fitted.config)
    return ElicitFitted({**fitted.config, **values}, fitted.tensors)


def questions_of(backbone: Backbone, *names: str) -> list[Question]:
    return [question for name in names for question in zero_shot_questions(backbone, name, 3)]


@families
def test_it_is_what_the_formulas_say_in_float64(family: str, asked: list[Episode]) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = fit("elicit", backbone, **{**SMALL, "held_out": 9})
    prompts = [Questions(backbone)(episode.query, episode.demonstrations) for episode in asked]
    assert len(prompts) == 3
    (layer,) = fitted.config["blocks"]
    sweep = fitted.config["sweep"]
    assert layer == sweep.index(max(sweep))
    mean = torch.stack([slow.outputs(own.prompt.tokens)["block", layer][-1] for own in prompts]).mean(0)
    torch.testing.assert_close(fitted.tensors["states"][0, 0].double(), mean, atol=2e-4, rtol=1e-4)
    questions = zero_shot_questions(backbone)
    found = logits(backbone, fitted, questions).double()
    for row, question in enumerate(questions):

        def add(states: Tensor) -> Tensor:
            changed = states.clone()
            changed[-1] += 2 * mean
            return changed

        wanted = slow.logits(question.prompt.tokens, {("block", layer): add})[-1]
        torch.testing.assert_close(found[row], wanted, atol=5e-3, rtol=1e-3)


def test_prompts_show_as_many_demonstrations_as_asked_for(asked: list[Episode]) -> None:
    held_out = 6
    fitted = fit("elicit", **TWO, prompts=4, k=4, shots=5, held_out=held_out)
    assert [episode.query.task.name for episode in asked] == ["sst2"] * 4 + ["trec"] * 4
    for episode in asked:
        classes = Counter(shown.example.label for shown in episode.demonstrations)
        assert {shown.task for shown in episode.demonstrations} == {episode.query.task}
        assert sum(classes.values()) == 5
        assert len(classes) == min(5, episode.query.task.max_options)
        assert episode.query.example not in [shown.example for shown in episode.demonstrations]
    assert len({episode.demonstrations for episode in asked}) == 8
    assert {name: len(scores) for name, scores in fitted.config["sweep"].items()} == {"sst2": LAYERS, "trec": LAYERS}


@families
@pytest.mark.parametrize("names", [("sst2",), ("sst2", "trec")])
def test_weight_zero_is_zero_shot_and_so_is_a_threshold_out_of_reach(family: str, names: tuple[str, ...]) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("elicit", backbone, names=names, target=None, threshold=1.1, **SMALL)
    questions = questions_of(backbone, *names)
    plain = logits(backbone, None, questions)
    assert torch.equal(logits(backbone, fitted, questions), plain)
    assert torch.equal(logits(backbone, with_config(fitted, threshold=None, vector_weight=0.0), questions), plain)
    assert not torch.allclose(logits(backbone, with_config(fitted, threshold=None), questions), plain, atol=1e-3)


@families
def test_without_the_own_state_it_is_a_task_vector(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("elicit", backbone, own_weight=0.0, vector_weight=1.0, layer=3, **SMALL)
    replaced: LayerVector = TaskVectorFitted({"layer": 3, "sweep": []}, {"vector": fitted.tensors["states"][0, 0]})
    questions = zero_shot_questions(backbone)
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, replaced, questions))


def test_a_query_finds_its_own_prompt_first_and_its_own_task(asked: list[Episode]) -> None:
    fitted = fit("elicit", **TWO, **{**SMALL, "k": 2})
    assert fitted.tensors["embeddings"].shape == (6, 384)
    for place, episode in enumerate(asked):
        found = fitted.found(episode.query.task.prompt(episode.query.example))
        assert found is not None
        assert found.entries[0] == place
        assert len(found.entries) == 2
    for name, own in [("sst2", {0, 1, 2}), ("trec", {3, 4, 5})]:
        for example in demo_test(name)[:4]:
            found = fitted.found(load_tasks()[name].prompt(example))
            assert found is not None
            assert set(found.entries) <= own
            assert found.layer == fitted.config["best"][found.entries[0]]


def test_the_block_is_that_of_most_entries_and_of_several_the_lowest() -> None:
    vectors = torch.eye(384)[:4]
    fitted = fit("elicit", **TWO, **SMALL)
    states = fitted.tensors["states"][:4]

    def layer(best: list[int]) -> int:
        made = with_config(fitted, best=best, k=4)
        made.tensors = {"states": states, "embeddings": vectors}
        found = made.found("any text")
        assert found is not None
        return found.layer

    assert layer([5, 1, 5, 2]) == 5
    assert layer([5, 1, 5, 1]) == 1


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_queries_of_one_batch_get_their_own_states_and_blocks(family: str) -> None:
    backbone = tiny_backbone(family)
    # With a weight on the own state, adding nothing is not the same as leaving it alone.
    fitted = fit("elicit", backbone, **TWO, own_weight=0.5, **{**SMALL, "k": 2})
    generator = torch.Generator().manual_seed(0)
    fitted.config |= {"blocks": [1, 4], "best": [1, 1, 1, 4, 4, 4]}
    fitted.tensors["states"] = torch.randn(6, 2, 48, generator=generator)
    questions = questions_of(backbone, "sst2", "trec")
    together = logits(backbone, fitted, questions)
    for row, question in enumerate(questions):
        alone = logits(backbone, fitted, [question])[0]
        torch.testing.assert_close(together[row], alone, atol=1e-4, rtol=1e-4)
        found = fitted.found(question.prompt.text)
        assert found is not None
        assert found.layer == (1 if row < 3 else 4)
        place = fitted.config["blocks"].index(found.layer)
        vector = fitted.tensors["states"][found.entries, place].mean(0)
        by_hand = fit("elicit", backbone, layer=found.layer, own_weight=0.5, **SMALL)
        by_hand.tensors["states"] = vector[None, None]
        torch.testing.assert_close(alone, logits(backbone, by_hand, [question])[0], atol=1e-4, rtol=1e-4)


def test_a_library_of_one_task_is_retrieved_from_only_where_there_is_a_choice() -> None:
    assert fit("elicit", **SMALL).tensors.keys() == {"states"}
    assert fit("elicit", **SMALL).cached_parameters == 48
    for settings in ({"k": 2}, {"threshold": 0.1}):
        fitted = fit("elicit", **{**SMALL, **settings})
        assert fitted.cached_parameters == 3 * (48 + 384) == fitted.parameters_by_formula(tiny_backbone("llama").dims)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"elicit\.k must be at least 1, not 0\."):
        Elicit(k=0)


@pytest.mark.parametrize("name", ["paper", "cpu", "demo"])
def test_a_query_can_be_served_by_one_task_alone(name: str) -> None:
    with pytest.raises(UserError, match=r"elicit\.k must not exceed elicit\.prompts, not 10 of 5"):
        make_method("elicit", {"prompts": 5})
    elicit = make_method("elicit", preset(name).methods.get("elicit", {}))
    assert isinstance(elicit, Elicit)
    assert elicit.k <= elicit.prompts
