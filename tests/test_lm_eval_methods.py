"""Methods under lm-eval: what they are conditioned on, which tokens they change, and that caches change nothing."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import ToyEncoder, demo_test
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.hooks import forward_hook
from icrbench.data.find_tasks import load_tasks
from icrbench.data.sources import Demo
from icrbench.lm_eval import ICRBenchLM
from icrbench.lm_eval.tasks import multiple_choice
from icrbench.method import Fitted
from icrbench.methods.few_shot import FewShotFitted
from icrbench.methods.label_anchor import LabelAnchorFitted
from icrbench.methods.lora import LoRA
from icrbench.methods.soft_prompt import SoftPromptFitted
from icrbench.randomness import Randomness
from icrbench.scoring.next_token import score
from icrbench.util.errors import UserError
from lm_eval_setup import (
    CONTEXTS,
    Nudge,
    Recorder,
    evaluate,
    from_scratch,
    instances,
    random_icr,
    tiny_lm,
)
from tiny import FAMILIES, tiny_backbone

NEW = 8  # tokens generated
PROBES = 1  # batches that the constructor itself runs
METHODS = ["icr", "last", "all", "predicting"]


@pytest.fixture(autouse=True)
def toy_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icrbench.methods.icr.method.sentence_encoder", lambda *_: ToyEncoder())


def made(name: str, backbone: Backbone) -> Fitted:
    return random_icr(backbone) if name == "icr" else Nudge(name)  # type: ignore[arg-type]


@dataclass
class Generated:
    """What lm-eval's generation made of one context: tokens, and the logits ``[V]`` of every step."""

    tokens: list[int]
    logits: list[Tensor]


def generated(lm: ICRBenchLM, contexts: list[str], **options: Any) -> dict[str, Generated]:
    found: dict[str, Generated] = {}
    below = lm._model_generate

    def spy(context: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        steps: list[Tensor] = []
        with forward_hook(lm.model.get_output_embeddings(), lambda _m, _i, output: steps.append(output[:, -1])):
            tokens = below(context, *args, **kwargs)
        for row, text in enumerate(lm._generating):
            found[text] = Generated(tokens[row, context.shape[1] :].tolist(), [step[row] for step in steps])
        return tokens

    lm._model_generate = spy  # type: ignore[method-assign]
    request = {"until": ["\x00never"], "do_sample": False, "max_gen_toks": NEW, **options}
    lm.generate_until(instances("generate_until", *((text, request) for text in contexts)), disable_tqdm=True)
    return found


def tokens_of(found: dict[str, Generated]) -> dict[str, list[int]]:
    return {text: own.tokens for text, own in found.items()}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_generation_equals_generation_from_scratch(family: str, name: str) -> None:
    backbone = tiny_backbone(family)
    fitted = made(name, backbone)
    lm = tiny_lm(family, fitted, batch_size=3)  # contexts of different lengths: left padding
    for text, own in generated(lm, CONTEXTS).items():
        context = lm.tok_encode(text)
        plain = from_scratch(backbone, Fitted({}, {}), text, context, [])
        assert float((own.logits[0] - plain).abs().max()) > 0.02  # a hundred times what is tolerated below
        for step, token in enumerate(own.tokens):
            logits = from_scratch(backbone, fitted, text, context, own.tokens[:step])
            assert token == int(logits.argmax())
            assert torch.allclose(own.logits[step], logits, atol=2e-4, rtol=1e-5)
            if token == lm.eot_token_id:
                break


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama"])
def test_scoring_a_continuation_equals_predicting_it_token_by_token(family: str, name: str) -> None:
    backbone = tiny_backbone(family)
    fitted = made(name, backbone)
    lm = tiny_lm(family, fitted, batch_size=3)
    pairs = [(text, " and so it went") for text in CONTEXTS] + [(CONTEXTS[0], " a"), (CONTEXTS[0], " b")]
    scored = lm.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    for (text, continuation), (value, greedy) in zip(pairs, scored, strict=True):
        context, more = lm._encode_pair(text, continuation)
        expected, best = 0.0, True
        for place, token in enumerate(more):
            logits = from_scratch(backbone, fitted, text, context, more[:place])
            expected += float(logits.log_softmax(-1)[token])
            best &= int(logits.argmax()) == token
        assert value == pytest.approx(expected, rel=1e-5)
        assert greedy == best


@pytest.mark.parametrize("batch_size", [1, 2, "auto"])
def test_batch_size_and_padding_side_of_the_tokenizer_change_nothing(batch_size: Any) -> None:
    backbone = tiny_backbone("gpt2")
    fitted = random_icr(backbone)
    pairs = instances("loglikelihood", *((text, " and then") for text in CONTEXTS))
    expected = tiny_lm("gpt2", fitted, batch_size=3)
    lm = tiny_lm("gpt2", fitted, batch_size=batch_size)
    texts, values = tokens_of(generated(expected, CONTEXTS)), expected.loglikelihood(pairs, disable_tqdm=True)
    for side in ("left", "right"):
        lm.tokenizer.padding_side = side
        assert tokens_of(generated(lm, CONTEXTS)) == texts
        for (value, _), (other, _) in zip(lm.loglikelihood(pairs, disable_tqdm=True), values, strict=True):
            assert value == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "gpt_neox", "llama"])
def test_an_adapted_output_head_generates_as_it_scores(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = LoRA(targets="head", rank=2)._initial(backbone, Randomness(0))
    fitted.tensors["head.B"] = 0.3 * torch.randn(300, 2, generator=torch.Generator().manual_seed(2))
    lm = tiny_lm(family, fitted, "lora", batch_size=3)
    plain = tokens_of(generated(tiny_lm(family, Fitted({}, {}), batch_size=3), CONTEXTS))
    found = tokens_of(generated(lm, CONTEXTS))
    assert found != plain
    for text, tokens in found.items():
        context = lm.tok_encode(text)
        if lm.eot_token_id in tokens:  # padding follows
            tokens = tokens[: tokens.index(lm.eot_token_id) + 1]
        ((_, greedy),) = lm._loglikelihood_tokens([(None, context, tokens)], disable_tqdm=True)
        assert greedy
        batch = make_batch([[*context, *tokens[:-1]]], [text])
        with torch.no_grad(), fitted.applied(backbone, batch):
            states = backbone.hidden_states(batch)[0, len(context) - 1 :]
        assert fitted.logits(backbone, states).argmax(-1).tolist() == tokens


SOFT = SoftPromptFitted({"where": "input"}, {"embeddings": torch.ones(5, 48)})
# Two of a text's tokens, the places of all of which are taken.
ANCHORS = LabelAnchorFitted(
    {"places": [3, 30], "labels": [], "length": 40, "has_bos": False},
    {"keys": torch.ones(6, 6, 2, 8), "values": torch.ones(6, 6, 2, 8)},
)


@pytest.mark.parametrize(("fitted", "taken"), [(Fitted({}, {}), 0), (SOFT, 5), (ANCHORS, 40)])
def test_generation_ends_at_the_last_place_that_the_model_knows(fitted: Fitted, taken: int) -> None:
    """GPT-2 has learned places: the virtual tokens', the context's and the generated ones' must all be among them."""
    backbone = tiny_backbone("gpt2")
    lm = tiny_lm("gpt2", fitted, batch_size=2)
    assert lm.max_length == 512 - taken
    assert tiny_lm("gpt2", fitted, max_length=64).max_length == 64
    long = "A tale too long to be told in one sitting, " * 15
    assert len(long) > 512
    found = generated(lm, [long, "Why?"])
    context = lm.tok_encode(long)[-(512 - taken - NEW) :]
    tokens = found[long].tokens
    assert len(tokens) == NEW
    assert lm.eot_token_id not in tokens
    for step, token in enumerate(tokens):
        assert token == int(from_scratch(backbone, fitted, long, context, tokens[:step]).argmax())


def test_beams_keep_their_own_query() -> None:
    backbone = tiny_backbone("llama")
    fitted = random_icr(backbone)
    together = tokens_of(generated(tiny_lm("llama", fitted, batch_size=3), CONTEXTS, num_beams=2))
    alone = tokens_of(generated(tiny_lm("llama", fitted, batch_size=1), CONTEXTS, num_beams=2))
    assert together == alone
    assert together != tokens_of(generated(tiny_lm("llama", fitted, batch_size=1), CONTEXTS))


def test_batches_say_where_contexts_end_and_hold_no_continuation() -> None:
    fitted = Recorder()
    lm = tiny_lm("llama", fitted, batch_size=4)
    lm.loglikelihood(instances("loglikelihood", ("A question:", " yes"), ("Why? ", "no"), ("", "Nothing before")))
    (batch,) = fitted.batches[PROBES:]
    ends = zip(batch.last.tolist(), batch.attention_mask.sum(1).tolist(), strict=True)
    known = dict(zip(batch.texts, ends, strict=True))
    assert known["A question:"] == (len("A question:") - 1, len("A question: yes") - 1)
    assert known["Why? "] == (len("Why?") - 1, len("Why? no") - 1)  # the space belongs to what is predicted
    assert known[""] == (0, len("Nothing before"))


def test_rolling_texts_are_no_context() -> None:
    fitted = Recorder()
    lm = tiny_lm("llama", fitted, batch_size=1, max_length=32)
    lm.loglikelihood_rolling(instances("loglikelihood_rolling", ("A text that is read in several windows. " * 2,)))
    assert len(fitted.batches[PROBES:]) == 3
    for batch in fitted.batches[PROBES:-1]:
        assert batch.texts == ("",)
        assert batch.last.tolist() == [0]


def test_generation_batches() -> None:
    fitted = Recorder()
    lm = tiny_lm("llama", fitted, batch_size=3)
    generated(lm, CONTEXTS)
    (batch,) = fitted.batches[PROBES:]
    assert sorted(batch.texts) == sorted(CONTEXTS)
    assert batch.last.tolist() == [max(map(len, CONTEXTS)) - 1] * 3


@pytest.mark.parametrize("name", ["icr", "few_shot", "zero_shot"])
def test_our_tasks_get_the_predictions_of_our_scorer(name: str) -> None:
    backbone = tiny_backbone("llama")
    task, examples = load_tasks()["sst2"], demo_test("sst2")
    shown = {"demonstrations": ["Review: good\nSentiment: positive", "Review: bad\nSentiment: negative"]}
    fitted = {
        "icr": random_icr(backbone),
        "few_shot": FewShotFitted({**shown, "cached_parameters": 0}, {}),
        "zero_shot": Fitted({}, {}),
    }[name]
    # On this tokenizer of bytes, scoring compares the first letters, as both options start with a space.
    config = multiple_choice(task, Demo()) | {
        "doc_to_choice": lambda doc: [option[0] for option in doc["options"]],
        "target_delimiter": "",
    }
    results = evaluate(tiny_lm("llama", fitted, name if name == "few_shot" else "zero_shot", batch_size=7), [config])
    scored = score(backbone, fitted, task, examples)
    samples = results["samples"]["icrbench_sst2"]
    assert [sample["doc"]["id"] for sample in samples] == [example.id for example in examples]
    for sample, ours in zip(samples, scored, strict=True):
        values = [value for value, _ in sample["filtered_resps"]]
        assert values.index(max(values)) == ours.prediction
        logits = ours.option_logits
        assert values[1] - values[0] == pytest.approx(logits[1] - logits[0], abs=1e-4)
    accuracy = sum(ours.prediction == example.label for ours, example in zip(scored, examples, strict=True)) / 40
    assert results["results"]["icrbench_sst2"]["acc,none"] == pytest.approx(accuracy)


def few_shot_lm(**more: Any) -> ICRBenchLM:
    shown = ["Q: one\nA: two", "Q: three\nA: four"]
    return tiny_lm("llama", FewShotFitted({"demonstrations": shown, "cached_parameters": 0}, {}), "few_shot", **more)


def test_demonstrations_stand_before_the_context_in_generation_too() -> None:
    plain = tiny_lm("llama", Fitted({}, {}))
    whole = "Q: one\nA: two\nQ: three\nA: four\nQ: five\nA:"
    (ours,) = generated(few_shot_lm(), ["Q: five\nA:"]).values()
    (expected,) = generated(plain, [whole]).values()
    assert ours.tokens == expected.tokens


def test_a_query_is_never_its_own_demonstration() -> None:
    lm = few_shot_lm()
    (request,) = lm._with_demonstrations(instances("loglikelihood", ("Q: one\nA:", " x")))
    assert request.args == ("Q: three\nA: four\nQ: one\nA:", " x")


def test_two_kinds_of_demonstrations_are_refused() -> None:
    task = multiple_choice(load_tasks()["sst2"], Demo()) | {"num_fewshot": 2, "fewshot_split": "test"}
    with pytest.raises(UserError, match="'icrbench_sst2' asks for 2 demonstrations of lm-eval's, and few_shot"):
        evaluate(few_shot_lm(), [task], limit=2)
    assert evaluate(tiny_lm("llama", Fitted({}, {})), [task], limit=2)["n-shot"] == {"icrbench_sst2": 2}
    with pytest.raises(UserError, match="chat template"):
        few_shot_lm().apply_chat_template([{"role": "user", "content": "x"}])


def test_an_exception_leaves_the_model_free() -> None:
    lm = tiny_lm("llama", Nudge("all"))
    with pytest.raises(ValueError, match="strictly positive"):
        generated(lm, CONTEXTS, temperature=-1.0, do_sample=True)
    assert lm.backbone.active is None
    assert torch.is_grad_enabled()
