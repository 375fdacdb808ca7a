import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from icr_setup import training_prompts
from icrbench.backbone import Backbone, Revision, make_batch
from icrbench.backbone.batch import by_length
from icrbench.backbone.metering import metered
from icrbench.backbone.trunk import continue_from, trunk_states
from icrbench.methods.icr import trunkstore
from icrbench.methods.icr.trunkstore import TrunkStore
from icrbench.scoring.prompting import Prompt
from icrbench.toolkit.episodes import Question
from icrbench.util.errors import UserError
from slow_attention import Reference
from tiny import FAMILIES, tiny_backbone, tiny_model, tokenizer


class Killed(Exception):
    """Stands for whatever ends a run."""


def filled(backbone: Backbone, prompts: list[Question], folder: Path, layer: int = 4) -> TrunkStore:
    return filled_domains(backbone, [prompts], folder, layer)


def filled_domains(backbone: Backbone, domains: list[list[Question]], folder: Path, layer: int = 4) -> TrunkStore:
    store = TrunkStore(backbone, layer, domains, folder)
    store.fill()
    return store


def assert_same(first: TrunkStore, second: TrunkStore, count: int) -> None:
    one, two = first.load(range(count)), second.load(range(count))
    assert torch.equal(one.states, two.states)
    assert torch.equal(one.entropy, two.entropy)
    assert torch.equal(one.answers, two.answers)


@pytest.mark.parametrize("layer", [0, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_states_continue_to_the_model_s_logits(family: str, layer: int, tmp_path: Path) -> None:
    backbone = tiny_backbone(family)
    prompts = training_prompts(backbone, "trec", 7)
    store = filled(backbone, prompts, tmp_path, layer)
    rows = [5, 0, 3]
    data = store.load(rows)
    assert data.batch.texts == tuple(prompts[row].prompt.text for row in rows)
    assert data.answers.tolist() == [prompts[row].answer for row in rows]
    with torch.inference_mode():
        logits = backbone.logits(data.batch.at_last(continue_from(backbone, layer, data.states, data.batch)))
    reference = Reference(family)
    for place, row in enumerate(rows):
        expected = reference.one(prompts[row].prompt.tokens)[-1]
        assert (logits[place] - expected).abs().max() < 5e-3 * expected.abs().max()
        log_p = expected.log_softmax(0)
        assert float(data.entropy[place]) == pytest.approx(float(-(log_p.exp() * log_p).sum()), rel=1e-4)


def test_states_are_exact_to_half_precision_and_padding_is_zero(tmp_path: Path) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 4)
    store = filled(backbone, prompts, tmp_path)
    data = store.load([2, 1])
    with torch.inference_mode():
        truth = trunk_states(backbone, 4, data.batch)
    real = data.batch.attention_mask.bool()
    assert not data.states[~real].any()
    assert (data.states - truth)[real].abs().max() <= 1e-3 * truth.abs().max()
    assert ((data.states - truth).abs() <= 2**-10 * truth.abs() + 1e-5)[real].all()
    assert store.lengths() == [len(item.prompt.tokens) for item in prompts]


def test_huge_entries_do_not_overflow(tmp_path: Path) -> None:
    """A few entries of a million, as some models have in their first token, beside ordinary ones."""
    model = copy.deepcopy(tiny_model("llama"))
    embeddings: Any = model.get_input_embeddings()
    with torch.no_grad():
        embeddings.weight[65, 3] = 1e6
        embeddings.weight[66, 3:5] = torch.tensor([-1e6, 2e6])
    backbone = Backbone(model, tokenizer(), Revision("huge", "huge", "0"))
    tokens = (70, 65, 71, 66, *range(72, 90))
    prompts = [Question(Prompt(tokens, "", (1, 2), False, 0), 0)]
    data = filled(backbone, prompts, tmp_path).load([0])
    with torch.inference_mode():
        truth = trunk_states(backbone, 4, data.batch)
        full = backbone.logits(backbone.hidden_states(data.batch))
        logits = backbone.logits(continue_from(backbone, 4, data.states, data.batch))
    assert truth.abs().max() > 9e5
    assert torch.isfinite(data.states).all()
    largest = truth.abs().amax(2, keepdim=True)
    error = (data.states - truth).abs()
    assert (error <= 2**-10 * truth.abs() + 2**-38 * largest).all()
    small = truth.abs() < 10
    assert error[small].max() < 0.02  # ordinary entries beside a million survive too
    assert (logits - full).abs().max() < 1e-2 * full.abs().max()


def test_a_prompt_is_found_whatever_piece_it_lies_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 11) + training_prompts(backbone, "trec", 6)
    whole = filled(backbone, prompts, tmp_path / "whole")
    monkeypatch.setattr(trunkstore, "PIECE", 4)
    monkeypatch.setattr(trunkstore, "BATCH_TOKENS", 300)
    pieces = filled(backbone, prompts, tmp_path / "pieces")
    assert len(list((tmp_path / "pieces").rglob("*layer-04*"))) == 5
    one, two = whole.load(range(17)), pieces.load(range(17))
    torch.testing.assert_close(one.states, two.states, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(one.entropy, two.entropy, atol=1e-5, rtol=1e-5)
    for row, item in enumerate(prompts):
        batch = make_batch([item.prompt.tokens], [""])
        with torch.inference_mode():
            own = trunk_states(backbone, 4, batch)[0]
        torch.testing.assert_close(two.states[row, : own.shape[0]], own, atol=2e-3, rtol=2e-3)


def test_an_interrupted_fill_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 14)
    monkeypatch.setattr(trunkstore, "PIECE", 4)
    expected = filled(backbone, prompts, tmp_path / "whole")
    runs = {"left": 2}
    run = Backbone.hidden_states

    def counted(self: Backbone, *args: Any, **kwargs: Any) -> Any:
        if runs["left"] == 0:
            raise Killed
        runs["left"] -= 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Backbone, "hidden_states", counted)
    store = TrunkStore(backbone, 4, [prompts], tmp_path / "cut")
    with pytest.raises(Killed):
        store.fill()
    done = sorted(path.parent for path in (tmp_path / "cut").rglob("*.safetensors"))
    kinds = ("entropy", "layer-04")
    assert [path.name[:-17] for path in done] == [f"0000{piece}.{kind}" for piece in (0, 1) for kind in kinds]
    runs["left"] = 2  # two of four pieces are there: two runs must be enough
    again = TrunkStore(backbone, 4, [prompts], tmp_path / "cut")
    again.fill()
    assert_same(again, expected, 14)
    for lost in done[:2]:  # of a piece's two
        shutil.rmtree(lost)
        runs["left"] = 1
        again = filled(backbone, prompts, tmp_path / "cut")
        assert_same(again, expected, 14)
    again.fill()  # nothing is missing: the model is not run


def test_a_fit_costs_the_same_from_nothing_however_it_came_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 14)
    monkeypatch.setattr(trunkstore, "PIECE", 4)
    costs = []
    for layer, there in ((4, 0), (4, 1), (4, 4), (2, 4)):  # nothing there, a piece, every one, those of another layer
        if there < 4:
            shutil.rmtree(tmp_path / "trunks", ignore_errors=True)
            filled(backbone, prompts[:0], tmp_path)
            store = TrunkStore(backbone, layer, [prompts], tmp_path)
            store._pieces, pieces = store._pieces[:there], store._pieces
            store.fill()
            store._pieces = pieces
        with metered(backbone) as cost:
            TrunkStore(backbone, layer, [prompts], tmp_path).fill()
        costs.append(cost)
    assert len({(cost.sequences, cost.tokens) for cost in costs}) == 1
    assert costs[0].sequences == 14
    taken = [cost.taken.sequences for cost in costs if cost.taken]
    assert taken == [14, 10, 0, 14]


@pytest.mark.parametrize("kind", ["entropy", "layer-04"])
def test_a_damaged_piece_is_made_again(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 5)
    expected = filled(backbone, prompts, tmp_path / "whole")
    filled(backbone, prompts, tmp_path / "cut")
    (path,) = (tmp_path / "cut").rglob(f"*{kind}*/*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    assert_same(filled(backbone, prompts, tmp_path / "cut"), expected, 5)
    assert f"{path} is damaged" in capsys.readouterr().err


def test_a_write_that_is_cut_short_leaves_no_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    prompts = training_prompts(backbone, "sst2", 6)
    monkeypatch.setattr(trunkstore, "PIECE", 4)
    write = Path.write_bytes

    def cut(self: Path, data: Any) -> int:
        write(self, bytes(data)[: len(data) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", cut)
        with pytest.raises(UserError, match="disk full"):
            TrunkStore(backbone, 4, [prompts], tmp_path).fill()
    assert not list(tmp_path.rglob("*.safetensors"))
    assert_same(filled(backbone, prompts, tmp_path), filled(backbone, prompts, tmp_path / "whole"), 6)


def test_domains_alone_give_the_states_of_any_set_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain's states are the same bits alone, in company, and whichever set came first; none is run twice."""
    monkeypatch.setattr(trunkstore, "PIECE", 4)
    backbone = tiny_backbone("llama")
    first, second = training_prompts(backbone, "sst2", 7), training_prompts(backbone, "trec", 5)
    fresh = filled_domains(backbone, [first, second], tmp_path / "fresh")
    filled(backbone, second, tmp_path / "shared")
    filled(backbone, first, tmp_path / "shared")

    def refuse(*_: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(TrunkStore, "_compute", refuse)
    assert_same(filled_domains(backbone, [first, second], tmp_path / "shared"), fresh, 12)
    swapped = filled_domains(backbone, [second, first], tmp_path / "shared").load([0, 5])
    assert torch.equal(swapped.states, fresh.load([7, 0]).states)
    assert torch.equal(swapped.entropy, fresh.load([7, 0]).entropy)
    alone = filled(backbone, second, tmp_path / "fresh").load([3])
    assert torch.equal(alone.states, fresh.load([10]).states)
    assert alone.entropy == fresh.load([10]).entropy


@pytest.mark.parametrize("family", FAMILIES)
def test_another_layer_runs_only_the_blocks_below_it(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives the bits that it would have given alone."""
    backbone = tiny_backbone(family)
    prompts = training_prompts(backbone, "sst2", 6)
    alone = {layer: filled(backbone, prompts, tmp_path / str(layer), layer) for layer in (0, 2, 4)}
    filled(backbone, prompts, tmp_path / "shared", 4)
    batches = len(list(by_length([len(prompt.prompt.tokens) for prompt in prompts], trunkstore.BATCH_TOKENS)))
    passed = [0] * 6
    hooks = [
        block.register_forward_hook(lambda *_, number=number: passed.__setitem__(number, passed[number] + 1))
        for number, block in enumerate(backbone.blocks)
    ]
    try:
        for layer, runs in ((2, [1, 1, 0, 0, 0, 0]), (0, [0] * 6)):
            passed[:] = [0] * 6
            assert_same(filled(backbone, prompts, tmp_path / "shared", layer), alone[layer], 6)
            assert passed == [batches * run for run in runs]
    finally:
        for hook in hooks:
            hook.remove()


def test_stores_of_other_prompts_layers_or_models_are_apart(tmp_path: Path) -> None:
    backbone, other = tiny_backbone("llama"), tiny_backbone("qwen2")
    prompts = training_prompts(backbone, "sst2", 3)
    for model, layer, items in [
        (backbone, 4, prompts),
        (backbone, 3, prompts),
        (other, 4, prompts),
        (backbone, 4, prompts[::-1]),
        (backbone, 4, prompts[:2]),
    ]:
        filled(model, items, tmp_path, layer)
    assert len(list(tmp_path.rglob("*layer-*"))) == 5
    # What answers a prompt changes nothing that is stored.
    other_answer = Question(prompts[2].prompt, 1 - prompts[2].label)
    changed = [*prompts[:2], other_answer]
    assert filled(backbone, changed, tmp_path).load([2]).answers.tolist() == [other_answer.answer]
    assert len(list(tmp_path.rglob("*layer-*"))) == 5
