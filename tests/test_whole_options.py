"""Options that share their first token, scored whole: by every method alike, however the work is cut."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from icrbench.backbone import make_batch
from icrbench.data.task import Task
from icrbench.method import Fitted
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import Scored, score
from icrbench.scoring.prompting import Prompter
from icrbench.util.errors import UserError
from reference import reference_logits
from test_scoring import SST2, ZERO_SHOT, Routed, Shown, families, some_reviews
from tiny import tiny_backbone

OPTIONS = ("not bad at all", "not good")  # one token a byte: both start with the same


def a_task(form: str) -> Task:
    return replace(SST2, options=OPTIONS, answer_form=form)  # type: ignore[arg-type]


def scored(family: str, fitted: Fitted, form: str = "sum", **options: object) -> list[Scored]:
    examples = [replace(example, options=OPTIONS) for example in some_reviews(7)]
    return score(tiny_backbone(family), fitted, a_task(form), examples, ScoringOptions(**options))  # type: ignore[arg-type]


def oracle(family: str, prompt: Sequence[int], option: Sequence[int]) -> float:
    """Log-probability of an option, in float64 and one pass a token."""
    total = 0.0
    for place, token in enumerate(option):
        logits = reference_logits(family, make_batch([[*prompt, *option[:place]]], [""]))[0, -1]
        total += float(logits.log_softmax(-1)[token])
    return total


@families
def test_scores_are_log_probabilities_of_whole_options(family: str) -> None:
    for one, mean in zip(scored(family, ZERO_SHOT)[:3], scored(family, ZERO_SHOT, "mean"), strict=False):
        wanted = [oracle(family, one.prompt.tokens, option) for option in one.prompt.continuations]
        assert one.option_logits == pytest.approx(wanted, abs=2e-3)
        assert one.prediction == max(range(2), key=wanted.__getitem__)
        lengths = [len(option) for option in one.prompt.continuations]
        assert mean.option_logits == pytest.approx([w / n for w, n in zip(wanted, lengths, strict=True)], abs=1e-3)


@families
@pytest.mark.parametrize("fitted", [Shown, Routed])
def test_neither_batches_nor_a_cached_prefix_change_scores(family: str, fitted: type[Fitted]) -> None:
    method = fitted({"family": family}, {})
    wanted = scored(family, method, batch_size=1, prefix_cache=False)
    for options in ({"batch_size": 3}, {}):
        for one, other in zip(scored(family, method, **options), wanted, strict=True):
            assert one.option_logits == pytest.approx(other.option_logits, abs=2e-4)
            assert one.prediction == other.prediction


def test_options_that_start_alike_are_refused_unless_scored_whole() -> None:
    backbone, example = tiny_backbone("llama"), replace(some_reviews(1)[0], options=OPTIONS)
    with pytest.raises(UserError, match=r"start with one token .*answer: sum or answer: mean"):
        Prompter(backbone, a_task("first_token"))(example)
    prompt = Prompter(backbone, a_task("sum"))(example)
    assert prompt.options == tuple(option[0] for option in prompt.continuations)
    assert [backbone.tokenizer.decode(option) for option in prompt.continuations] == [
        f" {option}" for option in OPTIONS
    ]


def test_prompt_and_option_fit_the_model_together() -> None:
    backbone = tiny_backbone("gpt2")
    long = replace(some_reviews(1)[0], fields={"text": "film " * 200}, options=OPTIONS)
    prompt = Prompter(backbone, a_task("sum"))(long)
    assert prompt.truncated
    assert len(prompt.tokens) + max(map(len, prompt.continuations)) - 1 <= backbone.max_length
    (one,) = score(backbone, ZERO_SHOT, a_task("sum"), [long])
    assert all(value < 0 for value in one.option_logits)
