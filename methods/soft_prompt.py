"""Soft prompts: trained vectors that every token of a prompt sees, as if they were tokens before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.virtual import Virtual, attending, virtual_embeddings
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Lesson, TrainedOnDemonstrations
from icrbench.toolkit.episodes import Episodes, Questions
from icrbench.util.bounds import Count, NotNegative, Share


class SoftPromptFitted(Fitted):
    """Virtual tokens: their embeddings, or their keys and values in every layer.

    Attributes:
        config: ``where``, and ``loss``: mean training loss by epoch.
        tensors: ``embeddings`` ``[n, d]``, or ``keys`` and ``values`` ``[L, G, n, d_k]``.
    """

    formula: ClassVar[str] = "nd or 2nLGd_k"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``nd`` for ``n`` virtual tokens; ``2nLGd_k`` where they are keys and values."""
        if self.config["where"] == "input":
            return len(self.tensors["embeddings"]) * dims.hidden
        return 2 * self.tensors["keys"].shape[2] * dims.layers * dims.kv_heads * dims.head_dim

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        """Let every token see the virtual ones; its own position is moved on by as many."""
        with attending(backbone, batch, self.virtual(backbone)):
            yield

    def virtual(self, backbone: Backbone) -> Virtual:
        """Return the virtual tokens; gradients flow back to the tensors held here."""
        if self.config["where"] == "input":
            return virtual_embeddings(backbone, self.tensors["embeddings"])
        keys, values = self.tensors["keys"], self.tensors["values"]
        return Virtual(keys, values, torch.arange(keys.shape[2]), keys.shape[2], has_bos=False)


@register("soft_prompt")
@dataclass(frozen=True)
class SoftPrompt(TrainedOnDemonstrations):
    """A soft prompt trained on as many rows as few-shot shows, as I2CL compares with.

    One virtual token stands before the prompt, before its beginning-of-sequence token, too. ``where=input`` trains its
    embedding (prompt tuning, Lester et al. 2021), as the I2CL authors' code does through the peft library;
    ``where=layers`` trains its keys and values in every layer (prefix tuning, Li and Liang 2021; p-tuning v2), as their
    paper describes it. Training is that code's: rows of the few-shot set, asked without their answers, and the
    cross-entropy of the answer's first token.

    That code reads its answers one token early, since the library's logits are longer by the virtual token; here the
    answer is read at the prompt's end. The first values are drawn as the library's are, from ``N(0, 1)``, and keys and
    values are those that the model computes for such vectors. Gradients longer than 1 are cut.

    Attributes:
        tokens: virtual tokens.
        where: what is trained.
    """

    learning_rate: NotNegative = 0.1
    batch_size: Count = 4
    epochs: Count = 50
    warmup: Share = 0.05
    tokens: Count = 1
    where: Literal["input", "layers"] = "input"

    fitted: ClassVar[type[Fitted]] = SoftPromptFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> SoftPromptFitted:
        """Train the virtual tokens."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task)
        lessons = [Lesson(question) for question in Questions(backbone).zero_shot(episodes.demonstrations())]
        embeddings = torch.randn(self.tokens, backbone.dims.hidden, generator=rng.torch("virtual-tokens"))
        initial = {"embeddings": embeddings}
        if self.where == "layers":
            with torch.no_grad():
                virtual = virtual_embeddings(backbone, embeddings)
            initial = {"keys": virtual.keys.float(), "values": virtual.values.float()}
        rates = dict.fromkeys(initial, self.learning_rate)
        fitted = SoftPromptFitted({"where": self.where}, initial)
        return self.train(backbone, fitted, rates, lessons, Attempt.cross_entropy, rng)
