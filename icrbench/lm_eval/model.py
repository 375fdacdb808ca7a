"""A method on a backbone, as a model of lm-evaluation-harness."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm
from transformers import LogitsProcessor, LogitsProcessorList

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.finite import not_finite
from icrbench.backbone.load import load_backbone
from icrbench.backbone.memory import activation_bytes, cache_bytes, free_bytes
from icrbench.data.free_text import as_query
from icrbench.data.task import DEMONSTRATION_SEPARATOR
from icrbench.lm_eval.places import places_taken
from icrbench.lm_eval.requests import refuse_second_demonstrations
from icrbench.method import Fitted
from icrbench.runner.environment import environment
from icrbench.runner.identity import code_identity
from icrbench.scoring.continuations import Answer, Row, answers
from icrbench.store.artefact import Artefact
from icrbench.store.find_fit import FitName
from icrbench.util.errors import UserError, unknown

# Arguments of lm-eval's own model that keep their meaning here.
OPTIONS = (
    "add_bos_token",
    "chat_template_args",
    "enable_thinking",
    "max_length",
    "mixed_precision_dtype",
    "prefix_token_id",
    "think_end_token",
    "truncation",
)


class ICRBenchLM(HFLM):  # type: ignore[misc]  # lm-eval ships no types
    """Every forward pass of every request type goes through the method.

    With ``zero_shot`` all values are those of lm-eval's ``hf`` model. Per-query methods are conditioned on the
    request's context, never on the continuation that is scored; a request without a context (rolling log-likelihood,
    or an empty one) has the empty text as its context. Demonstrations of few-shot methods stand before the context.

    Attributes:
        backbone: the model.
        artefact: the method and its fit.
    """

    _prepared: ClassVar[Any] = None

    def __init__(
        self,
        pretrained: str | Backbone,
        method: str | Artefact | None = None,
        artifact: str | Path | None = None,
        *,
        out: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        quantize: str | None = None,
        trust_remote_code: bool = False,
        batch_size: int | str = 1,
        max_batch_size: int = 64,
        **options: Any,
    ) -> None:
        """Load what is given by name.

        Args:
            pretrained: a backbone, or what `load_backbone` takes.
            method: as ``--methods`` takes it, or a fitted one; not needed beside ``artifact``.
            artifact: folder of a fit: ``OUT/fitted/METHOD-KEY``. Methods without a fit need none.
            out: instead, a results folder that has one fit of the method for the model.
            device: as `load_backbone` takes it, like the next four; for a model given by name.
            dtype: number type of the weights.
            device_map: to spread a model over devices.
            quantize: ``int8`` or ``int4``.
            trust_remote_code: run code that comes with the model.
            batch_size: rows a forward pass, or ``auto``.
            max_batch_size: most rows that ``auto`` takes.
            options: of lm-eval's ``hf`` model: those in ``OPTIONS``.

        Raises:
            UserError: if model, method and artefact do not go together, or an option is not known.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("model argument", name, [*OPTIONS, "device", "dtype", "device_map", "quantize"])
        if not isinstance(pretrained, Backbone):
            if (device or "").startswith("cuda") and not torch.cuda.is_available():
                device = None  # lm-eval's command line asks for the first GPU, whether there is one or not
            pretrained = load_backbone(
                pretrained,
                device=device,
                dtype=dtype,
                device_map=device_map,
                quantize=quantize,
                trust_remote_code=trust_remote_code,
            )
        self.backbone = pretrained
        if isinstance(method, Artefact):
            self.artefact = method
        else:
            named = FitName(method, Path(artifact) if artifact else None, Path(out) if out else None)
            self.artefact = named.artefact(self.backbone)
        self._taken = places_taken(self.backbone, self.fitted)
        self._asked: dict[str, str] = {}  # whole context, demonstrations included -> the context lm-eval asked about
        self._generating: tuple[str, ...] = ()  # contexts of the batch to be generated next
        self._longest = 0  # tokens of the longest sequence to be generated, where the batch size is ours to choose
        super().__init__(
            self.backbone.model,
            backend="causal",
            tokenizer=self.backbone.tokenizer,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            **options,
        )
        self.revision = self.backbone.revision.revision

    @classmethod
    @contextmanager
    def prepared(cls, lm: Self) -> Iterator[None]:
        """Within the context, whatever lm-eval makes of our name is this model, so that nothing is loaded twice."""
        cls._prepared = lm
        try:
            yield
        finally:
            cls._prepared = None

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """How lm-eval makes a model from its command line."""
        if cls._prepared is None:
            made: Self = super().create_from_arg_obj(arg_dict, additional_config)
            return made
        prepared: Self = cls._prepared
        return prepared

    @property
    def fitted(self) -> Fitted:
        """The fitted method."""
        return self.artefact.fitted

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence: what lm-eval takes, but no more than virtual tokens leave places for."""
        asked: int = super().max_length
        return min(asked, self.backbone.max_length - self._taken) if self._taken else asked

    @property
    def name(self) -> str:
        """The method's name and the hash of all that can change a response."""
        return f"{self.artefact.method.name}-{self.identity_hash}"

    @property
    def identity_hash(self) -> str:
        """Hash of model, method, fit, code and settings, first 16 hex digits."""
        settings = {name: getattr(self, name) for name in ("max_length", "add_bos_token", "truncation")}
        content = {
            "artefact": self.artefact.sha256,
            "model": self.backbone.identity(),
            "code": code_identity(type(self.artefact.method)),
            "lm_eval": metadata.version("lm-eval"),
            "settings": {**settings, "prefix_token_id": self.prefix_token_id},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def shows_demonstrations(self) -> bool:
        """Whether the method puts demonstrations before a query."""
        return type(self.fitted).prefix is not Fitted.prefix

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval adds to ``config`` in results: model, method, hyperparameters, artefact, versions."""
        return {
            "model_num_parameters": self.backbone.model.num_parameters(),
            "model_dtype": self.backbone.identity()["dtype"],
            "model_revision": self.backbone.revision.revision,
            "model_sha": self.backbone.revision.revision,
            "icrbench": {
                "method": self.artefact.method.name,
                "hyperparameters": self.artefact.method.hyperparameters(),
                "artefact": self.artefact.sha256,
                "cached_parameters": self.fitted.cached_parameters,
                "identity": self.identity_hash,
                "model": self.backbone.identity(),
                "code": code_identity(type(self.artefact.method)),
                "environment": environment(),
            },
        }

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take lm-eval's response cache, unless it could mix up methods.

        lm-eval finds cached responses by the request alone, so a file must belong to one model and method.

        Raises:
            UserError: if the file's name does not hold the identity of this model and method.
        """
        path = getattr(cache_hook.dbdict, "filename", None)
        if path is not None and self.identity_hash not in Path(path).name:
            raise UserError(
                f"lm-eval's response cache {path} does not know the method: give use_cache a name that holds"
                f" '{self.identity_hash}' (of this model, method and fit), as `icrbench lm-eval` does by itself."
            )
        super().set_cache_hook(cache_hook)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """As the ``hf`` model; refused for methods with demonstrations, which have no place inside a turn."""
        if self.shows_demonstrations:
            raise UserError(
                f"{self.artefact.method.name} puts plain demonstrations before the query, which a chat template leaves"
                " no place for: run it without --apply_chat_template."
            )
        templated: str = super().apply_chat_template(chat_history, add_generation_prompt)
        return templated

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation after its context, and whether it is the greedy one."""
        found: list[tuple[float, bool]] = super().loglikelihood(self._with_demonstrations(requests), disable_tqdm)
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate what the model writes after each context, up to a stop string."""
        requests = self._with_demonstrations(requests)
        if self.batch_size == "auto":
            self._longest = max(
                len(self.tok_encode(context)) + int(options.get("max_gen_toks", self.max_gen_toks))
                for context, options in (request.args for request in requests)
            )
        texts: list[str] = super().generate_until(requests, disable_tqdm)
        return texts

    def _with_demonstrations(self, requests: list[Any]) -> list[Any]:
        """Put the method's demonstrations before the contexts of requests."""
        if not self.shows_demonstrations:
            return requests
        refuse_second_demonstrations(self.artefact.method.name)
        whole = []
        for request in requests:
            text, *rest = request.args
            # A demonstration that is the query itself would give its answer away.
            shown = [shot for shot in self.fitted.prefix(*as_query(text)) if not shot.startswith(text.rstrip())]
            context = DEMONSTRATION_SEPARATOR.join([*shown, text])
            self._asked[context] = text
            whole.append(replace(request, arguments=(context, *rest)))
        return whole

    def _query(self, context: str) -> str:
        """Return the part of a context that lm-eval asked about."""
        return self._asked.get(context, context)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Scores tokenised requests; those of rolling log-likelihood have no texts, and come a batch at a time."""
        asked: dict[Row, list[int]] = {}
        for number, (texts, context, continuation) in enumerate(requests):
            assert 0 < len(continuation) <= self.max_length, "lm-eval asks for a continuation that fits the model"
            row = Row.of("" if texts is None else self._query(texts[0]), context, continuation, self.max_length)
            asked.setdefault(row, []).append(number)
        found: dict[int, Answer] = {}
        wanted = {row: [tuple(requests[number][2]) for number in numbers] for row, numbers in asked.items()}

        def batches(rows: list[Row], shared: int) -> Iterator[list[Row]]:
            while rows:
                size = override_bs or self.batch_size
                if self.batch_size == "auto":
                    size = min(override_bs or self.max_batch_size, self._rows_that_fit(len(rows[0].tokens) - shared))
                yield rows[:size]
                rows = rows[size:]

        with (
            torch.no_grad(),
            self._autocast(),
            tqdm(
                total=len(requests),
                disable=disable_tqdm or override_bs is not None,
                desc="Running loglikelihood requests",
            ) as progress,
        ):
            for row, own in answers(self.backbone, self.fitted, wanted, batches):
                for number, answer in zip(asked[row], own, strict=True):
                    found[number] = answer
                    texts = requests[number][0]
                    if texts is not None:
                        key = (self._query(texts[0]), texts[1])
                        self.cache_hook.add_partial("loglikelihood", key, (answer.log_probability, answer.greedy))
                progress.update(len(own))
        return [(found[number].log_probability, found[number].greedy) for number in range(len(requests))]

    def tok_batch_encode(self, strings: Sequence[str], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As the ``hf`` model; called by `generate_until` alone, whose next step needs the texts too."""
        self._generating = tuple(map(self._query, strings))
        encoded: tuple[Tensor, Tensor] = super().tok_batch_encode(strings, *args, **kwargs)
        return encoded

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], *, attention_mask: Tensor, **options: Any
    ) -> Tensor:
        """Generate after left-padded contexts; the method stays applied while tokens are decoded."""
        batch = _generation_batch(context, attention_mask, self._generating, int(options.get("num_beams") or 1))
        options["logits_processor"] = LogitsProcessorList([_Finite(self.backbone)])
        with self.fitted.applied(self.backbone, batch):
            tokens: Tensor = super()._model_generate(
                context, max_length, stop, attention_mask=attention_mask, **options
            )
        return tokens

    def _model_call(self, *_: Any, **__: Any) -> Tensor:
        """Never used: the method needs to know where contexts end, which this call of lm-eval does not say."""
        raise NotImplementedError("ICRBenchLM scores requests in _loglikelihood_tokens")

    def _detect_batch_size(self, requests: Any = None, pos: int = 0) -> int:
        """Rows for batch size ``auto``, from the free memory: lm-eval tries batches of the model's full length."""
        size = min(self.max_batch_size, self._rows_that_fit(self._longest)) if self._longest else self.max_batch_size
        self.batch_sizes = {0: size}
        return int(size)

    def _rows_that_fit(self, length: int) -> int:
        """Rows of ``length`` tokens for which memory is free, at least one."""
        per_token = cache_bytes(self.backbone) + activation_bytes(self.backbone)
        return max(1, free_bytes(self.backbone.device) // 4 // (per_token * max(1, length)))

    def _autocast(self) -> torch.autocast:
        """Return what ``mixed_precision_dtype`` asks for."""
        dtype = self.mixed_precision_dtype
        return torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None)


class _Finite(LogitsProcessor):
    """Stops a generation whose scores are no numbers, of which an arg max would take the first, silently."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not (scores < torch.inf).all():  # minus infinity is how other processors forbid a token
            raise not_finite(self._backbone, "the scores of the next token")
        return scores


def _generation_batch(ids: Tensor, mask: Tensor, texts: tuple[str, ...], beams: int) -> Batch:
    """Make a batch of the contexts; with beams, every row as often as generation repeats it."""
    ids, mask = (tensor.repeat_interleave(beams, 0) for tensor in (ids, mask))
    return Batch(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        last=torch.full((ids.shape[0],), ids.shape[1] - 1, device=ids.device),
        texts=tuple(text for text in texts for _ in range(beams)),
    )
