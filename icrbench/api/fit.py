"""`icrbench.load_fit`: a stored fit on a plain transformers model, for generation or any forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from icrbench.api.hub import fetch
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.batch import PaddingSide
from icrbench.backbone.load import load_backbone, wrap
from icrbench.data.free_text import as_query
from icrbench.data.task import DEMONSTRATION_SEPARATOR
from icrbench.method import Fitted, Method
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Fit:
    """A fitted method on a model.

    Attributes:
        backbone: the model; ``backbone.model`` and ``backbone.tokenizer`` are the transformers objects.
        artefact: the method and its fit.
    """

    backbone: Backbone
    artefact: Artefact

    @property
    def method(self) -> Method:
        """The method and its hyperparameters."""
        return self.artefact.method

    @property
    def fitted(self) -> Fitted:
        """What the method learned."""
        return self.artefact.fitted

    def prompts(self, texts: Sequence[str]) -> list[str]:
        """Return the texts as the model reads them: after demonstrations, for methods that show some."""
        return [DEMONSTRATION_SEPARATOR.join([*self.fitted.prefix(*as_query(text)), text]) for text in texts]

    def inputs(self, texts: Sequence[str], padding: PaddingSide = "left") -> dict[str, torch.Tensor]:
        """Tokens of ``prompts(texts)`` for ``model.generate`` or ``model(...)``: ``input_ids``, ``attention_mask``."""
        return _inputs(self._batch(texts, padding))

    @contextmanager
    def on(self, texts: str | Sequence[str], padding: PaddingSide = "left") -> Iterator[None]:
        """Within the context, forward passes and decoding of a batch of these texts are changed by the method.

        Args:
            texts: of the batch under way, in its order; a per-query method is conditioned on them.
            padding: the side on which the batch is padded; generation needs left.

        Raises:
            RuntimeError: if another fit is applied to the model already.
        """
        batch = self._batch([texts] if isinstance(texts, str) else texts, padding)
        with self.fitted.applied(self.backbone, batch):
            yield

    def generate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Continue each text under the method.

        Args:
            texts: zero-shot prompts.
            options: of transformers' ``generate``: ``max_new_tokens``, ``do_sample``, ...; greedy if none are given.

        Returns:
            What follows each text.
        """
        batch = self._batch(texts, "left")
        asked = {**_inputs(batch), "do_sample": False, **options}
        with self.fitted.applied(self.backbone, batch), torch.no_grad():
            tokens = self.backbone.model.generate(**asked)  # type: ignore[operator]
        width = batch.input_ids.shape[1]
        found: list[str] = self.backbone.tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)
        return found

    def _batch(self, texts: Sequence[str], padding: PaddingSide) -> Batch:
        if not texts:
            raise UserError("no text given: name at least one.")
        sequences = [self.backbone.encode(text) for text in self.prompts(texts)]
        return make_batch(sequences, texts, device=self.backbone.device, padding=padding)


def _inputs(batch: Batch) -> dict[str, torch.Tensor]:
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}


def load_fit(
    source: str | Path,
    model: str | PreTrainedModel | Backbone,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    quantize: str | None = None,
    allow_model: bool = False,
) -> Fit:
    """Read a fit and put it on a model.

    Args:
        source: the fit's folder (``OUT/fitted/METHOD-KEY``), or a hub id (``org/name@revision``).
        model: a loaded transformers model, or what ``--models`` takes.
        tokenizer: of a loaded model.
        quantize: ``int8`` or ``int4``, for a model given by name: how the fit's own was quantised.
        allow_model: also take other weights than those the fit was made on.

    Raises:
        UserError: if the fit cannot be read, or was made on other weights.
    """
    if isinstance(model, PreTrainedModel):
        backbone = wrap(model, tokenizer)
    else:
        backbone = model if isinstance(model, Backbone) else load_backbone(model, quantize=quantize)
    folder = Path(source) if Path(source).is_dir() or str(source).count("/") != 1 else fetch(str(source))
    return Fit(backbone, Artefact.load(folder, backbone, allow_model=allow_model))
