"""Cartridges: a short prefix of keys and values trained to answer as the model does after many demonstrations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch

from icrbench.backbone import Backbone
from icrbench.backbone.virtual import Virtual, virtual_tokens
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import Attempt, TrainedOnQueries, taught
from icrbench.toolkit.episodes import Episode, Episodes, demonstration_tokens
from icrbench.toolkit.optimisation import Decay
from icrbench.toolkit.prefix_fit import PrefixFitted
from icrbench.util.bounds import Bounds, Count, NotNegative, Share


class CartridgeFitted(PrefixFitted):
    """Keys and values of ``p`` slots, the first of which stays as the model computes it.

    Attributes:
        config: as of `PrefixFitted`; ``loss``: mean training loss by epoch; ``shown``: demonstrations compressed, and
            ``context``: their tokens.
        tensors: ``keys`` and ``values`` ``[L, G, p - 1, d_k]``, trained; ``sink.keys`` and ``sink.values``
            ``[L, G, 1, d_k]``, not.
    """

    formula: ClassVar[str] = "2pLGd_k"

    def virtual(self, backbone: Backbone) -> Virtual:
        """Return the sink and the trained slots behind it."""
        trained = super().virtual(backbone)
        keys, values = (self.tensors[f"sink.{name}"].to(backbone.device) for name in ("keys", "values"))
        return replace(
            trained,
            keys=torch.cat([keys, trained.keys], 2),
            values=torch.cat([values, trained.values], 2),
        )


@register("cartridges")
@dataclass(frozen=True)
class Cartridges(TrainedOnQueries):
    """Cartridges (arXiv 2506.06266), with demonstrations for a corpus.

    A prefix of ``p`` slots, keys and values in every layer, starts as the model's own at the corpus's first ``p``
    tokens. All slots but the first, on which attention rests where it has nothing to look for, are trained so that the
    model with the prefix answers as it does with the whole corpus before it: by the divergence of the next-token
    distributions. Queries go on at the place behind the prefix. `ct_kv` differs in that it keeps all tokens and learns
    from labels.

    The authors let the model write conversations about a corpus and learn from those; base models of the sizes here
    write none. Choices of this implementation:

    - The corpus is a prompt of many demonstrations. The questions are other train rows, whose labels are not read; at
      most half of all rows are asked.
    - The divergence is over the whole vocabulary at the prompt's last token; the authors' runs over the teacher's
      twenty most likely tokens, at all tokens of the conversations' answers.
    - Learning rate and epochs are those of their runs on patients' records, with 2,048 slots and 65,536
      conversations; slots and queries here are fewer, minibatches smaller.

    Attributes:
        tokens: slots, ``p``; no more than the corpus has tokens.
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        context: most tokens of all demonstrations; less where the model takes fewer. The first ones are dropped.
        init: whose keys and values the slots start with: the ``first`` tokens, which may hold but one demonstration, or
            tokens ``spread`` evenly over the corpus, at their own places; queries then go on behind the corpus.
    """

    learning_rate: NotNegative = 0.02
    weight_decay: NotNegative = 0.0
    batch_size: Count = 16
    epochs: Count = 2
    warmup: Share = 0.0
    decay: Decay = "constant"
    tokens: Annotated[int, Bounds(2)] = 64
    per_class: Count = 32
    per_task: Count = 16
    context: Count = 4096
    init: Literal["first", "spread"] = "first"

    fitted: ClassVar[type[Fitted]] = CartridgeFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> CartridgeFitted:
        """Run the teacher on every query behind the corpus, then train the slots."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task)
        queries = episodes.queries(min(self.queries, len(episodes.rows) // 2))
        shown = episodes.demonstrations(exclude={query.example.content_hash for query in queries})
        corpus = Demonstrations.fitting(backbone, shown, self.context)
        lessons = taught(backbone, [Episode(corpus.shown, query) for query in queries])
        initial = self._initial(backbone, corpus)
        rates = dict.fromkeys(("keys", "values"), self.learning_rate)
        return self.train(backbone, initial, rates, lessons, Attempt.divergence, rng)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the corpus and the queries once, then the queries, forward and backward, every epoch."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        asked = self.queries * sum(tokens.values()) / len(tokens)
        return min(shown, self.context) + asked + super().fit_tokens(tokens, classes)

    def _initial(self, backbone: Backbone, corpus: Demonstrations) -> CartridgeFitted:
        """Return the slots before training."""
        count = min(self.tokens, len(corpus.tokens))
        with torch.no_grad():
            if self.init == "first":
                virtual = virtual_tokens(backbone, corpus.tokens[:count])
            else:
                places = torch.linspace(0, len(corpus.tokens) - 1, count).round().long().tolist()
                virtual = virtual_tokens(backbone, corpus.tokens).kept(places)
        fitted = CartridgeFitted.of(virtual, shown=len(corpus.shown), context=len(corpus.tokens))
        for name in ("keys", "values"):
            whole = fitted.tensors[name]
            fitted.tensors[f"sink.{name}"], fitted.tensors[name] = whole[:, :, :1].clone(), whole[:, :, 1:].clone()
        return fitted
