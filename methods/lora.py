"""LoRA: low-rank matrices added to the model's own, trained on the demonstrations' answers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.method import FitData, Fitted, at_least_one, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Lesson, TrainedOnDemonstrations
from icrbench.toolkit.episodes import Episodes, Question, Questions
from icrbench.toolkit.selection import accuracies, best
from icrbench.util.errors import UserError

Targets = Literal["qkvo", "o", "last_block", "head"]

RATES = (1e-4, 5e-4, 1e-3)
HEAD = "head"
ADAPTER = "default"  # what peft calls an adapter that is given no name


class LoRAFitted(Fitted):
    """Two factors for each adapted matrix ``W``, which acts as ``W + alpha / r * B A``.

    Attributes:
        config: ``rank``, ``alpha``, ``dropout`` (in training alone), ``targets``, ``blocks`` and ``inputs`` (adapted
            blocks, and adapted projections to queries, keys and values in each), ``vocabulary`` (rows of an adapted
            output head, else 0), ``loss`` (mean training loss by epoch), ``sweep`` (held-out accuracy by learning rate,
            empty if it was given).
        tensors: ``BLOCK-PROJECTION.A`` ``[r, d_in]`` and ``BLOCK-PROJECTION.B`` ``[d_out, r]``, or ``head.A`` and
            ``head.B``.
    """

    formula: ClassVar[str] = "rΣ(d_in + d_out)"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__(config, tensors)
        self._layers: tuple[Backbone, dict[str, nn.Module]] | None = None

    @property
    def first_layer(self) -> int | None:
        """The only block, where it is one; the last where only what comes after it is adapted."""
        return self.config["last"] if self.config["targets"] in ("last_block", HEAD) else None

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``r`` times the sum over adapted matrices of their inputs and outputs."""
        heads = dims.heads * dims.head_dim
        both = heads + 2 * dims.kv_heads * dims.head_dim
        sides = (heads + dims.hidden) + (self.config["inputs"] * dims.hidden + both if self.config["inputs"] else 0)
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
        if self.config["targets"] != HEAD:
            return backbone.logits(states, token_ids)
        layer: Any = self._adapted(backbone)[HEAD]
        down, up = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER].weight
        inner = down(layer.lora_dropout[ADAPTER](states.to(down.weight)))
        added = inner @ (up if token_ids is None else up[token_ids]).T
        return backbone.logits(states, token_ids, layer.scaling[ADAPTER] * added)

    def _adapted(self, backbone: Backbone) -> dict[str, nn.Module]:
        """The model's own layers, inside peft's. They stay as they are; dropout in training alone."""
        if self._layers is None or self._layers[0] is not backbone:
            names = sorted({name.rpartition(".")[0] for name in self.tensors})
            self._layers = backbone, _wrapped({name: _own(backbone, name) for name in names}, self.config)
        layers: dict[str, Any] = dict(self._layers[1])
        for name, layer in layers.items():
            for factor in "AB":
                tensor = self.tensors[f"{name}.{factor}"]
                linear = getattr(layer, f"lora_{factor}")[ADAPTER]
                # Not a parameter, so that training changes the tensors held here.
                linear._parameters.pop("weight", None)
                linear.weight = tensor.to(_own(backbone, name).weight.device)
            layer.lora_dropout.train(tensor.requires_grad)
        return layers


@register("lora")
@dataclass(frozen=True)
class LoRA(TrainedOnDemonstrations):
    """LoRA (Hu et al. 2021) through the peft library, as a baseline trained on as many rows as few-shot shows.

    ``B A`` of rank ``r``, times ``alpha / r``, is added to the projections to queries, keys, values and from the heads
    in every block; ``B`` starts at 0. The sizes are those of the LoRA baseline in the code of MimIC and HiFICL. The
    loss is the cross-entropy of the answer's first token. Projections that a family fuses (GPT-2, GPT-NeoX) are one
    matrix with one ``A``.

    The ICR paper compares with "LoRA on the token classification head of the last layer, rank 32", trained on as many
    examples as one prompt shows. That may mean the output head (``targets=head:rank=32``) or the last block
    (``targets=last_block:rank=32``), whose attention projections are adapted here; its learning rate, alpha and number
    of epochs are not stated. Neither is the default.

    Choices of this implementation: the learning rate is that of three (1e-4, 5e-4, 1e-3) that answers most held-out
    train rows, MimIC's being the middle one; all epochs are run.

    Attributes:
        targets: matrices: ``qkvo`` or ``o`` alone (the "mini" variant of that code) of every block, ``qkvo`` of the
            ``last_block``, or the output ``head``. An input embedding that shares the head's weights stays as it is.
        rank: ``r``.
        alpha: of the factor ``alpha / r``.
        dropout: share of the inputs of ``A`` dropped in training.
        learning_rate: of AdamW; 0 for the best on held-out rows.
        held_out: train rows held out to choose it by.
    """

    learning_rate: float = 0.0
    batch_size: int = 2
    epochs: int = 20
    targets: Targets = "qkvo"
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.05
    held_out: int = 32

    fitted: ClassVar[type[Fitted]] = LoRAFitted

    def __post_init__(self) -> None:
        """Refuse sizes that mean nothing.

        Raises:
            UserError: naming the hyperparameter.
        """
        super().__post_init__()
        at_least_one(self, "rank", "held_out")
        if self.learning_rate < 0:
            raise UserError(f"lora.learning_rate must be at least 0, not {self.learning_rate}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"lora.dropout must be at least 0 and below 1, not {self.dropout}.")

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LoRAFitted:
        """Train once for every learning rate to be tried, and take the best."""
        episodes = Episodes(
            data,
            rng,
            per_class=self.per_class,
            per_task=self.per_task,
            held_out=0 if self.learning_rate else self.held_out,
        )
        questions = Questions(backbone)
        lessons = [Lesson(question) for question in questions.zero_shot(episodes.demonstrations())]
        rates = (self.learning_rate,) if self.learning_rate else RATES
        initial = self._initial(backbone, rng)
        candidates = []
        for rate in rates:
            with _seeded(backbone, rng.number("dropout")):
                candidates.append(
                    self.train(
                        backbone, initial, dict.fromkeys(initial.tensors, rate), lessons, Attempt.cross_entropy, rng
                    )
                )
        return self._chosen(backbone, candidates, questions.zero_shot(episodes.held_out))

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """The rows, forward and backward, every epoch, for every learning rate tried."""
        tried = 1 if self.learning_rate else len(RATES)
        return tried * super().fit_tokens(tokens, classes)

    def _chosen(self, backbone: Backbone, candidates: list[LoRAFitted], questions: list[Question]) -> LoRAFitted:
        if len(candidates) == 1:
            return candidates[0]
        scores = accuracies(backbone, candidates, questions, last_token_only=False)
        chosen = candidates[best(scores)]
        chosen.config["sweep"] = scores
        return chosen

    def _initial(self, backbone: Backbone, rng: Randomness) -> LoRAFitted:
        """``A`` as peft draws it, uniform within ``1 / sqrt(d_in)``; ``B`` zero."""
        layers = range(backbone.dims.layers)
        blocks = {HEAD: [], "last_block": [layers[-1]]}.get(self.targets, list(layers))
        inputs = () if self.targets == "o" else backbone.anatomy.inputs
        projections = (*inputs, backbone.anatomy.output)
        names = [f"{layer}-{name}" for layer in blocks for name in projections] or [HEAD]
        tensors = {}
        for name in names:
            made, taken = _sides(_own(backbone, name))
            uniform = torch.rand(self.rank, taken, generator=rng.torch("factors", name))
            tensors[f"{name}.A"] = (2 * uniform - 1) / taken**0.5
            tensors[f"{name}.B"] = torch.zeros(made, self.rank)
        config: dict[str, Any] = {
            "rank": self.rank,
            "alpha": self.alpha,
            "dropout": self.dropout,
            "targets": self.targets,
            "blocks": len(blocks),
            "inputs": len(inputs),
            "last": layers[-1],
            "vocabulary": 0 if blocks else len(tensors[f"{HEAD}.B"]),
            "sweep": [],
        }
        return LoRAFitted(config, tensors)


def _own(backbone: Backbone, name: str) -> Any:
    """The model's own layer of a name: the output head, or ``BLOCK-PROJECTION``."""
    if name == HEAD:
        return backbone.model.get_output_embeddings()
    layer, _, projection = name.partition("-")
    return backbone.part(int(layer), projection)


def _put(backbone: Backbone, name: str, layer: nn.Module) -> None:
    if name == HEAD:
        backbone.model.set_output_embeddings(layer)
    else:
        block, _, projection = name.partition("-")
        setattr(backbone.attention(int(block)), projection, layer)


def _sides(layer: Any) -> tuple[int, int]:
    """Outputs and inputs of a layer."""
    made, taken = layer.weight.shape if isinstance(layer, nn.Linear) else reversed(layer.weight.shape)
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
    inject_adapter_in_model(how, container, ADAPTER, low_cpu_mem_usage=True)
    return dict(container.items())


@contextmanager
def _in_place_of(backbone: Backbone, name: str, layer: nn.Module) -> Iterator[None]:
    """Within the context, the model has another layer in the place of its own."""
    own = _own(backbone, name)
    _put(backbone, name, layer)
    try:
        yield
    finally:
        _put(backbone, name, own)


@contextmanager
def _seeded(backbone: Backbone, seed: int) -> Iterator[None]:
    """Within the context, what draws from torch's own generator (peft's dropout can do no other) is reproducible."""
    with torch.random.fork_rng(devices=[backbone.device] if backbone.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
