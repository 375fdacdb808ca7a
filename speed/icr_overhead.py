"""What routing costs: scoring time at batch 16, and peak memory of one pass over 2,048 tokens.

Trunk states are not reused, and the router's sentence encoder is part of ICR's time.
"""

import multiprocessing
from typing import Any

import torch
from common import backbone, options, report, rows, side_by_side

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.load import load_backbone
from icrbench.backbone.metering import peak, reset_peak
from icrbench.method import Fitted
from icrbench.methods.icr import ICRFitted
from icrbench.methods.icr.directions import random_directions
from icrbench.methods.icr.layers import target_layers
from icrbench.methods.icr.router import HIDDEN, Router
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.toolkit.encoder import sentence_encoder

BATCH = 16
COUNT = 128
TOKENS = 2048
RANK = 8


def untrained(model: Backbone) -> ICRFitted:
    """Make an ICR whose router routes everywhere; its training makes no difference to its cost."""
    dims = model.dims
    layers = target_layers("late", dims.layers)
    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, Any] = {
        "width": sentence_encoder("minilm").width,
        "layers": len(layers),
        "rank": RANK,
        "heads": dims.heads,
        "hidden": HIDDEN,
    }
    router = Router.initial(**sizes, generator=generator)
    torch.nn.init.normal_(router.alpha[2].weight, std=0.1, generator=generator)

    def bases(heads: int) -> torch.Tensor:
        return torch.stack([random_directions(heads * dims.head_dim, RANK, generator) for _ in layers])

    config = {
        "layers": layers,
        "position": "pre_rope",
        "routing_scale": "attention",
        "alpha_scale": 0.8,
        "encoder": "minilm",
        "embedding": "pipeline",
        "router": sizes,
    }
    state = {f"router.{name}": tensor for name, tensor in router.state_dict().items()}
    directions = {"directions.queries": bases(dims.heads), "directions.keys": bases(dims.kv_heads)}
    return ICRFitted(config, {**directions, **state})


def fitted(name: str, model: Backbone) -> Fitted:
    """Measure the two sides."""
    return untrained(model) if name == "icr" else make_method("zero_shot", {}).fitted({}, {})


def peak_megabytes(model_name: str, name: str, answer: "multiprocessing.Queue[tuple[float, float]]") -> None:
    """In a process of its own: memory before a pass over ``TOKENS`` tokens, and at its peak."""
    model = load_backbone(model_name)
    method = fitted(name, model)
    short = make_batch([[1] * 8], ["warm up"], device=model.device)
    batch = make_batch([list(range(10, 10 + TOKENS))], ["a prompt"], device=model.device)
    with torch.inference_mode():
        with method.applied(model, short):
            model.hidden_states(short)
        before = reset_peak(model)  # loading the model has set one
        with method.applied(model, batch):
            model.hidden_states(batch)
    most = peak(model)
    assert before is not None, "this system does not say how much memory is used"
    assert most is not None, "this system does not say how much memory was used at most"
    answer.put((before / 2**20, most / 2**20))


def peak_memory(model_name: str, name: str) -> tuple[float, float]:
    """Return what `peak_megabytes` finds in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[tuple[float, float]] = context.Queue()
    process = context.Process(target=peak_megabytes, args=(model_name, name, answer))
    process.start()
    found = answer.get()
    process.join()
    return found


def main() -> None:
    """Measure and print the ratios."""
    asked = options(__doc__)
    model = backbone(asked)
    pool, examples = rows(asked, "agnews", COUNT)
    sides = {name: fitted(name, model) for name in ("zero_shot", "icr")}

    def run(name: str) -> None:
        if name == "icr":
            sentence_encoder("minilm").forget()
        score(model, sides[name], pool.task, examples, ScoringOptions(batch_size=BATCH))

    run("icr")  # loads what is loaded once
    times = side_by_side({name: lambda name=name: run(name) for name in sides}, max(3, asked.rounds))  # type: ignore[misc]
    peaks = {name: peak_memory(asked.model, name) for name in sides}
    report(
        f"routing, {asked.model}: {COUNT} rows at batch {BATCH}; one pass over {TOKENS} tokens",
        ["", "zero-shot", "icr", "ratio"],
        [
            ["seconds", times["zero_shot"], times["icr"], times["icr"] / times["zero_shot"]],
            [
                "peak MiB of the process",
                peaks["zero_shot"][1],
                peaks["icr"][1],
                peaks["icr"][1] / peaks["zero_shot"][1],
            ],
            [
                "MiB added by the pass",
                *(added := [peak - before for before, peak in peaks.values()]),
                added[1] / added[0],
            ],
        ],
    )


if __name__ == "__main__":
    main()
