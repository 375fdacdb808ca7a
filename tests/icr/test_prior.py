"""The preference among options that training on calibrated answers takes off."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from icr_setup import training_prompts
from icrbench.methods.icr import prior as prior_module
from icrbench.methods.icr.objective import Weights, entropy, terms
from icrbench.methods.icr.prior import Priors
from icrbench.methods.icr.trunkstore import TrunkStore
from tiny import tiny_backbone

COUNT = 5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_prior_is_the_unrouted_model_s_mean_log_probability_of_each_option(family: str, tmp_path: Path) -> None:
    backbone = tiny_backbone(family)
    domains = [training_prompts(backbone, name, COUNT) for name in ("sst2", "trec")]
    store = TrunkStore(backbone, 4, domains, tmp_path)
    store.fill()
    priors = Priors(backbone, 4, store, domains)
    found = priors.of(range(2 * COUNT), torch.zeros(2 * COUNT, backbone.model.config.vocab_size))
    for number, questions in enumerate(domains):
        options = list(questions[0].prompt.options)
        with torch.no_grad():
            each = [backbone.model(torch.tensor([q.prompt.tokens])).logits[0, -1, options] for q in questions]
        mean = torch.stack(each).double().log_softmax(1).mean(0)
        for row in range(number * COUNT, (number + 1) * COUNT):
            torch.testing.assert_close(found[row, options].double(), mean - mean.mean(), atol=2e-3, rtol=0)
            rest = found[row].clone()
            rest[options] = 0
            assert not rest.any()
    assert found.abs().amax(1).min() > 0.01


def test_so_many_inputs_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone("llama")
    domains = [training_prompts(backbone, "sst2", 6)]
    store = TrunkStore(backbone, 4, domains, tmp_path)
    store.fill()
    read: list[int] = []
    load = store.load
    monkeypatch.setattr(store, "load", lambda rows: read.extend(rows) or load(rows))
    monkeypatch.setattr(prior_module, "INPUTS", 4)
    Priors(backbone, 4, store, domains)
    assert read == [0, 1, 2, 3]


def test_only_the_cross_entropy_is_of_calibrated_answers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, prior = torch.randn(3, 20, generator=generator), torch.randn(3, 20, generator=generator)
    answers, alpha, gamma = torch.tensor([1, 5, 7]), torch.ones(3, 2, 4), torch.ones(3, 2, 6)
    weights = Weights(0.01, 0.001, 0.02, (1.0, 3.0), 1.0)
    plain = terms(logits, answers, entropy(logits) - 0.1, alpha, gamma, weights)
    found = terms(logits, answers, entropy(logits) - 0.1, alpha, gamma, weights, prior)
    torch.testing.assert_close(found.cross_entropy, cross_entropy(logits - prior, answers))
    assert found.cross_entropy != plain.cross_entropy
    assert (found.confidence, found.sparsity, found.gate) == (plain.confidence, plain.sparsity, plain.gate)
