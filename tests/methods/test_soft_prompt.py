from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_test, pools, some_batch
from icrbench.backbone import Backbone, make_batch
from icrbench.data.find_tasks import load_tasks
from icrbench.method import FitData
from icrbench.methods.soft_prompt import SoftPrompt, SoftPromptFitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError
from tiny import FAMILIES, tiny_backbone

QUICK: dict[str, Any] = {"per_class": 2, "epochs": 3}
families = pytest.mark.parametrize("family", FAMILIES)
places = pytest.mark.parametrize("where", ["input", "layers"])


def fitted(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> SoftPromptFitted:
    method = SoftPrompt(**{**QUICK, **changes})
    return method.fit(tiny_backbone(family, dtype), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0))


def drawn(family: str, where: Any, tokens: int = 2) -> SoftPromptFitted:
    """Values as before training."""
    method = SoftPrompt(tokens=tokens, where=where, per_class=1, epochs=1, learning_rate=0.0)
    return method.fit(tiny_backbone(family), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0))


def logits(backbone: Backbone, fit: SoftPromptFitted | None = None, padding: Any = "right") -> Tensor:
    """``[B, V]`` at the rows' ends."""
    batch = some_batch(padding=padding)
    with torch.no_grad():
        if fit is None:
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))
        with fit.applied(backbone, batch):
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))


@families
@places
@pytest.mark.parametrize("padding", ["left", "right"])
def test_with_a_text_s_embeddings_it_is_that_text_before_the_prompt(family: str, where: str, padding: Any) -> None:
    """P3 of the specification."""
    backbone = tiny_backbone(family)
    text = [72, 101, 108, 108, 111, 32, 116, 104, 101, 114, 101]
    embeddings = backbone.model.get_input_embeddings()(torch.tensor(text))
    fit = SoftPromptFitted({"where": "input"}, {"embeddings": embeddings})
    if where == "layers":
        virtual = fit.virtual(backbone)
        fit = SoftPromptFitted({"where": "layers"}, {"keys": virtual.keys, "values": virtual.values})
    batch = some_batch()
    rows = [ids[seen == 1].tolist() for ids, seen in zip(batch.input_ids, batch.attention_mask, strict=True)]
    whole = make_batch([text + row for row in rows], [""] * 3)
    with torch.no_grad():
        wanted = backbone.logits(whole.at_last(backbone.hidden_states(whole)))
    torch.testing.assert_close(logits(backbone, fit, padding), wanted, atol=1e-4, rtol=1e-4)
    assert (logits(backbone) - wanted).abs().max() > 0.1


@families
def test_without_tokens_it_is_zero_shot_bit_for_bit(family: str) -> None:
    fit = drawn(family, "layers")
    none = {name: tensor[:, :, :0] for name, tensor in fit.tensors.items()}
    backbone = tiny_backbone(family)
    assert torch.equal(logits(backbone, SoftPromptFitted(fit.config, none)), logits(backbone))
    assert not torch.equal(logits(backbone, fit), logits(backbone))


@families
def test_before_training_keys_and_values_are_those_of_the_embeddings(family: str) -> None:
    backbone = tiny_backbone(family)
    torch.testing.assert_close(logits(backbone, drawn(family, "layers")), logits(backbone, drawn(family, "input")))


@families
@pytest.mark.parametrize(
    ("where", "dtype"), [("input", torch.float32), ("layers", torch.float32), ("input", torch.bfloat16)]
)
def test_training_lowers_the_loss_and_changes_nothing_else(family: str, where: str, dtype: torch.dtype) -> None:
    backbone = tiny_backbone(family, dtype)
    before = {name: weight.clone() for name, weight in backbone.model.state_dict().items()}
    fit = fitted(family, dtype, where=where, epochs=12)
    assert min(fit.config["loss"]) < fit.config["loss"][0]
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in fit.tensors.values())
    assert all(torch.equal(weight, before[name]) for name, weight in backbone.model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in backbone.model.modules())
    assert logits(backbone, fit).isfinite().all()


@families
@places
def test_counts_are_those_of_the_formula(family: str, where: str) -> None:
    fit, dims = drawn(family, where, tokens=3), tiny_backbone(family).dims
    wanted = 3 * 48 if where == "input" else 2 * 3 * 6 * dims.kv_heads * dims.head_dim
    assert fit.cached_parameters == fit.parameters_by_formula(dims) == wanted


@families
@places
def test_padding_and_batches_change_nothing(family: str, where: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, where)
    task, rows = load_tasks()["sst2"], demo_test("sst2")[:7]
    torch.testing.assert_close(logits(backbone, fit, "left"), logits(backbone, fit, "right"), atol=1e-4, rtol=1e-4)
    found = [
        torch.tensor([row.option_logits for row in score(backbone, fit, task, rows, ScoringOptions(batch_size=size))])
        for size in (1, 7)
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@places
def test_saved_and_loaded_it_is_the_same(where: Any, tmp_path: Path) -> None:
    backbone, fit = tiny_backbone("gemma3"), drawn("gemma3", where)
    Artefact(SoftPrompt(where=where), fit, backbone.identity()).save(tmp_path)
    loaded = Artefact.load(tmp_path, backbone).fitted
    assert isinstance(loaded, SoftPromptFitted)
    assert torch.equal(logits(backbone, loaded), logits(backbone, fit))


@places
def test_a_fit_is_that_of_its_seed(where: str) -> None:
    first, second = fitted("llama", where=where), fitted("llama", where=where)
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    other = SoftPrompt(**{**QUICK, "where": where}).fit(
        tiny_backbone("llama"), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(1)
    )
    assert any((tensor != other.tensors[name]).any() for name, tensor in first.tensors.items())


def test_out_of_domain_it_learns_from_three_rows_of_every_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        SoftPrompt, "train", lambda self, _b, initial, _r, lessons, *_: seen.append(len(lessons)) or initial
    )
    for data, target in ((pools("sst2", "trec", "csqa"), None), (pools("trec"), "trec")):
        SoftPrompt().fit(tiny_backbone("llama"), FitData(data, target, Path("unused")), Randomness(0))
    assert seen == [9, 30]


@pytest.mark.parametrize("changes", [{"tokens": 0}, {"where": "output"}, {"epochs": 0}])
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        make_method("soft_prompt", changes)
