"""The places in a forward pass that methods read and change, by one name in every model family."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from icrbench.backbone.anatomy import submodule, tensor_of
from icrbench.backbone.core import Backbone
from icrbench.backbone.hooks import forward_hook, forward_pre_hook
from icrbench.backbone.quantised import matrix

Point = Literal["heads", "attention", "mlp", "block", "final"]
"""What a site holds for each token:

``heads``: the heads' outputs side by side, ``H * d_k`` wide, before the output projection.
``attention``, ``mlp``: what the branch adds to the residual stream, ``d`` wide. In families that norm a branch on its
way there (Gemma 3) it is read after that norm, since scaling or shifting it before would be undone by the norm.
``block``: the residual stream after the block, ``d`` wide; after the last block this is what enters the final norm.
``final``: what leaves the final norm for the output head, ``d`` wide; its layer is the last.
"""


class Site(NamedTuple):
    """A point of a block; blocks count from 0."""

    point: Point
    layer: int


Edit = Callable[[Tensor], Tensor]
"""From the vectors at a site, ``[B, T, n]``, to those that take their place."""


def output_weight(backbone: Backbone, layer: int) -> Tensor:
    """Return the output projection as ``[d, H*d_k]``; head ``h`` owns columns ``h*d_k`` to ``(h+1)*d_k``."""
    return matrix(backbone.part(layer, backbone.anatomy.output))


@contextmanager
def edited(backbone: Backbone, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Within the context every forward pass goes on with what ``edits`` return for the vectors at their sites."""
    with ExitStack() as stack:
        for site, edit in edits.items():
            stack.enter_context(_hooked(backbone, site, edit))
        yield


@contextmanager
def captured(backbone: Backbone, sites: Sequence[Site], start: int = 0) -> Iterator[dict[Site, Tensor]]:
    """Within the context, hold the vectors ``[B, T, n]`` of the latest forward pass at the given sites.

    Entered inside `edited`, it sees the vectors before the edits made outside it and after those made inside.

    Args:
        backbone: the model.
        sites: where to read.
        start: hold the vectors of the columns from this one on, and nothing of those before it.
    """
    found: dict[Site, Tensor] = {}

    def reader(site: Site) -> Edit:
        def read(states: Tensor) -> Tensor:
            found[site] = states[:, start:].clone() if start else states
            return states

        return read

    with edited(backbone, {site: reader(site) for site in sites}):
        yield found


def _hooked(backbone: Backbone, site: Site, edit: Edit) -> Any:
    if site.point == "heads":
        module = backbone.part(site.layer, backbone.anatomy.output)

        def before(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return (edit(args[0]), *args[1:]), kwargs

        return forward_pre_hook(module, before)

    def after(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        changed = edit(tensor_of(output))
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return forward_hook(_module_of(backbone, site), after)


def _module_of(backbone: Backbone, site: Site) -> nn.Module:
    block, anatomy = backbone.blocks[site.layer], backbone.anatomy
    if site.point == "final":
        return submodule(backbone.model.get_decoder(), anatomy.final_norm)
    if site.point == "block":
        return block
    branch, norm = {
        "attention": (anatomy.attention, anatomy.attention_norm),
        "mlp": (anatomy.mlp, anatomy.mlp_norm),
    }[site.point]
    return submodule(block, norm or branch)
