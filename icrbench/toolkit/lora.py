"""Low-rank matrices added to some of the model's own, through peft: what LoRA has in common with others."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions, submodule
from icrbench.method import Fitted
from icrbench.randomness import Randomness
from icrbench.util.errors import UserError

HEAD = "head"
FEED_FORWARD = "mlp-"
ADAPTER = "default"  # what peft calls an adapter that is given no name

Letters = str
"""Projections by letter: ``q``, ``k``, ``v`` and ``o`` of attention, ``m`` for all those of the feed-forward part."""


class LoRAFitted(Fitted):
    """Two factors for each adapted matrix ``W``, which acts as ``W + alpha / r * B A``.

    Attributes:
        config: ``rank``, ``alpha``, ``dropout`` (in training alone), ``projections`` (their letters, as `Letters`),
            ``fused`` (whether queries, keys and values come from one matrix), ``feed_forward`` (adapted matrices of
            that part in a block), ``gated`` (those of them that are two side by side, gate and input), ``blocks`` (how
            many are adapted) and ``first`` (the first, where those below it stay as they are; else None),
            ``vocabulary`` (rows of an adapted output head, else 0), ``loss`` (mean training loss by epoch), ``sweep``
            (held-out accuracy by learning rate, empty if it was given).
        tensors: ``BLOCK-PROJECTION.A`` ``[r, d_in]`` and ``BLOCK-PROJECTION.B`` ``[d_out, r]``, the feed-forward part's
            as ``BLOCK-mlp-PROJECTION``, or ``head.A`` and ``head.B``.
    """

    formula: ClassVar[str] = "rΣ(d_in + d_out)"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self._layers: tuple[Backbone, dict[str, nn.Module]] | None = None

    @property
    def first_layer(self) -> int | None:
        """The first adapted block where there are others below it; the last where only what comes after it is."""
        first: int | None = self.config["first"]
        return first

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``r`` times the sum over adapted matrices of their inputs and outputs."""
        heads, groups = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        letters = set(self.config["projections"])
        made = {"q": heads, "k": groups, "v": groups}
        if self.config["fused"] and letters & set(made):
            sides = dims.hidden + sum(made.values())
        else:
            sides = sum(dims.hidden + made[letter] for letter in letters & set(made))
        sides += (heads + dims.hidden) * ("o" in letters)
        sides += (dims.hidden + dims.inner) * self.config["feed_forward"] + dims.inner * self.config["gated"]
        head = dims.hidden + self.config["vocabulary"] if self.config["vocabulary"] else 0
        return int(self.config["rank"] * (self.config["blocks"] * sides + head))

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        """Put adapted layers in the place of the model's own."""
        with ExitStack() as stack:
            for name, layer in self._adapted(backbone).items():
                stack.enter_context(_in_place_of(backbone, name, layer))
            yield

    def logits(self, backbone: Backbone, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """With what an adapted output head adds."""
        if not self.config["vocabulary"]:
            return backbone.logits(states, token_ids)
        layer: Any = self._adapted(backbone)[HEAD]
        down, up = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER].weight
        inner = down(layer.lora_dropout[ADAPTER](states.to(down.weight)))
        added = inner @ (up if token_ids is None else up[token_ids]).T
        return backbone.logits(states, token_ids, layer.scaling[ADAPTER] * added)

    def _adapted(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the model's own layers inside peft's; they stay as they are, with dropout in training alone."""
        if self._layers is None or self._layers[0] is not backbone:
            names = sorted({name.rpartition(".")[0] for name in self.tensors})
            self._layers = backbone, _wrapped({name: adapted(backbone, name) for name in names}, self.config)
        layers: dict[str, Any] = dict(self._layers[1])
        for name, layer in layers.items():
            for factor in "AB":
                tensor = self.tensors[f"{name}.{factor}"]
                linear = getattr(layer, f"lora_{factor}")[ADAPTER]
                # Not a parameter, so that training changes the tensors held here.
                linear._parameters.pop("weight", None)
                linear.weight = tensor.to(adapted(backbone, name).weight.device)
            layer.lora_dropout.train(tensor.requires_grad)
        return layers


def initial_lora(
    backbone: Backbone,
    rng: Randomness,
    *,
    letters: str,
    blocks: Sequence[int],
    rank: int,
    alpha: float,
    dropout: float,
) -> LoRAFitted:
    """Factors before training: ``A`` as peft draws it, uniform within ``1 / sqrt(d_in)``; ``B`` zero.

    Args:
        backbone: the model.
        rng: the fit's randomness.
        letters: which projections (`Letters`); fused ones are one matrix.
        blocks: adapted blocks, ascending; none for the output head.
        rank: ``r``.
        alpha: of the factor ``alpha / r``.
        dropout: share of the inputs of ``A`` dropped in training.
    """
    projections = _projections(backbone, letters)
    tensors = {}
    for name in [f"{layer}-{name}" for layer in blocks for name in projections] or [HEAD]:
        made, taken = _sides(adapted(backbone, name))
        uniform = torch.rand(rank, taken, generator=rng.torch("factors", name))
        tensors[f"{name}.A"] = (2 * uniform - 1) / taken**0.5
        tensors[f"{name}.B"] = torch.zeros(made, rank)
    feed_forward = [name for name in projections if name.startswith(FEED_FORWARD)]
    first = min(blocks, default=backbone.dims.layers - 1)
    config: dict[str, Any] = {
        "rank": rank,
        "alpha": alpha,
        "dropout": dropout,
        "projections": letters,
        "fused": len(backbone.anatomy.inputs) == 1,
        "feed_forward": len(feed_forward),
        "gated": sum(_sides(adapted(backbone, f"0-{name}"))[0] == 2 * backbone.dims.inner for name in feed_forward),
        "blocks": len(blocks),
        "first": first or None,
        "vocabulary": 0 if blocks else len(tensors[f"{HEAD}.B"]),
        "sweep": [],
    }
    return LoRAFitted(config, tensors)


def _projections(backbone: Backbone, letters: str) -> list[str]:
    """Names of the matrices in a block, the attention's first.

    Raises:
        UserError: if the feed-forward part is to be adapted and has no matrices of its own.
    """
    if "m" in letters and not backbone.anatomy.feed_forward:
        raise UserError(
            f"the feed-forward part of {backbone.revision.name} is a mixture of experts, whose weights cannot be"
            " adapted: use a method that adapts attention alone."
        )
    inputs = backbone.anatomy.inputs
    if len(inputs) == 1:
        chosen = list(inputs) if set(letters) & set("qkv") else []
    else:
        chosen = [name for letter, name in zip("qkv", inputs, strict=True) if letter in letters]
    chosen += [backbone.anatomy.output] if "o" in letters else []
    return chosen + [FEED_FORWARD + name for name in backbone.anatomy.feed_forward if "m" in letters]


def adapted(backbone: Backbone, name: str) -> Any:
    """Return the model's own layer of a name: the output head, or ``BLOCK-PROJECTION``."""
    if name == HEAD:
        return backbone.model.get_output_embeddings()
    parent, projection = _place(backbone, name)
    return getattr(parent, projection)


def _put(backbone: Backbone, name: str, layer: nn.Module) -> None:
    if name == HEAD:
        backbone.model.set_output_embeddings(layer)
    else:
        parent, projection = _place(backbone, name)
        setattr(parent, projection, layer)


def _place(backbone: Backbone, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds a projection, and what it calls it."""
    block, _, projection = name.partition("-")
    if not projection.startswith(FEED_FORWARD):
        return backbone.attention(int(block)), projection
    return submodule(backbone.blocks[int(block)], backbone.anatomy.mlp), projection.removeprefix(FEED_FORWARD)


def _sides(layer: Any) -> tuple[int, int]:
    """Return outputs and inputs of a layer."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    taken, made = layer.weight.shape  # GPT-2's projections are stored transposed
    return int(made), int(taken)


def _wrapped(layers: dict[str, Any], config: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Layers inside peft's, whose factors have no values yet."""
    from peft import LoraConfig, inject_adapter_in_model  # seconds, which no other method should wait for

    # Injected into a container, which is thrown away, not into the model: what holds the layers there stays untouched.
    container = nn.ModuleDict(layers)
    how = LoraConfig(
        r=config["rank"],
        lora_alpha=config["alpha"],
        lora_dropout=config["dropout"],
        target_modules=list(layers),
        fan_in_fan_out=not isinstance(next(iter(layers.values())), nn.Linear),  # GPT-2's projections
        init_lora_weights=False,
    )
    with warnings.catch_warnings():
        # Quantised layers could not be merged with an adapter; none is.
        warnings.filterwarnings("ignore", r"\w+ was instantiated without `get_apply_tensor_subclass`")
        inject_adapter_in_model(how, container, ADAPTER, low_cpu_mem_usage=True)
    return dict(container.items())


@contextmanager
def _in_place_of(backbone: Backbone, name: str, layer: nn.Module) -> Iterator[None]:
    """Within the context, the model has another layer in the place of its own."""
    own = adapted(backbone, name)
    _put(backbone, name, layer)
    try:
        yield
    finally:
        _put(backbone, name, own)


@contextmanager
def seeded(backbone: Backbone, seed: int) -> Iterator[None]:
    """Within the context, what draws from torch's own generator (peft's dropout can do no other) is reproducible."""
    with torch.random.fork_rng(devices=[backbone.device] if backbone.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
