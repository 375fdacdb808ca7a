"""What a fitted method does to one input: its prompt, the router's output, attention, states and probabilities."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from icrbench.analysis.routing import Routed
from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.attention import last_attention
from icrbench.backbone.sites import Site, captured
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Example, Task
from icrbench.method import Fitted
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.store.artefact import Artefact

SCHEMA = 1
TOP = 10


@dataclass(frozen=True)
class Pass:
    """One forward pass, seen from the last token.

    Attributes:
        attention: by layer, ``[H, S]``.
        states: ``[L, d]``, the residual stream after each block.
        log_probabilities: ``[V]`` of the next token.
    """

    attention: dict[int, Tensor]
    states: Tensor
    log_probabilities: Tensor


def explain(backbone: Backbone, artefact: Artefact, task: Task, example: Example) -> dict[str, Any]:
    """All that is shown of one input, json-able.

    "Before" is the model as it is on the zero-shot prompt; "after" is the method on its own prompt, which differs only
    where the method shows demonstrations.
    """
    fitted = artefact.fitted
    demonstrations = fitted.prefix(task, example)
    prompter = Prompter(backbone, task)
    plain, prompt = prompter(example), prompter(example, demonstrations)
    before, after = observed(backbone, Fitted({}, {}), plain), observed(backbone, fitted, prompt)
    chosen = list(prompt.options)
    options = [
        {
            "option": option,
            "token": backbone.tokenizer.decode([token]),
            **{
                name: value
                for when, run in (("before", before), ("after", after))
                for name, value in (
                    (when, float(run.log_probabilities[chosen].softmax(0)[place])),
                    (f"{when}_of_all_tokens", float(run.log_probabilities[token].exp())),
                )
            },
        }
        for place, (option, token) in enumerate(zip(example.options, chosen, strict=True))
    ]
    change = (after.states - before.states).norm(dim=1) / before.states.norm(dim=1)
    return {
        "schema": SCHEMA,
        "kind": "explanation",
        "model": backbone.revision.name,
        "method": artefact.method.name,
        "hyperparameters": artefact.method.hyperparameters(),
        "task": task.name,
        "prompt": DEMONSTRATION_SEPARATOR.join([*demonstrations[prompt.dropped :], prompt.text]),
        "tokens": len(prompt.tokens),
        "starts_with": backbone.tokenizer.bos_token if backbone.adds_bos else None,
        "demonstrations": len(demonstrations) - prompt.dropped,
        "truncated": prompt.truncated,
        "router": _router(fitted, prompt.text),
        "layers": [
            {
                "layer": layer,
                "attention_change": attention_change(
                    before.attention[layer],
                    after.attention[layer],
                    shown=len(prompt.tokens) - len(plain.tokens),
                    virtual=after.attention[layer].shape[1] - len(prompt.tokens),
                    bos=backbone.adds_bos,
                ),
                "state_change": float(change[layer]),
            }
            for layer in range(backbone.dims.layers)
        ],
        "options": options,
        "top": {"before": _top(backbone, before), "after": _top(backbone, after)},
    }


def observed(backbone: Backbone, fitted: Fitted, prompt: Prompt) -> Pass:
    """Run one prompt under a method, whole and alone, and keep what the last token saw."""
    batch = make_batch([prompt.tokens], [prompt.text], device=backbone.device)
    attention: dict[int, Tensor] = {}
    sites = [Site("block", layer) for layer in range(backbone.dims.layers)]
    with torch.inference_mode(), fitted.applied(backbone, batch):
        # Entered last, so that states are seen as the method leaves them.
        with last_attention(backbone, attention.__setitem__), captured(backbone, sites) as states:
            final = batch.at_last(backbone.hidden_states(batch))
        logits = fitted.logits(backbone, final)[0]
    return Pass(
        {layer: weights[0].float().cpu() for layer, weights in attention.items()},
        torch.stack([states[site][0, -1].float().cpu() for site in sites]),
        logits.float().log_softmax(-1).cpu(),
    )


def attention_change(before: Tensor, after: Tensor, *, shown: int, virtual: int, bos: bool) -> float:
    """Total variation distance between two attention distributions of the last token, the mean over heads.

    0: every head looks where it did; 1: none looks at anything it looked at before. What a head gives to
    demonstrations and virtual tokens, which the plain prompt does not have, is all change.

    Args:
        before: ``[H, S]``.
        after: ``[H, virtual + S + shown]``.
        shown: tokens of demonstrations, after the beginning-of-sequence token.
        virtual: keys in front of all tokens.
        bos: whether both prompts start with a beginning-of-sequence token.
    """
    heads, first = before.shape[0], int(bos)
    aligned = torch.cat(
        [before.new_zeros(heads, virtual), before[:, :first], before.new_zeros(heads, shown), before[:, first:]], 1
    )
    return float((after - aligned).abs().sum(1).mean() / 2)


def _router(fitted: Fitted, text: str) -> dict[str, Any] | None:
    """Alpha ``[L', r]`` and gamma ``[L', H]``, of fits that have a router."""
    if not isinstance(fitted, Routed):
        return None
    with torch.inference_mode():
        alpha, gamma = fitted.strengths((text,))
    return {"layers": list(fitted.config["layers"]), "alpha": alpha[0].tolist(), "gamma": gamma[0].tolist()}


def _top(backbone: Backbone, run: Pass) -> list[dict[str, Any]]:
    best = run.log_probabilities.topk(TOP)
    return [
        {"token": backbone.tokenizer.decode([int(token)]), "probability": float(value.exp())}
        for value, token in zip(best.values, best.indices, strict=True)
    ]
