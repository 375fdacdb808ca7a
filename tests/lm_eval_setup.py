"""What the tests of the lm-eval integration share: the offline tasks, models to load, methods to apply."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from torch import Tensor

from icr_setup import ToyEncoder, some_directions
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.hooks import forward_hook
from icrbench.backbone.positions import Where, chosen_tokens
from icrbench.lm_eval import ICRBenchLM
from icrbench.method import Fitted
from icrbench.methods.icr.method import ICRFitted
from icrbench.methods.icr.router import Router
from icrbench.registry import make_method
from icrbench.store.artefact import Artefact
from tiny import LAYERS, tiny_backbone, tiny_model, tokenizer

TASKS = Path(str(resources.files("icrbench.lm_eval.example_tasks")))
NAMES = ["icrbench_everyday", "icrbench_last_word", "icrbench_prose", "icrbench_short_answers"]
CONTEXTS = ["Once, in a town by the sea, there lived", "Why?", "The list goes on: one, two,"]


@cache
def manager() -> TaskManager:
    """The offline tasks alone: reading all of lm-eval's takes many seconds."""
    return TaskManager(include_path=str(TASKS), include_defaults=False)


def saved(family: str, folder: Path) -> str:
    """A tiny model in a folder, for whoever loads by name."""
    tiny_model(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def evaluate(lm: Any, tasks: Sequence[Any] = NAMES, **more: Any) -> dict[str, Any]:
    """lm-eval's results."""
    results: dict[str, Any] = lm_eval.simple_evaluate(
        model=lm, tasks=list(tasks), task_manager=manager(), bootstrap_iters=0, **more
    )
    return results


def responses(results: dict[str, Any], task: str) -> list[Any]:
    """What the model answered, a document after the other."""
    return [reply for sample in results["samples"][task] for replies in sample["resps"] for reply in replies]


def artefact(fitted: Fitted, method: str = "zero_shot") -> Artefact:
    """A fit of whatever class, as if a method had made it."""
    return Artefact(make_method(method, {}), fitted, {})


def tiny_lm(family: str, fitted: Fitted, method: str = "zero_shot", **more: Any) -> ICRBenchLM:
    return ICRBenchLM(tiny_backbone(family), artefact(fitted, method), **more)


def random_icr(backbone: Backbone) -> ICRFitted:
    """Random directions and a random router; conditioned by `ToyEncoder`, which the test must put in place."""
    directions = some_directions(backbone)
    layers, rank = len(directions.layers), directions.queries.shape[2]
    sizes = {"width": ToyEncoder.width, "layers": layers, "rank": rank, "heads": backbone.dims.heads, "hidden": 8}
    with torch.random.fork_rng():
        torch.manual_seed(6)
        state = {f"router.{name}": 2 * tensor for name, tensor in Router(**sizes).state_dict().items()}
    config = {
        "layers": directions.layers,
        "position": "pre_rope",
        "routing_scale": "attention",
        "alpha_scale": 5.0,
        "encoder": "toy",
        "embedding": "pipeline",
        "router": sizes,
    }
    return ICRFitted(config, {"directions.queries": directions.queries, "directions.keys": directions.keys, **state})


class Nudge(Fitted):
    """Adds a vector to a block's output at some tokens: the smallest method of the residual stream."""

    layer = LAYERS // 2

    def __init__(self, where: Where) -> None:
        super().__init__({"where": where}, {})

    def vector(self, backbone: Backbone) -> Tensor:
        return 4 * torch.randn(backbone.dims.hidden, generator=torch.Generator().manual_seed(7))

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        vector = self.vector(backbone)
        with chosen_tokens(backbone, batch, self.config["where"]) as chosen:

            def hook(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
                return output + chosen()[..., None] * vector

            with forward_hook(backbone.blocks[self.layer], hook):
                yield


class Recorder(Fitted):
    """Changes nothing and keeps the batches it was applied to."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.batches: list[Batch] = []

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        self.batches.append(batch)
        yield


def from_scratch(backbone: Backbone, fitted: Fitted, text: str, context: list[int], more: list[int]) -> Tensor:
    """Next-token logits ``[V]`` after a context and what followed it: no cache, no padding, the whole in one pass.

    The place of `Nudge` is spelled out here, so that nothing is shared with the code under test.
    """
    tokens = [*context, *more]
    batch = make_batch([tokens], [text])
    with torch.no_grad():
        if not isinstance(fitted, Nudge):
            with fitted.applied(backbone, batch):
                return backbone.logits(backbone.hidden_states(batch)[0, -1])
        places = {
            "last": slice(len(context) - 1, len(context)),
            "all": slice(None),
            "predicting": slice(len(context) - 1, None),
        }

        def hook(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
            changed = output.clone()
            changed[:, places[fitted.config["where"]]] += fitted.vector(backbone)
            return changed

        with forward_hook(backbone.blocks[fitted.layer], hook):
            return backbone.logits(backbone.hidden_states(batch)[0, -1])


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, own, number) for number, own in enumerate(arguments)]
