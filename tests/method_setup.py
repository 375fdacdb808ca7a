"""What the tests of methods share: tiny fits, logits under them, and a slow float64 model with hooks of its own."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from icr_setup import demo_pool, demo_test, pools
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.sites import Site
from icrbench.data.find_tasks import load_tasks
from icrbench.method import FitData, Fitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.toolkit.distillation import Attempt, Lesson, Trained, taught
from icrbench.toolkit.episodes import Episode, Labelled, Question, Questions
from tiny import LAYERS, tiny_backbone, tiny_model

DOMAINS = ("agnews", "csqa", "piqa", "sst2", "trec")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fit(
    name: str,
    backbone: Backbone | None = None,
    names: Sequence[str] = ("sst2",),
    target: str | None = "sst2",
    seed: int = 0,
    workspace: Path = Path("unused"),
    **settings: Any,
) -> Any:
    """A method fitted on demonstration rows; one that keeps parts of a fit needs a workspace."""
    backbone = tiny_backbone("llama") if backbone is None else backbone
    data = FitData(pools(*names), target, workspace)
    return make_method(name, settings).fit(backbone, data, Randomness(seed))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    """The episodes a fit asks in context."""
    found: list[Episode] = []
    in_context = Questions.in_context

    def noted(self: Questions, episodes: Sequence[Episode]) -> list[Question]:
        found.extend(episodes)
        return in_context(self, episodes)

    monkeypatch.setattr(Questions, "in_context", noted)
    return found


@dataclass(frozen=True)
class Training:
    """What a fit hands over to be trained."""

    initial: Fitted
    rates: Mapping[str, float]
    lessons: Sequence[Lesson]
    objective: Callable[[Attempt], Tensor]
    sites: Sequence[Site]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """The trainings a fit asks for; none is done."""
    found: list[Training] = []

    def noted(
        _self: Trained,
        _backbone: Backbone,
        fitted: Fitted,
        rates: Mapping[str, float],
        lessons: Sequence[Lesson],
        objective: Callable[[Attempt], Tensor],
        _rng: Randomness,
        sites: Sequence[Site] = (),
    ) -> Fitted:
        found.append(Training(fitted, rates, lessons, objective, sites))
        return fitted

    monkeypatch.setattr(Trained, "train", noted)
    return found


def assert_spread(values: Tensor, spread: float) -> None:
    """Entries as of ``N(0, spread^2)``, as far as some hundred of them tell."""
    assert float(values.std()) == pytest.approx(spread, rel=0.2)
    assert abs(float(values.mean())) < 0.3 * spread


def some_lessons(backbone: Backbone, sites: Sequence[Site] = ()) -> list[Lesson]:
    """Four queries of sst2, by a teacher with two demonstrations."""
    pool = demo_pool("sst2")
    shown = tuple(Labelled(pool.task, row) for row in pool.train[:2])
    return taught(backbone, [Episode(shown, Labelled(pool.task, row)) for row in pool.train[2:6]], sites)


def zero_shot_questions(backbone: Backbone, name: str = "sst2", count: int = 5) -> list[Question]:
    """Zero-shot prompts of test rows; their lengths differ."""
    task = load_tasks()[name]
    return Questions(backbone).zero_shot([Labelled(task, row) for row in demo_test(name)[:count]])


def logits(backbone: Backbone, fitted: Fitted | None, questions: Sequence[Question], padding: Any = "right") -> Tensor:
    """Next-token logits ``[N, V]`` under a fitted method (None: of the bare model), in one batch."""
    batch = make_batch(
        [own.prompt.tokens for own in questions], [own.prompt.text for own in questions], padding=padding
    )
    with torch.no_grad():
        if fitted is None:
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))
        with fitted.applied(backbone, batch):
            return backbone.logits(batch.at_last(backbone.hidden_states(batch)))


# The families' modules once more, written down without the project's own table: what a branch adds to the residual
# stream is the last thing computed before the addition.
_MODULES = {
    "gemma3": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    "olmo2": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    "gpt2": ("transformer.h", "attn", "mlp", "transformer.ln_f"),
    "gpt_neox": ("gpt_neox.layers", "attention", "mlp", "gpt_neox.final_layer_norm"),
}
_LLAMA_LIKE = ("model.layers", "self_attn", "mlp", "model.norm")


class Slow:
    """A tiny model in float64, one prompt at a time, with plain hooks: for references written from the formulas."""

    def __init__(self, family: str) -> None:
        self.model = _double(family)
        blocks, attention, mlp, final = _MODULES.get(family, _LLAMA_LIKE)
        self.modules: dict[tuple[str, int], nn.Module] = {("final", LAYERS - 1): self.model.get_submodule(final)}
        for layer in range(LAYERS):
            block = self.model.get_submodule(f"{blocks}.{layer}")
            self.modules["attention", layer] = block.get_submodule(attention)
            self.modules["mlp", layer] = block.get_submodule(mlp)
            self.modules["block", layer] = block

    def logits(
        self, tokens: Sequence[int], edits: Mapping[tuple[str, int], Callable[[Tensor], Tensor]] | None = None
    ) -> Tensor:
        """Logits ``[T, V]``; ``edits`` map the outputs ``[T, d]`` of modules."""
        with ExitStack() as stack:
            for place, edit in (edits or {}).items():
                stack.callback(self.modules[place].register_forward_hook(_replace(edit)).remove)
            found: Tensor = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return found

    def outputs(self, tokens: Sequence[int]) -> dict[tuple[str, int], Tensor]:
        """What every module gives, ``[T, d]``; the embeddings as block -1."""
        found: dict[tuple[str, int], Tensor] = {}

        def keep(place: tuple[str, int]) -> Callable[[Tensor], Tensor]:
            return lambda states: found.setdefault(place, states)

        def keep_input(_module: nn.Module, args: Any, kwargs: Any) -> None:
            found["block", -1] = (args[0] if args else kwargs["hidden_states"])[0]

        first = self.modules["block", 0].register_forward_pre_hook(keep_input, with_kwargs=True)
        try:
            self.logits(tokens, {place: keep(place) for place in self.modules})
        finally:
            first.remove()
        return found


@cache
def _double(family: str) -> nn.Module:
    return tiny_model(family, torch.float64).requires_grad_(False)


def _replace(edit: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (edit(output[0][0])[None], *output[1:])
        return edit(output[0])[None]

    return hook
