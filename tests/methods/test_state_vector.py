"""State vectors: where they are read, how they are averaged, and that they carry a few-shot prompt's prediction."""

import pytest
import torch
from torch import Tensor

from icr_setup import demo_pool
from icrbench.backbone import Backbone
from icrbench.data.task import DEMONSTRATION_SEPARATOR
from icrbench.methods.state_vector import StateVectorFitted, cue_states, inner, momentum
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.episodes import Labelled, Questions
from icrbench.util.errors import UserError
from method_setup import DOMAINS, Slow, fit, logits, zero_shot_questions
from official import golden
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)


def drawn(backbone: Backbone, count: int = 4) -> tuple[Demonstrations, Labelled]:
    pool = demo_pool("sst2")
    rows = [Labelled(pool.task, row) for row in pool.train[: count + 1]]
    return Demonstrations.fitting(backbone, rows[:count]), rows[count]


@pytest.mark.parametrize("case", [0, 1])
def test_averages_are_the_official_ones(case: int) -> None:
    given = golden("state_vector")
    states = torch.tensor(given["inputs"]["vectors"][case])
    torch.testing.assert_close(inner(states), torch.tensor(given["expected"]["inner"][case]), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        momentum(states, 1.0), torch.tensor(given["expected"]["momentum"][case]), rtol=0, atol=1e-5
    )


def test_no_rate_and_equal_states_are_the_average() -> None:
    states = torch.randn(9, 2, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(momentum(states, 0.0), inner(states))
    equal = states[:1].expand(9, -1, -1)
    torch.testing.assert_close(momentum(equal, 1.0), equal[0])
    reversed_order = torch.cat([states[:-1].flip(0), states[-1:]])
    assert not torch.allclose(momentum(reversed_order, 1.0), momentum(states, 1.0), atol=1e-2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_states_are_all_averaged(count: int) -> None:
    states = torch.randn(count, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(inner(states), states.mean(0))
    moved = momentum(states, 1.0)
    assert moved.isfinite().all()
    assert torch.allclose(moved, inner(states)) == (count < 3)  # three states have one step between demonstrations


@families
def test_states_are_read_where_answers_are_predicted(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    demonstrations, query = drawn(backbone)
    found = cue_states(backbone, demonstrations, query)
    prompt = Questions(backbone)(query, demonstrations.shown).prompt
    text = DEMONSTRATION_SEPARATOR.join([*(own.task.demonstration(own.example) for own in demonstrations.shown), ""])
    assert demonstrations.text == text
    cues = demonstrations.cues(backbone)
    assert len(cues) == len(demonstrations.shown) == (2 if family == "gpt2" else 4)  # its context is short
    assert all(backbone.tokenizer.decode(prompt.tokens[: cue + 1]).endswith("Sentiment:") for cue in cues)
    outputs = slow.outputs(prompt.tokens)
    for place, cue in enumerate([*cues, len(prompt.tokens) - 1]):
        for layer in range(LAYERS):
            added = backbone.part(layer, backbone.anatomy.output)(found[place, layer])
            if backbone.anatomy.attention_norm is not None:
                added = backbone.blocks[layer].get_submodule(backbone.anatomy.attention_norm)(added)
            torch.testing.assert_close(added.double(), outputs["attention", layer][cue], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])  # its places are in the embeddings
def test_a_prompts_own_states_in_all_blocks_are_its_few_shot_logits(family: str) -> None:
    backbone = tiny_backbone(family)
    demonstrations, query = drawn(backbone)
    states = cue_states(backbone, demonstrations, query)
    fitted = StateVectorFitted({"layer": LAYERS - 1, "sweep": []}, {"vectors": states[-1]})
    questions = Questions(backbone)
    found = logits(backbone, fitted, [questions(query)])
    wanted = logits(backbone, None, [questions(query, demonstrations.shown)])
    assert not torch.allclose(logits(backbone, None, [questions(query)]), wanted, atol=1e-2)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-4)


@families
def test_blocks_above_the_last_one_are_left_to_themselves(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = zero_shot_questions(backbone)
    whole = fit("state_vector", backbone, shots=4, layer=LAYERS - 1, held_out=4)
    part = fit("state_vector", backbone, shots=4, layer=2, held_out=4)
    assert torch.equal(part.tensors["vectors"], whole.tensors["vectors"][:3])
    assert part.cached_parameters == part.parameters_by_formula(backbone.dims)
    assert not torch.allclose(logits(backbone, part, questions), logits(backbone, whole, questions), atol=1e-3)


def test_variants_differ_and_the_block_is_the_best_on_held_out_rows() -> None:
    settings = {"shots": 8, "held_out": 8}
    fits = [fit("state_vector", variant=variant, **settings) for variant in ("plain", "inner", "momentum")]
    for own in fits:
        sweep = own.config["sweep"]
        assert len(sweep) == LAYERS
        assert own.config["layer"] == sweep.index(max(sweep))
        assert own.config["states"] == 8
    first = [own.tensors["vectors"][0] for own in fits]
    assert not any(torch.allclose(first[a], first[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    with pytest.raises(UserError, match=r"state_vector\.layer must be 0 to 5"):
        fit("state_vector", layer=6, **settings)


@pytest.mark.parametrize(("names", "target"), [(("sst2",), "sst2"), (DOMAINS, None)])
def test_the_dummy_query_is_none_of_the_demonstrations(
    names: tuple[str, ...], target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[Demonstrations, Labelled]] = []

    def noted(backbone: Backbone, demonstrations: Demonstrations, query: Labelled) -> Tensor:
        read.append((demonstrations, query))
        return cue_states(backbone, demonstrations, query)

    monkeypatch.setattr("icrbench.methods.state_vector.cue_states", noted)
    fitted = fit("state_vector", None, names, target, shots=10, held_out=5)
    ((demonstrations, query),) = read
    assert fitted.config["states"] == len(demonstrations.shown) >= 9  # as many as fit before a query
    assert query.example.content_hash not in {own.example.content_hash for own in demonstrations.shown}
    assert {own.task.name for own in demonstrations.shown} == set(names)
