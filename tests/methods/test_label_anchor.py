from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import demo_pool, demo_test, pools
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.attention import queries_and_keys
from icrbench.backbone.sites import Site, captured
from icrbench.backbone.virtual import Virtual, virtual_tokens
from icrbench.data.find_tasks import load_tasks
from icrbench.data.task import Task
from icrbench.method import FitData
from icrbench.methods.label_anchor import LabelAnchor, LabelAnchorFitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.episodes import Labelled
from icrbench.util.errors import UserError
from tiny import FAMILIES, tiny_backbone, tokenizer

TASKS = load_tasks()
QUICK: dict[str, Any] = {"per_class": 2}
families = pytest.mark.parametrize("family", FAMILIES)
modes = pytest.mark.parametrize("mode", ["compress", "reweight"])


def shown(count: int = 3, name: str = "sst2") -> tuple[Labelled, ...]:
    pool = demo_pool(name)
    return tuple(Labelled(pool.task, row) for row in pool.train[:count])


def fitted(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> LabelAnchorFitted:
    method = LabelAnchor(**{**QUICK, "epochs": 1, "train_per_class": 1, **changes})
    return method.fit(tiny_backbone(family, dtype), FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0))


def of(virtual: Virtual, labels: list[int], beta: Tensor | None = None) -> LabelAnchorFitted:
    made = LabelAnchor()._fitted(virtual, labels)
    if beta is not None:
        made.tensors["beta"] = beta
    return made


def queries(backbone: Backbone, task: Task = TASKS["sst2"], count: int = 3) -> list[tuple[int, ...]]:
    return [Prompter(backbone, task)(row).tokens for row in demo_test(task.name)[:count]]


def logits(backbone: Backbone, fit: LabelAnchorFitted | None = None, padding: Any = "right") -> Tensor:
    """``[B, V]`` where the answers of three queries are predicted."""
    batch = make_batch(queries(backbone), ["a", "b", "c"], padding=padding)
    with torch.no_grad():
        if fit is None:
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))
        with fit.applied(backbone, batch):
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))


def few_shot(backbone: Backbone, demonstrations: Demonstrations) -> Tensor:
    """What the same queries give behind the demonstrations, in one prompt."""
    texts = [own.task.demonstration(own.example) for own in demonstrations.shown]
    found = []
    for row in demo_test("sst2")[:3]:
        batch = make_batch([Prompter(backbone, TASKS["sst2"])(row, texts).tokens], [""])
        with torch.no_grad():
            found.append(backbone.logits(batch.at_last(backbone.hidden_states(batch))))
    return torch.cat(found)


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_with_all_tokens_kept_it_is_few_shot(family: str, padding: Any) -> None:
    """A1 of the specification."""
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown())
    fit = of(virtual_tokens(backbone, demonstrations.tokens), [])
    wanted = few_shot(backbone, demonstrations)
    torch.testing.assert_close(logits(backbone, fit, padding), wanted, atol=2e-4, rtol=1e-4)
    assert (logits(backbone) - wanted).abs().max() > 0.1


@families
def test_without_new_weights_it_is_few_shot(family: str) -> None:
    """A2 of the specification: exactly what all tokens kept give, which is few-shot."""
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown())
    virtual, labels = virtual_tokens(backbone, demonstrations.tokens), demonstrations.labels(backbone)
    beta = torch.zeros(6, backbone.dims.heads, len(labels))
    assert torch.equal(logits(backbone, of(virtual, labels, beta)), logits(backbone, of(virtual, [])))
    changed = logits(backbone, of(virtual, labels, beta + 0.5))
    # All of this model's layers have a window, which is shorter than the queries.
    assert torch.equal(changed, logits(backbone, of(virtual, []))) == (family == "mistral")


@families
def test_the_cache_is_as_long_as_there_are_anchors(family: str) -> None:
    """A3 of the specification."""
    backbone, fit = tiny_backbone(family), fitted(family)
    anchors = len(fit.config["places"])
    assert fit.tensors["keys"].shape == (6, backbone.dims.kv_heads, anchors, backbone.dims.head_dim)
    assert anchors < fit.config["length"] / 2
    assert fit.cached_parameters == fit.parameters_by_formula(backbone.dims) == 2 * fit.tensors["keys"].numel()


@families
def test_kept_tokens_act_as_all_with_the_others_masked(family: str) -> None:
    """A4 of the specification."""
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown())
    kept = demonstrations.anchors(backbone, False)
    found = logits(backbone, of(virtual_tokens(backbone, demonstrations.tokens).kept(kept), []))
    count = len(demonstrations.tokens)
    seen = torch.zeros(1, count, dtype=torch.long)
    seen[:, kept] = 1
    for row, tokens in enumerate(queries(backbone)):
        cache = DynamicCache()
        with torch.no_grad():
            backbone.hidden_states(make_batch([demonstrations.tokens], [""]), cache)
            own = make_batch([tokens[1:] if backbone.adds_bos else tokens], [""], prefix_length=count)
            mask = torch.cat([seen, own.attention_mask[:, count:]], 1)
            masked = Batch(own.input_ids, mask, own.position_ids, own.last, own.texts)
            wanted = backbone.logits(masked.at_last(backbone.hidden_states(masked, cache)))
        torch.testing.assert_close(found[row : row + 1], wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(("labels_only", "wanted"), [(False, "Review:\nSentiment: {}\n"), (True, "{}")])
def test_anchors_are_the_label_and_the_template_s_own_words(family: str, labels_only: bool, wanted: str) -> None:
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown())
    places = demonstrations.anchors(backbone, labels_only)
    labels = [own.task.answer(own.example) for own in demonstrations.shown]
    tokens = [demonstrations.tokens[place] for place in places]
    if backbone.adds_bos:
        assert (places[0], tokens[0]) == (0, backbone.tokenizer.bos_token_id)
        tokens = tokens[1:]
    expected = "".join(wanted.format(label) for label in labels)
    assert tokenizer().decode(tokens) == expected.replace(" ", "")  # a token a character; spaces are no words


@pytest.mark.parametrize("name", sorted(TASKS))
def test_templates_of_every_task_are_found_by_place_not_by_content(name: str) -> None:
    """A row that quotes the template, or the label, adds no anchors."""
    backbone = tiny_backbone("llama")
    (own,) = shown(1, name)
    quoted = {key: f"{own.task.template} {own.task.answer(own.example)}" for key in own.example.fields}
    tricky = Labelled(own.task, replace(own.example, fields=quoted))
    counts = {len(Demonstrations.fitting(backbone, (row,)).anchors(backbone, False)) for row in (own, tricky)}
    text = own.task.template
    for field in own.example.fields:
        text = text.replace("{" + field + "}", "")
    words = [character for character in text + own.task.answer(own.example) if character == "\n" or character != " "]
    assert counts == {len(words) + 1}  # and the line break at the end


@families
def test_labels_are_where_their_words_start(family: str) -> None:
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown(4))
    for place, own in zip(demonstrations.labels(backbone), demonstrations.shown, strict=True):
        answer = own.task.answer(own.example)
        found = tokenizer().decode(list(demonstrations.tokens[place : place + len(answer) + 1]))
        assert found == answer + "\n"


def reference(family: str, beta: Tensor, demonstrations: Demonstrations, tokens: tuple[int, ...]) -> Tensor:
    """Of the first block: heads' outputs at the last token, from the formulas, in float64, one head after the other."""
    backbone = tiny_backbone(family)
    whole = (*demonstrations.tokens, *(tokens[1:] if backbone.adds_bos else tokens))
    cache = DynamicCache()
    queries: list[Tensor] = []
    with torch.no_grad(), queries_and_keys(backbone, [0], lambda _, q, __: queries.append(q), "post_rope"):
        backbone.hidden_states(make_batch([whole], [""]), cache)
    dims, window = backbone.dims, getattr(DynamicCache(config=backbone.model.config).layers[0], "sliding_window", None)
    last = len(whole) - 1
    outputs = []
    for head in range(dims.heads):
        query = queries[0][0, last].double().view(dims.heads, -1)[head]
        group = head * dims.kv_heads // dims.heads
        keys, values = (held[0, group].double() for held in (cache.layers[0].keys, cache.layers[0].values))
        weights = (backbone.attention_scale(0) * keys @ query).exp()
        if window is not None:
            weights[: max(0, last - window + 1)] = 0
        shares = weights / weights.sum()
        for number, place in enumerate(demonstrations.labels(backbone)):
            shares[place] *= beta[0, head, number].double().exp()
        outputs.append(shares @ values)
    return torch.cat(outputs)


@families
def test_new_weights_multiply_the_attention_to_labels_after_the_softmax(family: str) -> None:
    backbone = tiny_backbone(family)
    demonstrations = Demonstrations.fitting(backbone, shown())
    labels = demonstrations.labels(backbone)
    beta = torch.randn(6, backbone.dims.heads, len(labels), generator=torch.Generator().manual_seed(1))
    # Near enough for the windows: the query is what follows the last line break of a prompt.
    tokens = tuple(backbone.encode("so?"))
    fit = of(virtual_tokens(backbone, demonstrations.tokens), labels, beta)
    batch = make_batch([tokens], [""])
    site = Site("heads", 0)
    with torch.no_grad(), fit.applied(backbone, batch), captured(backbone, [site]) as seen:
        backbone.hidden_states(batch)
    found = seen[site][0]
    wanted = reference(family, beta, demonstrations, tokens)
    torch.testing.assert_close(found[-1].double(), wanted, atol=1e-4, rtol=1e-4)
    plain = reference(family, torch.zeros_like(beta), demonstrations, tokens)
    assert (plain - wanted).abs().max() > 1e-2
    unchanged = of(virtual_tokens(backbone, demonstrations.tokens), [])
    with torch.no_grad(), unchanged.applied(backbone, batch), captured(backbone, [site]) as other:
        backbone.hidden_states(batch)
    assert torch.equal(found[:-1], other[site][0, :-1])  # no token but the last


@pytest.mark.parametrize(
    ("family", "dtype"), [*((family, torch.float32) for family in FAMILIES), ("gemma3", torch.bfloat16)]
)
def test_re_weighting_is_trained_and_nothing_else(family: str, dtype: torch.dtype) -> None:
    backbone = tiny_backbone(family, dtype)
    before = {name: weight.clone() for name, weight in backbone.model.state_dict().items()}
    fit = fitted(family, dtype, mode="reweight", epochs=4, train_per_class=2, learning_rate=0.05)
    plain = fitted(family, dtype, mode="reweight", learning_rate=0.0)
    if family == "mistral":  # all of its layers have a window, which is shorter than the queries
        assert fit.tensors["beta"].eq(0).all()
    else:
        assert fit.tensors["beta"].isfinite().all()
        assert fit.tensors["beta"].ne(0).any()
        if dtype == torch.float32:  # in a narrower type, rounding the logits is more than what is learned
            assert fit.config["loss"][-1] < fit.config["loss"][0]
    assert plain.tensors["beta"].eq(0).all()
    assert torch.equal(fit.tensors["keys"], plain.tensors["keys"])
    assert fit.tensors["keys"].dtype == dtype
    assert all(torch.equal(weight, before[name]) for name, weight in backbone.model.state_dict().items())
    assert fit.cached_parameters == fit.parameters_by_formula(backbone.dims)


def test_rows_to_train_on_are_none_of_the_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        LabelAnchor,
        "train",
        lambda self, _b, fit, _r, lessons, *_: seen.extend(lesson.question.prompt.text for lesson in lessons) or fit,
    )
    drawn: list[Labelled] = []
    fitting = Demonstrations.fitting
    monkeypatch.setattr(
        Demonstrations, "fitting", classmethod(lambda cls, backbone, own: drawn.extend(own) or fitting(backbone, own))
    )
    fitted("llama", mode="reweight", per_class=8, train_per_class=4)
    assert len(seen) == 8
    assert not set(seen) & {own.task.prompt(own.example) for own in drawn}


@families
@modes
def test_leaving_restores_the_model_also_after_an_exception(family: str, mode: str) -> None:
    backbone, fit = tiny_backbone(family), fitted(family, mode=mode)
    before = logits(backbone)
    batch = make_batch(queries(backbone), ["a", "b", "c"])
    with pytest.raises(KeyError), fit.applied(backbone, batch):
        raise KeyError
    assert torch.equal(logits(backbone), before)
    for module in backbone.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not any(name.startswith("_icrbench") for name in vars(module))


@families
def test_without_any_tokens_it_is_zero_shot_bit_for_bit(family: str) -> None:
    backbone, fit = tiny_backbone(family), fitted(family)
    tensors = {name: tensor[:, :, :0] for name, tensor in fit.tensors.items()}
    none = LabelAnchorFitted({**fit.config, "places": []}, tensors)
    assert torch.equal(logits(backbone, none), logits(backbone))
    assert not torch.equal(logits(backbone, fit), logits(backbone))


@families
@modes
def test_padding_and_batches_change_nothing(family: str, mode: str) -> None:
    backbone, fit = tiny_backbone(family), fitted(family, mode=mode)
    if mode == "reweight":
        fit.tensors["beta"] += 0.5
    torch.testing.assert_close(logits(backbone, fit, "left"), logits(backbone, fit, "right"), atol=2e-4, rtol=1e-4)
    found = [
        torch.tensor(
            [
                row.option_logits
                for row in score(backbone, fit, TASKS["sst2"], demo_test("sst2")[:7], ScoringOptions(batch_size=size))
            ]
        )
        for size in (1, 7)
    ]
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=1e-4)


@families
def test_decoding_sees_the_anchors_too(family: str) -> None:
    backbone, fit = tiny_backbone(family), fitted(family)
    batch = make_batch(queries(backbone), ["a", "b", "c"], padding="left")
    model: Any = backbone.model
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 258}
    with torch.no_grad(), fit.applied(backbone, batch):
        found, again = (
            model.generate(batch.input_ids, attention_mask=batch.attention_mask, use_cache=cached, **options)
            for cached in (True, False)
        )
    assert torch.equal(found, again)


def test_queries_go_on_behind_the_demonstrations_or_start_anew() -> None:
    backbone = tiny_backbone("llama")
    keep, restart = fitted("llama"), fitted("llama", places="restart")
    assert keep.config["places"] == restart.config["places"]
    assert (keep.config["length"], restart.config["length"]) == (max(keep.config["places"]) + 1, 0)
    assert (logits(backbone, keep) - logits(backbone, restart)).abs().max() > 1e-3


def test_too_many_demonstrations_lose_the_first_ones() -> None:
    backbone = tiny_backbone("gpt2")  # takes 512 tokens
    many = shown(12)
    found = Demonstrations.fitting(backbone, many)
    assert 1 < len(found.shown) < 12
    assert found.shown == many[-len(found.shown) :]
    assert len(found.tokens) <= 256
    longer = Demonstrations.fitting(tiny_backbone("llama"), many)
    assert len(longer.shown) == 12


@modes
def test_saved_and_loaded_it_is_the_same(mode: Any, tmp_path: Path) -> None:
    backbone, fit = tiny_backbone("gemma3"), fitted("gemma3", mode=mode)
    Artefact(LabelAnchor(mode=mode), fit, backbone.identity()).save(tmp_path)
    loaded = Artefact.load(tmp_path, backbone).fitted
    assert isinstance(loaded, LabelAnchorFitted)
    assert torch.equal(logits(backbone, loaded), logits(backbone, fit))


@modes
def test_a_fit_is_that_of_its_seed(mode: str) -> None:
    first, second = fitted("llama", mode=mode), fitted("llama", mode=mode)
    assert first.config == second.config
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    data = FitData(pools("sst2"), "sst2", Path("unused"))
    other = LabelAnchor(**QUICK).fit(tiny_backbone("llama"), data, Randomness(1))
    assert other.config["places"] != first.config["places"]


def test_out_of_domain_it_shows_rows_of_every_domain() -> None:
    data = FitData(pools("sst2", "trec", "csqa"), None, Path("unused"))
    method = LabelAnchor(mode="reweight", per_task=2, train_per_class=1, epochs=1)
    assert len(method.fit(tiny_backbone("llama"), data, Randomness(0)).config["labels"]) == 3 * 2


@pytest.mark.parametrize(
    "changes", [{"mode": "drop"}, {"anchors": "words"}, {"places": "none"}, {"per_class": 0}, {"train_per_class": 0}]
)
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        make_method("label_anchor", changes)
