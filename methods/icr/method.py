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
from icrbench.toolkit.encoder import Embedding, sentence_encoder
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.toolkit.universal import chosen_domains, is_chosen, training_rows
from icrbench.util.bounds import Count, NotNegative, Positive
from icrbench.util.errors import UserError

from .bases import Bases, Extraction, Pooling, Sampling, icl_bases
from .directions import principal_directions, random_directions
from .layers import Target, target_layers
from .objective import Penalised, Weights, depth_weights
from .prior import Priors
from .router import HIDDEN, Router, Strength
from .routing import Directions, RoutingScale, routed
from .training import Training, train_router
from .trunkstore import TrunkStore


class ICRFitted(Fitted):
    """Directions and a trained router.

    Attributes:
        config: ``layers``, ``position``, ``routing_scale``, ``alpha_scale``, ``encoder``, ``embedding``, router
            sizes, and the
            training ``history``.
        tensors: ``directions.queries`` ``[L', H*d_k, r]``, ``directions.keys`` ``[L', G*d_k, r]``, ``router.*``.
    """

    formula: ClassVar[str] = "(H+G)d_krL' + router"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``(H + G) d_k r L'`` of the directions, and the router's two networks (a shared one is one number)."""
        sizes = self.config["router"]
        layers, rank, hidden = sizes["layers"], sizes["rank"], sizes["hidden"]
        both = {"alpha": rank, "gamma": dims.heads}
        networks = [
            1 if sizes[name] == "shared" else (sizes["width"] + 1) * hidden + (hidden + 1) * layers * per_layer
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
        alpha, gamma = self.router(sentence_encoder(self.config["encoder"], self.config["embedding"])(texts))
        return alpha * self.config["alpha_scale"], gamma

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Route the batch: alpha and gamma are computed once and stay fixed while it decodes."""
        alpha, gamma = self.strengths(batch.texts)
        return routed(backbone, self.directions, alpha, gamma, self.config["routing_scale"])


@register("icr")
@dataclass(frozen=True)
class ICR(Method):
    """In-Context Routing, arXiv 2509.22854; defaults are the paper's (docs/icr.md, docs/fidelity.md).

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
        domains: in-domain tasks whose in-context prompts give the directions: ``all``, or some, joined by ``+``.
        train_domains: those that the router is trained on, written alike; None for the same (Table 5).
        train_per_domain: zero-shot training prompts per domain.
        encoder: sentence encoder: ``minilm``, ``mpnet``, a folder or a hub id (Table 15), or ``random``: a random
            vector a text.
        embedding: E(x) as the encoder's ``pipeline`` gives it (MiniLM and MPNet: of unit length), or the
            mean-``pooled`` vector before it is normalised.
        hidden: width of the router's hidden layers.
        alpha, gamma: ``uniform`` gives every direction (head) of a layer their mean size for the query (Table 4);
            ``shared`` puts one learned number in place of that branch of the router.
        uniform_at: whether a uniform branch is so at ``inference`` only, after training as a routed one, or in
            ``training``, too.
        routing_scale: ``paper`` adds the low-rank term as it is; ``attention`` multiplies it by the attention scale.
        learning_rate, weight_decay, batch_size, epochs, clip: AdamW training. Where the paper is silent, the weight
            decay is AdamW's usual one.
        length_groups: sort prompts by length within that many batches; 1 is plain shuffling.
        w_confidence, w_sparsity, w_gate: weights of the terms beside cross-entropy (Table 4).
        deepest: sparsity weight of the last layer, rising from 1.
        penalised: whether the sparsity and gate terms average over all layers of the ``model``, as eq. 13 is written,
            or over the ``routed`` ones.
        calibrated: train on answers off which the unrouted model's preference among the options is taken; for
            reading beside calibrated results. Raw answers of such a router are not what it was trained for.
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
    train_domains: str | None = None
    train_per_domain: Count = 5000
    encoder: str = "minilm"
    embedding: Embedding = "pipeline"
    hidden: Count = HIDDEN
    alpha: Strength = "routed"
    gamma: Strength = "routed"
    uniform_at: Literal["inference", "training"] = "inference"
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
    penalised: Penalised = "model"
    calibrated: bool = False
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
        extracted = chosen_domains(self, "domains", data.pools)
        trained = extracted if self.train_domains is None else chosen_domains(self, "train_domains", data.pools)
        directions = self._directions(backbone, extracted, rng, data.workspace)
        prompts = self._training_prompts(backbone, trained, rng)
        store = TrunkStore(backbone, directions.layers[0], prompts, data.workspace)
        store.fill()
        encoder = sentence_encoder(self.encoder, self.embedding)
        sizes: dict[str, Any] = {
            "width": encoder.width,
            "layers": len(directions.layers),
            "rank": self.rank,
            "heads": backbone.dims.heads,
            "hidden": self.hidden,
        }
        router = Router.initial(**sizes, **self._branches("training"), generator=rng.torch("router"))
        history = train_router(
            backbone,
            router.to(backbone.device),
            directions,
            store,
            self._training(),
            self._weights(directions.layers, backbone.dims.layers),
            encoder,
            rng.python("training-order"),
            Priors(backbone, directions.layers[0], store, prompts) if self.calibrated else None,
        )
        config = {
            "layers": directions.layers,
            "position": self.position,
            "routing_scale": self.routing_scale,
            "alpha_scale": self.final_scale,
            "encoder": self.encoder,
            "embedding": self.embedding,
            "router": sizes | self._branches("inference"),
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
            if self.basis == "pca" and is_chosen(name, self.domains):
                prompts = self.prompts_agnews if name == "agnews" else self.prompts_per_domain
                total += prompts * length * (1 + self.per_class * classes[name] / self.queries_per_set)
            if is_chosen(name, self.train_domains or self.domains):
                total += self.train_per_domain * length * (1 + 2 * self.epochs * share)
        return total

    def _branches(self, when: Literal["training", "inference"]) -> dict[str, Any]:
        """Return the kind of each branch of the router; a branch uniform at inference only is trained as routed."""
        routed_yet = when == "training" and self.uniform_at == "inference"
        kinds = {"alpha": self.alpha, "gamma": self.gamma}
        return {name: "routed" if routed_yet and kind == "uniform" else kind for name, kind in kinds.items()}

    def _training(self) -> Training:
        return Training(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.weight_decay,
            self.clip,
            self.final_scale,
            self.length_groups,
            self.routing_scale,
        )

    def _weights(self, routed_layers: list[int], layers: int) -> Weights:
        return Weights(
            self.w_confidence,
            self.w_sparsity,
            self.w_gate,
            depth_weights(routed_layers, layers, self.deepest, self.penalised),
            len(routed_layers) / layers if self.penalised == "model" else 1.0,
        )

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
