import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cli_setup import Commands, icrbench, model_folder
from icr_setup import ToyEncoder, demo_test, some_directions, some_strengths
from icrbench.analysis.explain import attention_change, explain, observed
from icrbench.analysis.explanation_text import sparks, text
from icrbench.analysis.typed_input import given_example
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.method import Fitted
from icrbench.methods.icr.routing import routed
from icrbench.methods.zero_shot import ZeroShot
from icrbench.report.figures.explanation import explanation, write_explanation
from icrbench.report.figures.style import styled
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError
from slow_attention import Reference, Term
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["icrbench"]  # a fixture

SST2 = load_tasks()["sst2"]
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class RoutedFit(Fitted):
    """Routes late blocks with random directions and strengths, times a factor."""

    def __init__(self, backbone: Backbone, factor: float = 0.3) -> None:
        self.directions = some_directions(backbone)
        self.alpha, self.gamma = some_strengths(backbone, self.directions, 1)
        self.alpha = factor * self.alpha
        super().__init__({"layers": self.directions.layers}, {})

    def strengths(self, texts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        assert texts == (SST2.prompt(demo_test("sst2")[0]),)
        return self.alpha, self.gamma

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        return routed(backbone, self.directions, self.alpha, self.gamma, "paper")


def ramp(states: Tensor) -> Tensor:
    """Not a constant, which layer norms would take out again."""
    return torch.linspace(-1, 2, states.shape[-1])


class Shifted(Fitted):
    """Adds a ramp to the last token's state after block 2."""

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        return steered(backbone, batch, {Site("block", 2): lambda states: states + ramp(states)}, "last")


class Shown(Fitted):
    """Two demonstrations."""

    def prefix(self, task: Any, query: Any) -> tuple[str, ...]:
        return "Review: bad\nSentiment: negative", "Review: good\nSentiment: positive"


def explained(backbone: Backbone, fitted: Fitted) -> dict[str, Any]:
    found = explain(backbone, Artefact(ZeroShot(), fitted), SST2, demo_test("sst2")[0])
    assert json.loads(json.dumps(found)) == found
    return found


def changes(found: dict[str, Any], what: str) -> list[float]:
    return [layer[f"{what}_change"] for layer in found["layers"]]


@families
@pytest.mark.parametrize("kind", ["plain", "routed", "shifted", "shown"])
def test_probabilities_are_those_of_scoring(family: str, kind: str) -> None:
    backbone = tiny_backbone(family)
    fitted = {
        "plain": Fitted({}, {}),
        "routed": RoutedFit(backbone),
        "shifted": Shifted({}, {}),
        "shown": Shown({}, {}),
    }
    found = explained(backbone, fitted[kind])
    for when, by in (("before", fitted["plain"]), ("after", fitted[kind])):
        (scored,) = score(backbone, by, SST2, demo_test("sst2")[:1])
        wanted = torch.tensor(scored.option_logits).softmax(0)
        assert [option[when] for option in found["options"]] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert (kind == "plain") == (found["options"][0]["before"] == found["options"][0]["after"])
    assert found["tokens"] == len(scored.prompt.tokens)


@families
def test_probabilities_of_all_tokens_come_from_the_whole_model(family: str) -> None:
    backbone = tiny_backbone(family)
    found = explained(backbone, Fitted({}, {}))
    tokens = backbone.encode(found["prompt"])
    wanted = backbone.model(torch.tensor([tokens])).logits[0, -1].softmax(-1)
    first = found["top"]["after"][0]
    assert first["probability"] == pytest.approx(float(wanted.max()), rel=1e-4)
    assert first["token"] == backbone.tokenizer.decode([int(wanted.argmax())])
    own = Prompter(backbone, SST2)(demo_test("sst2")[0]).options
    assert [option["before_of_all_tokens"] for option in found["options"]] == pytest.approx(
        wanted[list(own)].tolist(), rel=1e-3
    )


@families
def test_the_change_of_attention_is_that_of_attention_written_out(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = RoutedFit(backbone)
    found = explained(backbone, fitted)
    batch = make_batch([backbone.encode(found["prompt"])], [""])
    terms = {
        layer: Term(
            fitted.directions.queries[place],
            fitted.directions.keys[place],
            fitted.alpha[:, place],
            fitted.gamma[:, place],
        )
        for place, layer in enumerate(fitted.directions.layers)
    }
    slow = []
    for own in (None, terms):
        reference = Reference(family)
        reference.logits(batch, own)
        slow.append([reference.seen[layer].attention[0, :, -1] for layer in range(LAYERS)])
    wanted = [float(0.5 * (a - b).abs().sum(-1).mean()) for a, b in zip(*slow, strict=True)]
    assert changes(found, "attention") == pytest.approx(wanted, abs=2e-5)
    assert max(wanted) > 0.05
    first = fitted.directions.layers[0]
    assert not any(changes(found, "attention")[:first] + changes(found, "state")[:first])
    assert found["router"]["alpha"] == fitted.alpha[0].tolist()
    assert found["router"]["layers"] == fitted.directions.layers


@families
def test_no_strength_is_no_change(family: str) -> None:
    backbone = tiny_backbone(family)
    for fitted in (RoutedFit(backbone, 0.0), Fitted({}, {})):
        found = explained(backbone, fitted)
        assert not any(changes(found, "attention") + changes(found, "state"))
        assert found["top"]["before"] == found["top"]["after"]


def test_states_are_seen_as_the_method_leaves_them() -> None:
    backbone = tiny_backbone("llama")
    found = changes(explained(backbone, Shifted({}, {})), "state")
    state = observed(backbone, Fitted({}, {}), Prompter(backbone, SST2)(demo_test("sst2")[0])).states[2]
    assert found[:2] == [0, 0]
    assert found[2] == pytest.approx(float(ramp(state).norm() / state.norm()), rel=1e-4)
    assert min(found[3:]) > 0


def test_attention_to_what_the_plain_prompt_lacks_is_change() -> None:
    before = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])  # BOS and two tokens, two heads
    shown = torch.tensor([[0.5, 0.4, 0.1, 0.0], [1.0, 0.0, 0.0, 0.0]])  # one token of a demonstration, after BOS
    assert attention_change(before, shown, shown=1, virtual=0, bos=True) == pytest.approx(0.4 / 2)
    assert attention_change(before, shown, shown=0, virtual=1, bos=True) == pytest.approx((0.5 + 1.0) / 2)
    assert attention_change(before, before, shown=0, virtual=0, bos=True) == 0


@families
def test_demonstrations_are_in_the_prompt_and_draw_attention(family: str) -> None:
    backbone = tiny_backbone(family)
    found = explained(backbone, Shown({}, {}))
    assert found["demonstrations"] == 2
    assert found["prompt"].startswith("Review: bad\nSentiment: negative\nReview: good\nSentiment: positive\nReview: ")
    assert backbone.encode(found["prompt"]) == list(
        Prompter(backbone, SST2)(demo_test("sst2")[0], Shown({}, {}).prefix(None, None)).tokens
    )
    assert found["router"] is None


def test_the_text_names_all_there_is() -> None:
    found = explained(tiny_backbone("gemma3"), RoutedFit(tiny_backbone("gemma3")))
    shown = text(found)
    for line in found["prompt"].split("\n"):
        assert f"  | {line}" in shown
    for option in found["options"]:
        assert f"{100 * option['after']:.1f}" in shown
    for layer in found["layers"]:
        assert f"{layer['attention_change']:.3f}" in shown
    assert sparks([0.0, -0.5, 1.0, 2.0], 1.0) == "▁▅██"
    assert "Router" not in text(explained(tiny_backbone("gemma3"), Fitted({}, {})))


def test_the_figure_draws_the_numbers(tmp_path: Path) -> None:
    found = explained(tiny_backbone("llama"), RoutedFit(tiny_backbone("llama")))
    with styled():
        figure = explanation(found)
    alpha, gamma = (np.asarray(axes.images[0].get_array()) for axes in figure.axes[:2])
    np.testing.assert_allclose(alpha, found["router"]["alpha"])
    np.testing.assert_allclose(gamma, found["router"]["gamma"])
    bars = [bar.get_height() for bar in figure.axes[2].patches]  # type: ignore[attr-defined]
    assert bars == changes(found, "attention")
    ends = [list(line.get_xdata()) for line in figure.axes[3].lines]  # type: ignore[arg-type]
    assert ends == [[100 * option["before"], 100 * option["after"]] for option in found["options"]]
    for name in ("one.png", "two.png", "one.pdf", "two.pdf"):
        write_explanation(found, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


@pytest.mark.parametrize(
    ("task", "words", "fields", "wanted"),
    [
        ("sst2", "fine $5", [], "Review: fine $5\nSentiment:"),
        ("sst2", None, ["text=a=b"], "Review: a=b\nSentiment:"),
        ("mrpc", "first", ["sentence2=second"], "first second\nA. Paraphrase\nB. Not paraphrase\nAnswer (A/B):"),
        ("piqa", "stay dry", ["sol1=umbrella", "sol2=spoon"], "Goal: stay dry\nA. umbrella\nB. spoon\nAnswer (A/B):"),
        (
            "ai2scie",
            "why?",
            ["choice=a", "choice=b", "choice=c"],
            "Question: why?\nA. a\nB. b\nC. c\nAnswer (A/B/C):",
        ),
    ],
)
def test_an_input_fills_the_template(task: str, words: str | None, fields: list[str], wanted: str) -> None:
    known = load_tasks()[task]
    example = given_example(known, words, fields)
    assert known.prompt(example) == wanted
    assert example.options == known.options[: len(example.options)]


@pytest.mark.parametrize("task", sorted(task.name for task in get_tasks("all")))
def test_every_task_takes_an_input(task: str) -> None:
    known = load_tasks()[task]
    fields = [f"{name}=some words" for name in known.fields]
    if isinstance(known.choices, str):
        fields += ["choice=one", "choice=two"]
    elif known.choices is not None:
        fields += [f"{column}=words of {column}" for column in known.choices]
    assert "some words" in known.prompt(given_example(known, None, fields))


@pytest.mark.parametrize(
    ("task", "words", "fields", "said"),
    [
        ("sst2", None, [], "needs text: add --field text=TEXT"),
        ("mrpc", "x", [], "--field sentence1=TEXT --field sentence2=TEXT"),
        ("piqa", "x", ["sol1=y"], "needs sol2"),
        ("csqa", "x", [], "once for each answer"),
        ("sst2", None, ["txet=y"], "did you mean text"),
        ("sst2", None, ["text"], "NAME=TEXT"),
        ("sst2", None, ["text=a", "text=b"], "twice"),
        ("sst2", "x", ["text=a"], "1 fields"),
    ],
)
def test_a_wrong_input_is_refused(task: str, words: str | None, fields: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        given_example(load_tasks()[task], words, fields)


def test_the_command_explains_a_stored_fit(icrbench: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("method", "bases"):
        monkeypatch.setattr(f"icrbench.methods.icr.{module}.sentence_encoder", lambda *_: ToyEncoder())
    tiny = "rank=2:prompts_per_domain=4:prompts_agnews=4:per_class=1:queries_per_set=4:train_per_domain=4:epochs=1"
    with torch.inference_mode(False):
        assert icrbench.run(methods=f"icr:{tiny}").code == 0
    (fit,) = (icrbench.folder / "out" / "fitted").glob("icr-*")
    asked = ("explain", "a fine film", "--model", model_folder(), "--artifact", fit)
    done = icrbench(*asked, "--json", "--figure", tmp_path / "one.png")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["method"] == "icr"
    assert found["prompt"] == "Review: a fine film\nSentiment:"
    assert np.array(found["router"]["alpha"]).shape == (2, 2)
    assert np.array(found["router"]["gamma"]).shape == (2, 6)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    done = icrbench(*asked)
    assert done.code == 0
    assert "icr on" in done.out
    named = ("explain", "--model", model_folder(), "--method", "icr", "--out", fit.parent.parent)
    assert icrbench(*named, "a fine film").out == done.out
    assert icrbench(*named, "why?", "--task", "trec").code == 0  # one fit serves all tasks
    icrbench.refused(icrbench(*asked, "--method", "i2cl"), "fit of icr, not of i2cl")


def test_the_command_refuses_before_it_loads(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icrbench.backbone.load.load_backbone", lambda *_, **__: pytest.fail("loaded"))
    asked = ("explain", "a fine film", "--model", model_folder())
    icrbench.refused(icrbench(*asked, "--method", "icr"), "needs a fit", "--out OUT")
    icrbench.refused(icrbench(*asked, "--method", "icrr"), "icr")
    icrbench.refused(icrbench(*asked, "--task", "sst2,mr"), "one task")
    icrbench.refused(icrbench(*asked, "--figure", "a.jpg"), ".pdf or .png")
    icrbench.refused(icrbench("explain", "x", "--model", "gema-270m"), "gemma-270m")
    icrbench.refused(icrbench("explain", "--model", model_folder()), "needs text")
