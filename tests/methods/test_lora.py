from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache

from icr_setup import demo_test, pools, some_batch
from icrbench.backbone import Backbone
from icrbench.data.find_tasks import load_tasks
from icrbench.method import FitData
from icrbench.methods.lora import LoRA
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.store.artefact import Artefact
from icrbench.toolkit.lora import HEAD, LoRAFitted
from icrbench.util.errors import UserError
from tiny import FAMILIES, tiny_backbone, tiny_model

QUICK: dict[str, Any] = {"per_class": 2, "epochs": 2, "learning_rate": 0.01, "rank": 2}
TARGETS = ["qkvo", "o", "last_block", "head"]
families = pytest.mark.parametrize("family", FAMILIES)
targets = pytest.mark.parametrize("targets", TARGETS)
CASES = [(family, "qkvo") for family in FAMILIES] + [
    (family, kind) for family in ("gemma3", "gpt2") for kind in TARGETS[1:]
]
cases = pytest.mark.parametrize(("family", "targets"), CASES)


def fitted(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> LoRAFitted:
    method = LoRA(**{**QUICK, **changes})
    return method.fit(tiny_backbone(family, dtype), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0))


def drawn(family: str, targets: str, strength: float = 0.3) -> LoRAFitted:
    """Without training, but with factors that matter."""
    backbone = tiny_backbone(family)
    made = LoRA(**{**QUICK, "targets": targets})._initial(backbone, Randomness(1))
    generator = torch.Generator().manual_seed(2)
    for name, tensor in made.tensors.items():
        if name.endswith(".B"):
            tensor.copy_(strength * torch.randn(tensor.shape, generator=generator))
    return made


def logits(backbone: Backbone, fit: LoRAFitted | None = None, padding: Any = "right") -> Tensor:
    """``[B, T, V]`` at the real tokens, row after row."""
    batch = some_batch(padding=padding)
    real = batch.attention_mask.bool()
    with torch.no_grad():
        if fit is None:
            return backbone.logits(backbone.hidden_states(batch))[real]
        with fit.applied(backbone, batch):
            states = backbone.hidden_states(batch)
        return fit.logits(backbone, states)[real]


def merged(family: str, fit: LoRAFitted) -> Backbone:
    """Another model, whose weights are ``W + alpha / r * B A``."""
    backbone = Backbone(tiny_model(family), tiny_backbone(family).tokenizer, tiny_backbone(family).revision)
    scale = fit.config["alpha"] / fit.config["rank"]
    for name in {name.rpartition(".")[0] for name in fit.tensors}:
        change = scale * fit.tensors[f"{name}.B"] @ fit.tensors[f"{name}.A"]
        if name == HEAD:
            head: Any = backbone.model.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight + change)  # another tensor than a tied embedding's
        else:
            layer, projection = name.split("-")
            part: Any = backbone.part(int(layer), projection)
            part.weight += change if isinstance(part, torch.nn.Linear) else change.T
    return backbone


@cases
def test_it_acts_as_the_sum_of_the_matrices(family: str, targets: str) -> None:
    fit = drawn(family, targets)
    found = logits(tiny_backbone(family), fit)
    # W + BA is rounded once more than W and BA apart, and the tiny models' large weights make something of it.
    assert (found - logits(merged(family, fit))).abs().max() < 0.01
    assert (found - logits(tiny_backbone(family))).abs().max() > 1


@cases
def test_before_training_it_is_zero_shot_bit_for_bit(family: str, targets: str) -> None:
    """P1 of the specification: ``B`` starts at 0."""
    backbone = tiny_backbone(family)
    initial = LoRA(targets=targets)._initial(backbone, Randomness(0))  # type: ignore[arg-type]
    assert torch.equal(logits(backbone, initial), logits(backbone))


@cases
def test_leaving_restores_modules_and_weights_also_after_an_exception(family: str, targets: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, targets)

    def tree() -> tuple[list[tuple[str, int]], dict[str, Tensor]]:
        modules = [(name, id(module)) for name, module in backbone.model.named_modules()]
        return modules, {name: weight.clone() for name, weight in backbone.model.state_dict().items()}

    before, plain = tree(), logits(backbone)
    with fit.applied(backbone, some_batch()):
        assert [name for name, _ in tree()[0]] != [name for name, _ in before[0]]
    with pytest.raises(KeyError), fit.applied(backbone, some_batch()):
        raise KeyError
    after = tree()
    assert after[0] == before[0]
    assert list(after[1]) == list(before[1])
    assert all(torch.equal(after[1][name], weight) for name, weight in before[1].items())
    assert not any(weight.requires_grad for weight in backbone.model.parameters())
    assert not any(module.training for module in backbone.model.modules())
    assert not hasattr(backbone.model, "peft_config")
    assert torch.equal(logits(backbone), plain)


@cases
def test_counts_are_those_of_the_formula(family: str, targets: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, targets)
    assert fit.cached_parameters == fit.parameters_by_formula(backbone.dims)
    heads = {"qwen3": 96, "gemma3": 96}.get(family, 48)
    keys = {"gpt2": 48, "gpt_neox": 48, "qwen3": 32, "gemma3": 32}.get(family, 16)
    inputs = 48 + heads + 2 * keys if family in ("gpt2", "gpt_neox") else 3 * 48 + heads + 2 * keys
    wanted = {"qkvo": 6 * (inputs + heads + 48), "o": 6 * (heads + 48), "last_block": inputs + heads + 48}
    assert fit.cached_parameters == 2 * wanted.get(targets, 48 + 300)


@families
def test_an_adapted_head_leaves_a_tied_input_embedding_as_it_is(family: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, "head")
    batch = some_batch()
    embedding: Any = backbone.model.get_input_embeddings()
    tied = embedding.weight is backbone.model.get_output_embeddings().weight
    assert tied == (family in ("gemma3", "gpt2"))
    with torch.no_grad():
        before = embedding(batch.input_ids)
        states = backbone.hidden_states(batch)
        with fit.applied(backbone, batch):
            assert torch.equal(embedding(batch.input_ids), before)
            assert torch.equal(backbone.hidden_states(batch), states)


@families
def test_some_rows_of_an_adapted_head_are_those_of_the_whole(family: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, "head")
    states = torch.randn(8, backbone.dims.hidden, generator=torch.Generator().manual_seed(0))
    some = torch.tensor([5, 17, 200])
    found = fit.logits(backbone, states, some)
    torch.testing.assert_close(found, fit.logits(backbone, states)[:, some])
    assert (found - backbone.logits(states, some)).abs().max() > 0.1


@pytest.mark.parametrize("targets", ["qkvo", "head"])
def test_generation_is_adapted_with_and_without_a_cache(targets: str) -> None:
    backbone, fit = tiny_backbone("llama"), drawn("llama", targets)
    batch = some_batch(padding="left")
    model: Any = backbone.model
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 258}
    with torch.no_grad(), fit.applied(backbone, batch):
        found = [
            model.generate(batch.input_ids, attention_mask=batch.attention_mask, use_cache=cached, **options)
            for cached in (True, False)
        ]
    other: Any = merged("llama", fit).model
    wanted = other.generate(batch.input_ids, attention_mask=batch.attention_mask, **options)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], wanted)
    assert not isinstance(found[0], Cache)


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_lowers_the_loss_and_changes_nothing_else(family: str, dtype: torch.dtype) -> None:
    backbone = tiny_backbone(family, dtype)
    before = {name: weight.clone() for name, weight in backbone.model.state_dict().items()}
    state = torch.get_rng_state()
    fit = fitted(family, dtype, epochs=4)
    assert fit.config["loss"][-1] < fit.config["loss"][0]
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in fit.tensors.values())
    assert all(torch.equal(weight, before[name]) for name, weight in backbone.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert logits(backbone, fit).isfinite().all()


@targets
def test_every_factor_is_trained(targets: str) -> None:
    start = LoRA(**{**QUICK, "targets": targets})._initial(tiny_backbone("qwen3"), Randomness(0)).tensors
    fit = fitted("qwen3", targets=targets)
    assert set(fit.tensors) == set(start)
    assert all((tensor != start[name]).any() for name, tensor in fit.tensors.items())


def test_a_fit_is_that_of_its_seed_dropout_included() -> None:
    first = fitted("llama")
    torch.rand(1)  # what torch's own generator has been used for since makes no difference
    second, other = fitted("llama"), fitted("llama", dropout=0.5)
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    assert any((tensor != other.tensors[name]).any() for name, tensor in first.tensors.items())


def test_applied_there_is_no_dropout() -> None:
    backbone, fit = tiny_backbone("llama"), drawn("llama", "qkvo")
    fit.config["dropout"] = 0.9
    assert torch.equal(logits(backbone, fit), logits(backbone, fit))


@families
def test_padding_and_batches_change_nothing(family: str) -> None:
    backbone, fit = tiny_backbone(family), drawn(family, "qkvo", 0.05)
    task, rows = load_tasks()["sst2"], demo_test("sst2")[:7]
    torch.testing.assert_close(logits(backbone, fit, "left"), logits(backbone, fit, "right"), atol=1e-4, rtol=1e-4)
    found = [
        torch.tensor([row.option_logits for row in score(backbone, fit, task, rows, ScoringOptions(batch_size=size))])
        for size in (1, 7)
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@targets
def test_saved_and_loaded_it_is_the_same(targets: str, tmp_path: Path) -> None:
    backbone, fit = tiny_backbone("gpt2"), drawn("gpt2", targets)
    Artefact(LoRA(targets=targets), fit, backbone.identity()).save(tmp_path)  # type: ignore[arg-type]
    loaded = Artefact.load(tmp_path, backbone).fitted
    assert isinstance(loaded, LoRAFitted)
    assert torch.equal(logits(backbone, loaded), logits(backbone, fit))


def test_the_learning_rate_is_chosen_on_held_out_rows_unless_it_is_given() -> None:
    fit = fitted("llama", learning_rate=0.0, held_out=6, epochs=1)
    assert len(fit.config["sweep"]) == 3
    assert fitted("llama").config["sweep"] == []


def test_out_of_domain_it_learns_from_three_rows_of_every_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(LoRA, "train", lambda self, _b, initial, _r, lessons, *_: seen.append(len(lessons)) or initial)
    data = FitData(pools("sst2", "trec", "csqa"), None, Path("unused"))
    LoRA(learning_rate=0.1).fit(tiny_backbone("llama"), data, Randomness(0))
    LoRA(learning_rate=0.1).fit(tiny_backbone("llama"), FitData(pools("trec"), "trec", Path("unused")), Randomness(0))
    assert seen == [9, 30]


@pytest.mark.parametrize("changes", [{"rank": 0}, {"dropout": 1.0}, {"learning_rate": -1.0}, {"targets": "mlp"}])
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        make_method("lora", changes)
