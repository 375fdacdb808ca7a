"""SADI: which heads are chosen, what is done to them, and by what."""

import numpy as np
import pytest
import torch
from torch import Tensor

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.sites import Site, captured, output_weight
from icrbench.methods.sadi import SADI, SADIFitted, head_scores, strongest
from icrbench.registry import make_method
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, fit, logits, zero_shot_questions
from official import golden
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)
ONE = {"pairs": 4, "heads": "2", "strengths": "3", "held_out": 4}


def scaled(backbone: Backbone, heads: list[tuple[int, int]], strength: float) -> SADIFitted:
    mask = torch.zeros(backbone.dims.layers, backbone.dims.heads)
    for layer, head in heads:
        mask[layer, head] = 1
    return SADIFitted({"heads": [list(own) for own in heads], "strength": strength}, {"mask": mask})


def test_heads_are_the_official_ones() -> None:
    given = golden("sadi")
    layers, heads, width = (given["inputs"][name] for name in ("layers", "heads", "head_dim"))
    draw = np.random.RandomState(7)  # as the file says
    read = torch.tensor(np.stack([draw.randn(layers, heads * width).round(3) for _ in range(8)]))
    scores = head_scores(read[0::2], read[1::2], heads)
    assert strongest(scores, 20) == [tuple(own) for own in given["expected"]["heads"]]


def test_scores_keep_their_sign_and_equal_pairs_score_nothing() -> None:
    right = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(head_scores(right, right, 4), torch.zeros(2, 4))
    wrong = right.clone()
    wrong[:, 1, 2:4] += 5.0
    wrong[:, 0, 6:8] -= 1.0
    torch.testing.assert_close(head_scores(right, wrong, 4), torch.tensor([[0, 0, 0, 1.0], [0, -5.0, 0, 0]]))
    assert strongest(head_scores(right, wrong, 4), 1) == [(0, 3)]
    assert strongest(torch.zeros(2, 3), 4) == [(0, 0), (0, 1), (0, 2), (1, 0)]


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_of_one_is_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    questions = zero_shot_questions(backbone)
    bare = logits(backbone, None, questions)
    heads = [(1, 2), (4, 0)]
    assert torch.equal(logits(backbone, scaled(backbone, heads, 1.0), questions), bare)
    assert not torch.equal(logits(backbone, scaled(backbone, heads, 4.0), questions), bare)


@families
def test_attention_changes_by_what_the_head_adds(family: str) -> None:
    backbone, layer, head = tiny_backbone(family), 2, 3
    questions = zero_shot_questions(backbone)
    batch = make_batch([own.prompt.tokens for own in questions], [own.prompt.text for own in questions])
    projection = backbone.part(layer, backbone.anatomy.output)
    given: list[Tensor] = []
    handle = projection.register_forward_hook(lambda _module, _inputs, output: given.append(output))
    try:
        with torch.no_grad(), captured(backbone, [Site("heads", layer)]) as seen:
            backbone.hidden_states(batch)
            own = batch.at_last(seen[Site("heads", layer)])
            with scaled(backbone, [(layer, head)], 2.5).applied(backbone, batch):
                backbone.hidden_states(batch)
    finally:
        handle.remove()
    columns = slice(head * backbone.dims.head_dim, (head + 1) * backbone.dims.head_dim)
    wanted = 1.5 * own[:, columns] @ output_weight(backbone, layer)[:, columns].T
    change = given[1] - given[0]
    torch.testing.assert_close(batch.at_last(change), wanted, rtol=1e-3, atol=1e-3)
    change[batch.rows, batch.last] = 0
    assert not change.any()


@pytest.mark.parametrize(("names", "target"), [(("sst2",), "sst2"), (DOMAINS, None)])
def test_pairs_are_train_rows_with_a_right_and_a_wrong_answer(
    names: tuple[str, ...], target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[list[str], list[str]]] = []
    below = SADI._read

    def noted(self: SADI, backbone: Backbone, rows: list, answers: list[str]) -> Tensor:
        read.append(([row.task.answer(row.example) for row in rows], answers))
        options = [row.example.options for row in rows]
        assert all(answer in own for answer, own in zip(answers, options, strict=True))
        return below(self, backbone, rows, answers)

    monkeypatch.setattr(SADI, "_read", noted)
    fitted = fit("sadi", None, names, target, **{**ONE, "pairs": 10})
    (right, given), (same, wrong) = read
    assert right == same == given
    assert all(one != other for one, other in zip(right, wrong, strict=True))
    assert len(right) == 10
    assert len(fitted.config["heads"]) == 2
    assert fitted.config["sweep"] == []


def test_written_answers_are_wrong_for_other_rows() -> None:
    fitted = fit("sadi", None, ("sums",), "sums", **ONE)
    assert len(fitted.config["heads"]) == 2
    with pytest.raises(UserError, match="different answers"):
        fit("sadi", None, ("sums",), "sums", **{**ONE, "pairs": 1})


def test_number_and_factor_are_the_best_on_held_out_rows() -> None:
    fitted = fit("sadi", pairs=4, heads="1+3", strengths="0.5+8", held_out=10)
    sweep = fitted.config["sweep"]
    assert [own[:2] for own in sweep] == [[1, 0.5], [1, 8.0], [3, 0.5], [3, 8.0]]
    found = [own[2] for own in sweep]
    assert [len(fitted.config["heads"]), fitted.config["strength"]] == sweep[found.index(max(found))][:2]
    assert fitted.cached_parameters == LAYERS * 6 == fitted.parameters_by_formula(tiny_backbone("llama").dims)
    assert fitted.first_layer == min(layer for layer, _ in fitted.config["heads"])


def test_lists_that_cannot_be_read_are_refused() -> None:
    for wrong in ({"heads": "1+x"}, {"heads": "0"}, {"heads": "1.5"}, {"strengths": ""}):
        with pytest.raises(UserError, match="sadi"):
            make_method("sadi", wrong)
