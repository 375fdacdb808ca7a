"""Zero-shot under our model class gives the values of lm-eval's own ``hf`` model, and a method never sees too much."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from icrbench.lm_eval import ICRBenchLM
from icrbench.method import Fitted
from icrbench.methods.few_shot import FewShotFitted
from lm_eval_setup import NAMES, evaluate, instances, responses, saved, tiny_lm
from tiny import FAMILIES

TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(request.param, tmp_path_factory.mktemp("models") / request.param)


def numbers(results: dict[str, Any], task: str) -> dict[str, float]:
    return {name: value for name, value in results["results"][task].items() if isinstance(value, float)}


@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_every_value_is_that_of_the_hf_model(folder: str, batch_size: Any) -> None:
    common = {"device": "cpu", "dtype": "float32", "batch_size": batch_size, "max_batch_size": 2, "max_length": 96}
    theirs = evaluate(HFLM(folder, **common), limit=3)
    ours = evaluate(ICRBenchLM(folder, "zero_shot", **common), limit=3)
    for task in NAMES:
        for their, our in zip(responses(theirs, task), responses(ours, task), strict=True):
            if task == "icrbench_short_answers":
                assert our == their
            elif task == "icrbench_prose":
                assert our == pytest.approx(their, abs=TOLERANCE)
            else:
                assert our[0] == pytest.approx(their[0], abs=TOLERANCE)
                assert our[1] == their[1]
        assert numbers(ours, task) == pytest.approx(numbers(theirs, task), rel=TOLERANCE)


def test_texts_longer_than_the_model_and_awkward_requests(folder: str) -> None:
    common = {"device": "cpu", "dtype": "float32", "batch_size": 3, "max_length": 40}
    # With its logits cache, lm-eval reads the wrong tokens for one sequence that is cut in two places.
    theirs, ours = HFLM(folder, logits_cache=False, **common), ICRBenchLM(folder, "zero_shot", **common)
    pairs = [
        ("", "An empty context"),
        ("A context that is much longer than forty tokens, so that its front must go,", " and so on"),
        ("Spaces at the end   ", "stay"),
        ("Four words and then", " more"),
        ("Four words and", " then more"),  # the same tokens, cut elsewhere
        ("Choose:", " a"),
        ("Choose:", " b"),
        ("Choose:", " c"),
    ]
    requests = instances("loglikelihood", *pairs)
    for their, our in zip(theirs.loglikelihood(requests), ours.loglikelihood(requests), strict=True):
        assert our == (pytest.approx(their[0], abs=TOLERANCE), their[1])
    rolling = instances("loglikelihood_rolling", ("A text of more than one window. " * 5,), ("Short.",))
    expected = theirs.loglikelihood_rolling(rolling)
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(expected, abs=1e-4)  # a sum of some hundred terms


def test_demonstrations_of_all_requests_are_computed_once() -> None:
    shown = {"demonstrations": ["It was a lot", "They went home", "No way"], "cached_parameters": 0}
    lm = tiny_lm("gemma3", FewShotFitted(shown, {}), "few_shot", batch_size=2)
    pairs = [(text, f" {word}") for text in ("It is a", "They go", "Yes") for word in ("lot", "home", "way")]
    tokens = []
    hook = lm.model.get_decoder().register_forward_pre_hook(
        lambda _module, _args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    together = lm.loglikelihood(instances("loglikelihood", *pairs))
    hook.remove()
    start = "It was a lot\nThey went home\nNo way\n"
    assert tokens[0] == len(start)  # once, though there are several batches
    assert sum(tokens[1:]) < len(pairs) * 2 * 12
    plain = tiny_lm("gemma3", Fitted({}, {}))
    alone = plain.loglikelihood(instances("loglikelihood", *((start + context, more) for context, more in pairs)))
    for (value, greedy), (expected, expected_greedy) in zip(together, alone, strict=True):
        assert value == pytest.approx(expected, rel=1e-6)
        assert greedy == expected_greedy


def test_single_token_options_of_one_context_take_one_row() -> None:
    lm = tiny_lm("llama", Fitted({}, {}), batch_size=8)
    rows = []
    hook = lm.model.get_decoder().register_forward_pre_hook(
        lambda _module, _args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    lm.loglikelihood(instances("loglikelihood", ("Choose:", "a"), ("Choose:", "b"), ("Choose:", "c"), ("Or:", "a")))
    hook.remove()
    assert rows == [2]


def test_logits_in_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm("qwen3", Fitted({}, {}), batch_size=2)
    requests = instances("loglikelihood", ("One", " two three"), ("Four", " five"), ("Six seven", " eight"))
    whole = lm.loglikelihood(requests)
    monkeypatch.setattr("icrbench.scoring.continuations.LOGITS", 5 * 300)
    for (value, greedy), (expected, expected_greedy) in zip(lm.loglikelihood(requests), whole, strict=True):
        assert value == pytest.approx(expected, abs=TOLERANCE)
        assert greedy == expected_greedy


def test_batch_auto_fits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm("llama", Fitted({}, {}), batch_size="auto", max_batch_size=64)
    free = 4 * 4 * (2 * 6 * 2 * 8 + 8 * 64) * 100 * 3
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": free}))
    assert lm._rows_that_fit(100) == 3
    assert lm._rows_that_fit(10**6) == 1


def test_folder_of_the_tests_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = evaluate(tiny_lm("llama", Fitted({}, {})), ["icrbench_everyday"], limit=1)
    assert results["n-samples"]["icrbench_everyday"]["original"] == 16
    assert torch.is_grad_enabled()
