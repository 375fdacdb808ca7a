"""Training on calibrated answers: what the model prefers whatever it reads is taken off before the loss.

Otherwise a router can lower its loss by moving the answers' frequencies alone, which calibration does without training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.trunk import continue_from
from icrbench.toolkit.episodes import Question

from .trunkstore import TrunkStore

INPUTS = 64  # training prompts that a prior is read off, without their answers; as for batch calibration of results
BATCH = 8


class Priors:
    """The unrouted model's preference among the options of each training prompt.

    For each domain (and each set of options in it), the mean over training prompts of the options' log-probabilities,
    softmax over the options, as in batch calibration (Zhou et al. 2023, arXiv 2309.17249). Its mean over the options is
    taken off, so that options as a whole stay as probable beside the rest of the vocabulary as they are.

    Args:
        backbone: the model.
        layer: that the trunk states enter.
        store: trunk states of the training prompts.
        domains: the training prompts, as the store numbers them.
    """

    def __init__(
        self, backbone: Backbone, layer: int, store: TrunkStore, domains: Sequence[Sequence[Question]]
    ) -> None:
        self._options = [question.prompt.options for questions in domains for question in questions]
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        own = [number for number, questions in enumerate(domains) for _ in questions]
        for row, key in enumerate(zip(own, self._options, strict=True)):
            groups.setdefault(key, []).append(row)
        self._priors: dict[int, Tensor] = {}
        for (_, options), rows in groups.items():
            prior = _prior(backbone, layer, store, rows[:INPUTS], options)
            self._priors.update(dict.fromkeys(rows, prior))

    def of(self, rows: Sequence[int], logits: Tensor) -> Tensor:
        """Return what to take off the logits ``[B, V]`` of some prompts, by number; zero but at their options."""
        found = torch.zeros_like(logits)
        for place, row in enumerate(rows):
            found[place, list(self._options[row])] = self._priors[row].to(logits)
        return found


@torch.no_grad()
def _prior(backbone: Backbone, layer: int, store: TrunkStore, rows: Sequence[int], options: tuple[int, ...]) -> Tensor:
    """``[options]``, with mean 0."""
    found = []
    for start in range(0, len(rows), BATCH):
        data = store.load(rows[start : start + BATCH])
        states = continue_from(backbone, layer, data.states, data.batch)
        logits = backbone.logits(data.batch.at_last(states))[:, list(options)]
        found.append(logits.float().log_softmax(1).cpu())
    prior = torch.cat(found).mean(0)
    return prior - prior.mean()
