"""Which words a method makes likelier across tasks: the "ICLness" of tokens (ICR paper, App. D, Table 16)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.method import Fitted
from icrbench.toolkit.episodes import Question
from icrbench.toolkit.selection import batches

TINY = 1e-6  # keeps a token that never changes from having an infinite score


def log_probability_change(backbone: Backbone, fitted: Fitted, questions: Sequence[Question]) -> Tensor:
    """Mean over questions of ``log p_method - log p_zero_shot`` of the next token, ``[V]`` in float64."""
    total = torch.zeros(1, dtype=torch.float64)
    with torch.inference_mode():
        for _, batch in batches(backbone, questions):
            plain = batch.at_last(backbone.hidden_states(batch))
            with fitted.applied(backbone, batch):
                changed = batch.at_last(backbone.hidden_states(batch))
            logs = [backbone.logits(states).log_softmax(-1) for states in (changed, plain)]
            total = total + (logs[0] - logs[1]).double().sum(0).cpu()
    return total / len(questions)


def iclness(changes: Tensor) -> dict[str, Tensor]:
    """Statistics over tasks of every token's change.

    Args:
        changes: ``[tasks, V]``, one `log_probability_change` a task.

    Returns:
        ``mean``, ``std``, ``share`` (of tasks in which it is positive), ``borda`` (sum over tasks of the number of
        tokens whose change is smaller) and ``score``: ``mean / (std + tiny) * share * log(1 + borda)``, ``[V]`` each.
    """
    mean, std = changes.mean(0), changes.std(0, correction=0)
    share = (changes > 0).double().mean(0)
    order = changes.argsort(dim=1, stable=True)
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(changes.shape[1]).expand_as(order).contiguous())
    borda = ranks.sum(0).double()
    return {
        "mean": mean,
        "std": std,
        "share": share,
        "borda": borda,
        "score": mean / (std + TINY) * share * torch.log1p(borda),
    }
