"""Reading hidden vectors where the answer is predicted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.prefix import prompt_batches
from icrbench.backbone.sites import Site, captured
from icrbench.scoring.prompting import cut_front
from icrbench.toolkit.episodes import Question


def last_token_vectors(backbone: Backbone, questions: Sequence[Question], sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Read the vectors at some sites at every prompt's last token, ``[N, n]`` each, float32 on the CPU."""
    sequences = [question.prompt.tokens for question in questions]
    return _last_vectors(backbone, sequences, [question.prompt.text for question in questions], sites)


def text_end_vectors(backbone: Backbone, texts: Sequence[str], sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Read the vectors at some sites at the last token of texts read alone, ``[N, n]`` each, float32 on the CPU.

    A text longer than the model takes loses its front.
    """
    sequences = [tuple(backbone.encode(cut_front(backbone, text, backbone.max_length))) for text in texts]
    return _last_vectors(backbone, sequences, texts, sites)


def _last_vectors(
    backbone: Backbone, sequences: Sequence[tuple[int, ...]], texts: Sequence[str], sites: Sequence[Site]
) -> dict[Site, Tensor]:
    found: dict[Site, dict[int, Tensor]] = {site: {} for site in sites}
    with torch.inference_mode(), captured(backbone, sites) as seen:
        for rows, batch, cache in prompt_batches(backbone, sequences, texts):
            backbone.hidden_states(batch, cache)
            for site in sites:
                vectors = batch.at_last(seen[site]).float().cpu()
                found[site].update(zip(rows, vectors, strict=True))
    return {site: torch.stack([own[row] for row in range(len(sequences))]).clone() for site, own in found.items()}
