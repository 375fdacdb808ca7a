"""What the tests of devices share: tiny models on the pretend devices, on one or spread over both, and fits there."""

from dataclasses import replace
from functools import cache
from typing import Any

from accelerate import dispatch_model

import pretend_device  # noqa: F401  # makes the devices known
from icrbench.backbone import Backbone, Revision
from icrbench.backbone.anatomy import anatomy_of, blocks_of
from icrbench.method import Fitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from test_contract import ROWS, data_of
from tiny import DEVICE, tiny_backbone, tiny_model, tokenizer

ONE, OTHER = "pretend:0", "pretend:1"
ALONE = OTHER if DEVICE == "cpu" else DEVICE

_SMALLER = {
    "dropout": 0.0,  # it draws from the device's own generator, as on a GPU
    "effect_prompts": 1,
    "epochs": 1,
    "mean_prompts": 3,
    "queries": 4,
}


def backbone_of(family: str, model: Any) -> Backbone:
    return Backbone(model, tokenizer(), Revision(f"tiny-{family}", f"tiny-{family}", "seed0"))


def device_map(family: str, first: Any = ONE, then: Any = OTHER, halves: int = 2) -> dict[str, Any]:
    """A model's parts by device: one of ``halves`` of the blocks on the first, the rest on the second.

    The norm is behind the last block; the head is there too, unless its weights are the embeddings'.
    """
    model = tiny_model(family)
    anatomy, decoder = anatomy_of(model.config), model.get_decoder()
    names = {module: name for name, module in model.named_modules()}
    blocks = blocks_of(model, anatomy)
    places: dict[str, Any] = {names[child]: first for child in decoder.children() if child in names}
    places |= {names[child]: then for child in model.children() if child is not decoder}
    if model.config.tie_word_embeddings:
        places[names[model.get_output_embeddings()]] = first
    del places[names[decoder] + "." + anatomy.blocks]
    places |= {names[block]: first if number < len(blocks) // halves else then for number, block in enumerate(blocks)}
    places[names[decoder] + "." + anatomy.final_norm] = then
    return places


@cache
def on_one(family: str) -> Backbone:
    """A tiny model on the second of the devices, or on the one that is tested."""
    return tiny_backbone(family, device=ALONE)


@cache
def on_both(family: str) -> Backbone:
    """A tiny model that accelerate spreads over both."""
    return backbone_of(family, dispatch_model(tiny_model(family), device_map(family), force_hooks=True))


def fitted(name: str, backbone: Backbone) -> Fitted:
    method = make_method(name, ROWS[name].settings)
    smaller = {key: value for key, value in _SMALLER.items() if key in method.hyperparameters()}
    return replace(method, **smaller).fit(backbone, data_of(name), Randomness(0))
