"""Label anchors: demonstrations of which the labels alone are kept, or whose labels are attended to anew."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.head_outputs import HeadOutputs, changed_heads
from icrbench.backbone.virtual import Virtual, attending, virtual_tokens
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import COST_OF_TRAINING, Attempt, Lesson, Trained
from icrbench.toolkit.episodes import Episodes, Questions, demonstration_tokens
from icrbench.util.bounds import Count, NotNegative, Share


class LabelAnchorFitted(Fitted):
    """Keys and values of demonstration tokens, and what the attention to their labels is multiplied by.

    Attributes:
        config: ``places`` of the tokens among the demonstrations, ``length``: the place where the query goes on,
            ``has_bos``: whether BOS is among them, ``labels``: which of the tokens are re-weighted labels (none in mode
            ``compress``), ``loss`` of the re-weighting.
        tensors: ``keys`` and ``values`` ``[L, G, K, d_k]``; ``beta`` ``[L, H, N]`` for ``N`` re-weighted labels.
    """

    formula: ClassVar[str] = "2KLGd_k + LHN"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2KLGd_k`` for ``K`` tokens, and ``LHN`` for ``N`` re-weighted labels."""
        kept = 2 * len(self.config["places"]) * dims.layers * dims.kv_heads * dims.head_dim
        return kept + dims.layers * dims.heads * len(self.config["labels"])

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        """Let the batch see the tokens, as if they stood before it."""
        virtual = Virtual(
            self.tensors["keys"].to(backbone.device),
            self.tensors["values"].to(backbone.device),
            torch.tensor(self.config["places"], dtype=torch.long),
            self.config["length"],
            self.config["has_bos"],
        )
        with attending(backbone, batch, virtual) as sees:
            if not self.config["labels"]:
                yield
                return

            def reweighted(layer: int, heads: HeadOutputs) -> Tensor:
                return self._reweighted(virtual, layer, heads, sees(layer), backbone.attention_scale(layer))

            with changed_heads(backbone, batch, reweighted, "last"):
                yield

    def _reweighted(self, virtual: Virtual, layer: int, heads: HeadOutputs, seen: Tensor, scale: float) -> Tensor:
        """Multiply the share ``p`` of each label's value in the heads' outputs by ``exp(beta)``; other shares stay."""
        labels, outputs = self.config["labels"], heads.outputs
        group = outputs.shape[2] // virtual.keys.shape[1]
        keys, values = (
            held[layer][:, labels].to(outputs).repeat_interleave(group, 0) for held in (virtual.keys, virtual.values)
        )
        logits = scale * torch.einsum("bthc,hnc->bthn", heads.queries, keys) - heads.log_normaliser[..., None]
        shares = logits.masked_fill(~seen[:, :, None, labels].to(logits.device), -torch.inf).exp()
        factor = self.tensors["beta"][layer].to(outputs).expm1()
        return outputs + torch.einsum("bthn,hnc->bthc", shares * factor, values)


@register("label_anchor")
@dataclass(frozen=True)
class LabelAnchor(Trained):
    """Label anchors (Wang et al., EMNLP 2023), after the authors' code.

    ``mode=compress``: the demonstrations are run once, and of their keys and values, in all layers, only those of the
    label words and of the template's own words and line breaks are kept. Queries see these alone, at their old places.
    The template's words are found by character, not by searching for token sequences, and a label with all its tokens.

    ``mode=reweight``: all demonstration tokens are kept, and in every head the attention from a query's last token to
    each demonstration's label (its first token) is multiplied by ``exp(beta)`` after the softmax, without dividing
    anew. The ``beta``, 0 at the start, are trained by cross-entropy over the task's options on further train rows.

    Choices of this implementation:

    - Demonstrations are as many as the few-shot baseline shows, which is what I2CL compares with; the authors show one
      a class (``per_class=1``).
    - A beginning-of-sequence token is kept, as part of the format, and the query's own is then hidden.
    - Queries are tokenised apart from the demonstrations. Where a tokenizer reads the start of a text otherwise
      (Llama 2), their first token can differ from the few-shot prompt's.
    - Demonstrations that leave too little room for a query are dropped, the first ones first.
    - Rows to train on are train rows, and none of the demonstrations. The learning rate falls along a half cosine, as
      for every trained method, and gradients longer than 1 are cut; the authors' rate is constant.
    - Of the authors' two models one (GPT-J) keeps the places, the other (GPT-2 XL) starts anew at 0.

    Attributes:
        mode: what is done with the labels.
        anchors: tokens that ``compress`` keeps.
        places: whether queries go on behind the demonstrations or start anew at place 0.
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        train_per_class: rows per class (or in-domain task) that ``reweight`` is trained on. It alone uses these and the
            settings of training.
    """

    learning_rate: NotNegative = 0.01
    weight_decay: NotNegative = 0.0
    batch_size: Count = 1
    epochs: Count = 10
    warmup: Share = 0.0
    mode: Literal["compress", "reweight"] = "compress"
    anchors: Literal["label+format", "label"] = "label+format"
    places: Literal["keep", "restart"] = "keep"
    per_class: Count = 5
    per_task: Count = 3
    train_per_class: Count = 4

    budget: ClassVar[tuple[str, ...]] = ("train_per_class", "epochs", "most_steps")
    fitted: ClassVar[type[Fitted]] = LabelAnchorFitted

    @property
    def trained(self) -> bool:  # type: ignore[override]  # here it depends on the mode
        """Whether weights of labels are trained."""
        return self.mode == "reweight"

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LabelAnchorFitted:
        """Run the demonstrations; keep some of their tokens, or train the weights of their labels."""
        shown = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task).demonstrations()
        demonstrations = Demonstrations.fitting(backbone, shown)
        with torch.no_grad():
            virtual = virtual_tokens(backbone, demonstrations.tokens)
        if self.mode == "compress":
            labels_only = self.anchors == "label"
            kept = demonstrations.anchors(backbone, labels_only)
            return self._fitted(virtual.kept(kept), [])
        dims, labels = backbone.dims, demonstrations.labels(backbone)
        fitted = self._fitted(virtual, labels)
        fitted.tensors["beta"] = torch.zeros(dims.layers, dims.heads, len(labels))
        further = Episodes(data, rng, per_class=self.train_per_class, per_task=self.train_per_class).demonstrations(
            "re-weighting", exclude={own.example.content_hash for own in shown}
        )
        lessons = [Lesson(question) for question in Questions(backbone).zero_shot(further)]
        return self.train(backbone, fitted, {"beta": self.learning_rate}, lessons, _over_options, rng)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the demonstrations once; in mode ``reweight`` also the rows, forward and backward, in every epoch."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        if self.mode == "compress":
            return shown
        trained = demonstration_tokens(self.train_per_class, self.train_per_class, tokens, classes)
        return shown + COST_OF_TRAINING * self.epochs * trained

    def _fitted(self, virtual: Virtual, labels: list[int]) -> LabelAnchorFitted:
        config: dict[str, Any] = {
            "places": virtual.positions.tolist(),
            "length": virtual.length if self.places == "keep" else 0,
            "has_bos": virtual.has_bos,
            "labels": labels,
            "loss": [],
        }
        return LabelAnchorFitted(config, {"keys": virtual.keys.cpu(), "values": virtual.values.cpu()})


def _over_options(attempt: Attempt) -> Tensor:
    """Cross-entropy of the right option among the options; where answers are written, among all tokens."""
    questions = [lesson.question for lesson in attempt.lessons]
    if any(question.prompt.written for question in questions):
        return attempt.cross_entropy()
    losses = [
        cross_entropy(logits[list(question.prompt.options)], torch.tensor(question.label, device=logits.device))
        for question, logits in zip(questions, attempt.logits, strict=True)
    ]
    return torch.stack(losses).mean()
