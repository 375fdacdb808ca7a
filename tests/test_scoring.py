import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from transformers import Gemma3ForCausalLM, PreTrainedModel

from icrbench.backbone import Backbone, Batch, Revision
from icrbench.backbone.attention import extra_channels
from icrbench.backbone.attention_kernel import Channels
from icrbench.backbone.batch import PaddingSide
from icrbench.backbone.prefix import prefix_cache
from icrbench.backbone.reuse import Reused
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.data.find_tasks import load_tasks
from icrbench.data.task import Example, Task
from icrbench.method import Fitted
from icrbench.scoring import batching, next_token
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import Scored, score
from icrbench.scoring.prompting import Prompter
from icrbench.util.errors import UserError
from reference import low_rank
from tiny import CONFIGS, FAMILIES, tiny_backbone, tiny_model, tokenizer

families = pytest.mark.parametrize("family", FAMILIES)
SST2 = load_tasks()["sst2"]
AI2SCIE = load_tasks()["ai2scie"]
ZERO_SHOT = Fitted({}, {})
SENTENCE = "a dull but warm film, far too long; some joy in every scene and not one laugh"
WORDS = SENTENCE.split()


def a_review(number: int, words: int) -> Example:
    text = " ".join(random.Random(number).choices(WORDS, k=words))
    return Example(f"sst2/test/{number}", {"text": text}, SST2.options, number % 2, f"{number:016x}")


def some_reviews(count: int = 9) -> list[Example]:
    return [a_review(number, 1 + 7 * number % 23) for number in range(count)]


def reviews_of_one_length(count: int) -> list[Example]:
    """The same words in other orders."""
    texts = (" ".join(random.Random(number).sample(WORDS, len(WORDS))) for number in range(count))
    return [replace(a_review(number, 1), fields={"text": text}) for number, text in enumerate(texts)]


def questions() -> list[Example]:
    made = []
    for number, letters in enumerate(["ABC", "ABCDE", "ABCD", "ABCDEFGH"]):
        fields = {
            "question": WORDS[number] * 3,
            "choices": "\n".join(f"{letter}. {WORDS[-ord(letter) % 9]}" for letter in letters),
            "letters": "/".join(letters),
        }
        made.append(Example(f"ai2scie/test/{number}", fields, tuple(letters), 0, f"{number:016x}"))
    return made


class AtTheEnd(Fitted):
    """A shift of the last token's state."""

    last_token_only: ClassVar[bool] = True

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        return steered(backbone, batch, {Site("block", 2): lambda states: states.roll(1, -1)}, "last")


class Routed(Fitted):
    """A low-rank term whose strengths depend on each query's text, as a router's do."""

    @property
    def first_layer(self) -> int:
        return 4

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        seeds = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in batch.texts]
        numbers = torch.stack([torch.randn(9, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        term = low_rank(self.config["family"], [4, 5], len(seeds))
        term = replace(term, alpha=1.5 * numbers[:, :3], gamma=numbers[:, 3:].sigmoid())
        return extra_channels(backbone, term.layers, term.channels)


class Shown(Fitted):
    """Demonstrations that are the same for every query: longer than every window."""

    shares_prefix: ClassVar[bool] = True

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        return [SST2.demonstration(a_review(100 + number, 6)) for number in range(4)]


def logits_of(results: Sequence[Scored]) -> torch.Tensor:
    return torch.tensor([result.option_logits for result in results])


def same(found: Sequence[Scored], wanted: Sequence[Scored], tolerance: float = 1e-4) -> None:
    assert [result.prompt for result in found] == [result.prompt for result in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.option_logits == pytest.approx(other.option_logits, abs=tolerance)
    assert [result.prediction for result in found] == [result.prediction for result in wanted]


def from_scratch(model: PreTrainedModel, backbone: Backbone, task: Task, example: Example) -> list[float]:
    """Option logits by the library alone."""
    prompt = Prompter(backbone, task)(example)
    with torch.no_grad():
        logits = model(torch.tensor([prompt.tokens])).logits[0, -1]
    return [float(logits[token]) for token in prompt.options]


@families
@pytest.mark.parametrize(
    ("task", "examples"), [(SST2, some_reviews(5)), (AI2SCIE, questions())], ids=["sst2", "ai2scie"]
)
def test_option_logits_are_those_of_the_plain_model(family: str, task: Task, examples: list[Example]) -> None:
    backbone, plain = tiny_backbone(family), tiny_model(family)
    plain.set_attn_implementation("eager")
    for result, example in zip(score(backbone, ZERO_SHOT, task, examples), examples, strict=True):
        wanted = from_scratch(plain, backbone, task, example)
        assert len(result.option_logits) == len(example.options)
        assert result.option_logits == pytest.approx(wanted, abs=1e-4)
        assert result.prediction == max(range(len(wanted)), key=wanted.__getitem__)


def test_logits_are_capped_where_the_model_caps_them() -> None:
    kind, config = CONFIGS["gemma3"]
    assert kind is Gemma3ForCausalLM
    capped = type(config)(**{**config.to_dict(), "final_logit_softcapping": 2.0})
    plain = kind(capped).eval()
    plain.load_state_dict(tiny_model("gemma3").state_dict())
    plain.set_attn_implementation("eager")
    backbone = Backbone(kind(type(capped)(**capped.to_dict())), tokenizer(), Revision("capped", "capped", ""))
    backbone.model.load_state_dict(plain.state_dict())
    examples = some_reviews(3)
    results = score(backbone, ZERO_SHOT, SST2, examples)
    for result, example in zip(results, examples, strict=True):
        assert result.option_logits == pytest.approx(from_scratch(plain, backbone, SST2, example), abs=1e-5)
    uncapped = logits_of(score(tiny_backbone("gemma3"), ZERO_SHOT, SST2, examples))
    assert (logits_of(results) - uncapped).abs().max() > 0.1


@families
def test_batch_size_changes_nothing(family: str) -> None:
    backbone, fitted, examples = tiny_backbone(family), Routed({"family": family}, {}), some_reviews()
    wanted = score(backbone, fitted, SST2, examples, ScoringOptions(batch_size=1))
    same(score(backbone, fitted, SST2, examples, ScoringOptions(batch_size=7)), wanted)
    same(score(backbone, fitted, SST2, examples), wanted)
    spread = logits_of(wanted) - logits_of(score(backbone, ZERO_SHOT, SST2, examples))
    assert spread.abs().max() > 0.02, "the method must matter"


@families
def test_the_side_of_the_padding_changes_nothing(family: str) -> None:
    backbone, fitted, examples = tiny_backbone(family), Routed({"family": family}, {}), some_reviews()
    same(
        score(backbone, fitted, SST2, examples, ScoringOptions(batch_size=9, padding="left")),
        score(backbone, fitted, SST2, examples, ScoringOptions(batch_size=9, padding="right")),
    )


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_amount_of_padding_changes_nothing(family: str, padding: PaddingSide) -> None:
    backbone, fitted = tiny_backbone(family), Routed({"family": family}, {})
    short, longer = a_review(1, 4), a_review(2, 30)
    alone = score(backbone, fitted, SST2, [short])
    together = score(backbone, fitted, SST2, [short, longer], ScoringOptions(batch_size=2, padding=padding))
    assert len(together[1].prompt.tokens) - len(together[0].prompt.tokens) >= 64
    same(together[:1], alone)


@families
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_the_prefix_cache_changes_nothing(family: str, batch_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, examples = tiny_backbone(family), some_reviews(6)
    lengths: list[int] = []

    def counted(backbone: Backbone, tokens: Sequence[int]) -> object:
        lengths.append(len(tokens))
        return prefix_cache(backbone, tokens)

    monkeypatch.setattr(batching, "prefix_cache", counted)
    off = ScoringOptions(batch_size=batch_size, prefix_cache=False)
    without = score(backbone, Shown({}, {}), SST2, examples, off)
    assert not lengths
    same(score(backbone, Shown({}, {}), SST2, examples, ScoringOptions(batch_size=batch_size)), without)
    assert len(lengths) == 1
    assert lengths[0] > 100  # far longer than every window
    plain = logits_of(score(backbone, ZERO_SHOT, SST2, examples))
    assert (logits_of(without) - plain).abs().max() > 0.05


def test_methods_that_change_their_demonstrations_get_no_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Shown):
        shares_prefix: ClassVar[bool] = False

    monkeypatch.delattr(batching, "prefix_cache")
    assert len(score(tiny_backbone("llama"), Own({}, {}), SST2, some_reviews(2))) == 2
    with pytest.raises(NameError):
        score(tiny_backbone("llama"), Shown({}, {}), SST2, some_reviews(2))


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_starting_from_the_last_token_changes_nothing(
    family: str, padding: PaddingSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, fitted, examples = tiny_backbone(family), AtTheEnd({}, {}), some_reviews()
    options = ScoringOptions(batch_size=4, padding=padding)
    wanted = score(backbone, fitted, SST2, examples, options)
    assert wanted != score(backbone, ZERO_SHOT, SST2, examples, options)
    reused = Reused()
    same(score(backbone, fitted, SST2, examples, options, reused=reused), wanted)
    monkeypatch.setattr("icrbench.backbone.reuse.prepared", None)  # the second time nothing is computed before it
    same(score(backbone, fitted, SST2, examples, options, reused=reused), wanted)


@families
def test_the_trunk_cache_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, fitted, examples = tiny_backbone(family), Routed({"family": family}, {}), some_reviews()
    wanted = score(backbone, fitted, SST2, examples)
    reused = Reused()
    same(score(backbone, fitted, SST2, examples, reused=reused), wanted)
    monkeypatch.setattr("icrbench.backbone.reuse.trunk_states", None)  # the second time nothing is computed
    same(score(backbone, fitted, SST2, examples, reused=reused), wanted)


@families
def test_the_order_of_the_examples_changes_nothing(family: str) -> None:
    backbone, fitted, examples = tiny_backbone(family), Routed({"family": family}, {}), some_reviews()
    options = ScoringOptions(batch_size=4)
    order = random.Random(1).sample(range(len(examples)), len(examples))
    wanted = score(backbone, fitted, SST2, examples, options)
    found = score(backbone, fitted, SST2, [examples[i] for i in order], options)
    same(found, [wanted[i] for i in order])


@families
def test_bfloat16_runs(family: str) -> None:
    backbone = tiny_backbone(family, torch.bfloat16)
    for fitted in (ZERO_SHOT, Routed({"family": family}, {}), Shown({}, {})):
        found = logits_of(score(backbone, fitted, SST2, some_reviews(4)))
        wanted = logits_of(score(tiny_backbone(family), fitted, SST2, some_reviews(4)))
        assert (found - wanted).abs().max() < 0.1 * tiny_scale(family)


def tiny_scale(family: str) -> float:
    """Largest logit of the plain model, what rounding errors are measured against."""
    with torch.no_grad():
        return float(tiny_model(family)(torch.arange(40)[None]).logits.abs().max())


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Memory for two rows; collects the sizes of the batches tried."""
    tried: list[int] = []
    run = Backbone.hidden_states

    def hidden_states(self: Backbone, batch: Batch, *args: object, **kwargs: object) -> object:
        tried.append(len(batch.texts))
        if len(batch.texts) > 2:
            raise torch.OutOfMemoryError("no room")
        return run(self, batch, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Backbone, "hidden_states", hidden_states)
    return tried


@pytest.mark.parametrize("kind", ["zero_shot", "routed", "shown"])
def test_running_out_of_memory_halves_the_batch(kind: str, request: pytest.FixtureRequest) -> None:
    backbone, examples = tiny_backbone("llama"), reviews_of_one_length(7)
    fitted = {"zero_shot": ZERO_SHOT, "routed": Routed({"family": "llama"}, {}), "shown": Shown({}, {})}[kind]
    wanted = score(backbone, fitted, SST2, examples)
    tried = request.getfixturevalue("small_memory")
    finished: list[int] = []
    same(score(backbone, fitted, SST2, examples, ScoringOptions(batch_size=7), progress=finished.append), wanted)
    assert tried[kind == "shown" :] == [7, 4, 2, 2, 3, 2, 1]
    assert finished == [7]
    assert backbone.active is None


def test_memory_for_not_even_one_row_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Backbone, "hidden_states", fails)
    with pytest.raises(torch.OutOfMemoryError):
        score(tiny_backbone("llama"), ZERO_SHOT, SST2, some_reviews(3))


def test_other_errors_are_not_taken_for_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fails(_self: Backbone, batch: Batch, *_args: object) -> None:
        tried.append(len(batch.texts))
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Backbone, "hidden_states", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        score(tiny_backbone("llama"), ZERO_SHOT, SST2, reviews_of_one_length(3), ScoringOptions(batch_size=3))
    assert tried == [3]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    class Broken(Fitted):
        def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
            def broken(layer: int, queries: torch.Tensor, keys: torch.Tensor) -> Channels:
                return Channels(queries.new_full((len(queries), 1, *queries.shape[1:2], 1), torch.nan), keys[..., :1])

            return extra_channels(backbone, [5], lambda *got: expand_heads(broken(*got)))

    def expand_heads(made: Channels) -> Channels:
        return replace(made, query=made.query.expand(-1, 6, -1, -1))

    with pytest.raises(UserError, match="not finite"):
        score(tiny_backbone("llama"), Broken({}, {}), SST2, some_reviews(2))


def test_progress_counts_every_row_once() -> None:
    finished: list[int] = []
    options = ScoringOptions(batch_size=4)
    score(tiny_backbone("llama"), ZERO_SHOT, SST2, reviews_of_one_length(9), options, progress=finished.append)
    assert finished == [4, 4, 1]


def test_a_small_memory_makes_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = next_token.make_batch

    def counted(sequences: Sequence[Sequence[int]], *args: object, **kwargs: object) -> Batch:
        sizes.append(sum(map(len, sequences)))
        return run(sequences, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(next_token, "make_batch", counted)
    wanted = score(tiny_backbone("llama"), ZERO_SHOT, SST2, reviews_of_one_length(9))
    assert len(sizes) == 1
    sizes.clear()
    monkeypatch.setattr(batching, "token_budget", lambda backbone: 200)
    same(score(tiny_backbone("llama"), ZERO_SHOT, SST2, reviews_of_one_length(9)), wanted)
    assert len(sizes) > 3
    assert max(sizes) <= 200
