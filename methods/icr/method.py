"""ICR as a method: its hyperparameters, its three stages in order, and what they leave behind."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.attention import Position
from icrbench.method import FitData, Fitted, Method, Pool, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.toolkit.universal import chosen_domains, training_rows
from icrbench.util.bounds import Count, NotNegative, Positive
from icrbench.util.errors import UserError

from .bases import Bases, Extraction, Pooling, Sampling, icl_bases
from .directions import principal_directions, random_directions
from .layers import Target, target_layers
from .objective import Weights
from .router import HIDDEN, Router, Strength
from .routing import Directions, RoutingScale, routed
from .training import Training, train_router
from .trunkstore import TrunkStore


class ICRFitted(Fitted):
    """Directions and a trained router.

    Attributes:
        config: ``layers``, ``position``, ``routing_scale``, ``alpha_scale``, ``encoder``, router sizes, and the
            training ``history``.
        tensors: ``directions.queries`` ``[L', H*d_k, r]``, ``directions.keys`` ``[L', G*d_k, r]``, ``router.*``.
    """

    formula: ClassVar[str] = "(H+G)d_krL' + router"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``(H + G) d_k r L'`` of the directions, and the router's two networks (a uniform one is one number)."""
        sizes = self.config["router"]
        layers, rank, hidden = sizes["layers"], sizes["rank"], sizes["hidden"]
        both = {"alpha": rank, "gamma": dims.heads}
        networks = [
            1 if sizes[name] == "uniform" else (sizes["width"] + 1) * hidden + (hidden + 1) * layers * per_layer
            for name, per_layer in both.items()
        ]
        return int((dims.heads + dims.kv_heads) * dims.head_dim * rank * layers + sum(networks))

    @property
    def first_layer(self) -> int:
        """The first routed block."""
        return int(self.config["layers"][0])

    @cached_property
    def router(self) -> Router:
        """The trained router."""
        router = Router(**self.config["router"])
        router.load_state_dict(
            {name.removeprefix("router."): t for name, t in self.tensors.items() if name.startswith("router.")}
        )
        return router.eval().requires_grad_(False)

    @cached_property
    def directions(self) -> Directions:
        """The principal directions of the routed layers."""
        return Directions(
            list(self.config["layers"]),
            self.tensors["directions.queries"],
            self.tensors["directions.keys"],
            self.config["position"],
        )

    def strengths(self, texts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """Alpha ``[B, L', r]`` (scaled as at inference) and gamma ``[B, L', H]`` for zero-shot prompt texts."""
        alpha, gamma = self.router(sentence_encoder(self.config["encoder"])(texts))
        return alpha * self.config["alpha_scale"], gamma

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Route the batch: alpha and gamma are computed once and stay fixed while it decodes."""
        alpha, gamma = self.strengths(batch.texts)
        return routed(backbone, self.directions, alpha, gamma, self.config["routing_scale"])


@register("icr")
@dataclass(frozen=True)
class ICR(Method):
    """In-Context Routing, arXiv 2509.22854; defaults are the paper's (Sec. 3.1, App. B).

    Where the paper is silent: PCA is centred; vectors are taken before rotary embedding; keys keep their own space
    under grouped-query attention; the router's hidden width is 256; alpha starts at zero.

    Attributes:
        rank: directions per layer.
        basis: principal directions, a random orthonormal basis (Table 3), or ``learned``: that random basis trained
            with the router, without in-context prompts.
        center: subtract the mean before PCA.
        position: project vectors before or after rotary embedding.
        target: which third of the blocks is routed (Table 13).
        pooling: which tokens the bases are read at (Table 14).
        prompts_per_domain: in-context prompts per in-domain task.
        prompts_agnews: the same for agnews, where the paper uses twice as many.
        per_class: demonstrations per class in them (Table 12).
        sampling: how demonstrations are chosen (Table 12).
        queries_per_set: in-context prompts that share one draw of demonstrations; 1 is the paper's, more is cheaper.
        domains: ``all`` in-domain tasks, or some, joined by ``+`` (Table 5).
        train_per_domain: zero-shot training prompts per domain.
        encoder: sentence encoder: ``minilm``, ``mpnet``, a folder or a hub id (Table 15), or ``random``: a random
            vector a text.
        hidden: width of the router's hidden layers.
        alpha, gamma: ``uniform`` puts one learned number in place of that branch of the router (Table 4).
        routing_scale: ``paper`` adds the low-rank term as it is; ``attention`` multiplies it by the attention scale.
        learning_rate, weight_decay, batch_size, epochs, clip: AdamW training. Where the paper is silent, the weight
            decay is AdamW's usual one.
        length_groups: sort prompts by length within that many batches; 1 is plain shuffling.
        w_confidence, w_sparsity, w_gate: weights of the terms beside cross-entropy (Table 4).
        deepest: sparsity weight of the last layer, rising from 1.
        final_scale: factor on alpha at the end of training and at inference.
    """

    rank: Count = 8
    basis: Literal["pca", "random", "learned"] = "pca"
    center: bool = True
    position: Position = "pre_rope"
    target: Target = "late"
    pooling: Pooling = "last"
    prompts_per_domain: Count = 5000
    prompts_agnews: Count = 10000
    per_class: Count = 5
    sampling: Sampling = "balanced"
    queries_per_set: Count = 1
    domains: str = "all"
    train_per_domain: Count = 5000
    encoder: str = "minilm"
    hidden: Count = HIDDEN
    alpha: Strength = "routed"
    gamma: Strength = "routed"
    routing_scale: RoutingScale = "paper"
    learning_rate: Positive = 1e-4
    weight_decay: NotNegative = 0.01
    batch_size: Count = 4
    epochs: Count = 2
    clip: Positive = 1.0
    length_groups: Count = 1
    w_confidence: NotNegative = 0.01
    w_sparsity: NotNegative = 0.001
    w_gate: NotNegative = 0.02
    deepest: NotNegative = 3.0
    final_scale: NotNegative = 0.8

    scope: ClassVar[Scope] = Scope.UNIVERSAL
    trained: ClassVar[bool] = True
    budget: ClassVar[tuple[str, ...]] = (
        "prompts_per_domain",
        "prompts_agnews",
        "train_per_domain",
        "epochs",
        "batch_size",
    )
    fitted: ClassVar[type[Fitted]] = ICRFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ICRFitted:
        """Bases, directions, trunk states, training."""
        pools = chosen_domains(self, self.domains, data.pools)
        directions = self._directions(backbone, pools, rng, data.workspace)
        store = TrunkStore(backbone, directions.layers[0], self._training_prompts(backbone, pools, rng), data.workspace)
        store.fill()
        sizes: dict[str, Any] = {
            "width": sentence_encoder(self.encoder).width,
            "layers": len(directions.layers),
            "rank": self.rank,
            "heads": backbone.dims.heads,
            "hidden": self.hidden,
            "alpha": self.alpha,
            "gamma": self.gamma,
        }
        router = Router.initial(**sizes, generator=rng.torch("router"))
        history = train_router(
            backbone,
            router.to(backbone.device),
            directions,
            store,
            Training(
                self.epochs,
                self.batch_size,
                self.learning_rate,
                self.weight_decay,
                self.clip,
                self.final_scale,
                self.length_groups,
            ),
            Weights(self.w_confidence, self.w_sparsity, self.w_gate, self.deepest),
            self.routing_scale,
            self.encoder,
            rng.python("training-order"),
        )
        config = {
            "layers": directions.layers,
            "position": self.position,
            "routing_scale": self.routing_scale,
            "alpha_scale": self.final_scale,
            "encoder": self.encoder,
            "router": sizes,
            "history": history,
        }
        tensors = {"directions.queries": directions.queries, "directions.keys": directions.keys}
        tensors |= {f"router.{name}": tensor for name, tensor in router.state_dict().items()}
        return ICRFitted(config, {name: tensor.detach().cpu() for name, tensor in tensors.items()})

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """In-context prompts, trunk states, and epochs forward and backward from the first routed block on."""
        total = 0.0
        share = {"late": 1 / 3, "middle": 2 / 3}.get(self.target, 1.0)
        for name, length in tokens.items():
            prompts = self.prompts_agnews if name == "agnews" else self.prompts_per_domain
            shown = self.per_class * classes[name] * length / self.queries_per_set
            total += prompts * (length + shown) if self.basis == "pca" else 0.0
            total += self.train_per_domain * length * (1 + 2 * self.epochs * share)
        return total

    def _directions(self, backbone: Backbone, pools: list[Pool], rng: Randomness, workspace: Path) -> Directions:
        layers = target_layers(self.target, backbone.dims.layers)
        if not layers:
            raise UserError(f"a third of {backbone.dims.layers} blocks is none: use icr.target=all.")
        dims = backbone.dims
        widths = {"queries": dims.heads * dims.head_dim, "keys": dims.kv_heads * dims.head_dim}
        if self.rank > min(widths.values()):
            raise UserError(f"icr.rank={self.rank} is more than the {min(widths.values())} key dimensions: lower it.")
        if self.basis == "pca":
            bases = [self._bases(backbone, pool, rng, workspace) for pool in pools]
            found = {
                kind: [self._principal(torch.cat([base.vectors(kind, layer) for base in bases])) for layer in layers]
                for kind in ("queries", "keys")
            }
        else:
            generator = rng.torch("random-basis")
            found = {
                kind: [random_directions(width, self.rank, generator) for _ in layers] for kind, width in widths.items()
            }
        queries, keys = (
            torch.stack(found[kind]).to(backbone.device).requires_grad_(self.basis == "learned")
            for kind in ("queries", "keys")
        )
        return Directions(layers, queries, keys, self.position)

    def _principal(self, vectors: Tensor) -> Tensor:
        spanned = len(vectors) - self.center  # a cloud of n points spans n - 1 directions around its mean
        if self.rank > spanned:
            raise UserError(
                f"icr.rank={self.rank} is more than {len(vectors)} in-context prompts can span: raise"
                " icr.prompts_per_domain or lower the rank."
            )
        return principal_directions(vectors, self.rank, center=self.center)

    def _bases(self, backbone: Backbone, pool: Pool, rng: Randomness, workspace: Path) -> Bases:
        how = Extraction(
            prompts=self.prompts_agnews if pool.task.name == "agnews" else self.prompts_per_domain,
            per_class=self.per_class,
            sampling=self.sampling,
            queries_per_set=self.queries_per_set,
            pooling=self.pooling,
            position=self.position,
            # Otherwise the bases do not depend on it, and another encoder finds them on disk.
            encoder=self.encoder if self.sampling == "similar" else None,
        )
        return icl_bases(backbone, pool, how, rng, workspace)

    def _training_prompts(self, backbone: Backbone, pools: list[Pool], rng: Randomness) -> list[list[Question]]:
        """Zero-shot prompts of each domain; which rows of a domain does not depend on the others."""
        ask = Questions(backbone)
        domains = []
        for pool in pools:
            rows = training_rows(pool, self.train_per_domain, rng)
            domains.append(ask.zero_shot(Labelled(pool.task, row) for row in rows))
        return domains
