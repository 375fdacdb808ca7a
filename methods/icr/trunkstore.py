"""Trunk states of the training prompts: computed once, on disk, in pieces that survive an interruption.

Everything below the first routed layer does not depend on the router. Each prompt's hidden states at that layer are
kept in half precision with one scale a token (so that the few very large entries some models carry do not overflow),
together with what else training needs: the answer's token and the unrouted model's entropy.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.trunk import captured_input
from icrbench.files import write_atomic
from icrbench.progress import bar
from icrbench.prompting import Prompt

from .objective import entropy

PIECE = 256  # prompts a file
BATCH_TOKENS = 2048
LARGEST = 2.0**14  # of a scaled entry: well inside half precision, leaving as many digits below it as can be


@dataclass(frozen=True)
class TrainingPrompt:
    """A zero-shot prompt and the token that answers it."""

    prompt: Prompt
    answer: int


@dataclass(frozen=True)
class TrunkBatch:
    """What a training step needs.

    Attributes:
        batch: masks, positions and texts.
        states: ``[B, T, d]`` entering the first routed layer.
        answers: ``[B]``.
        entropy: ``[B]`` of the unrouted model at the answer position.
    """

    batch: Batch
    states: Tensor
    answers: Tensor
    entropy: Tensor


class TrunkStore:
    """Trunk states of a list of prompts at one layer, for one model."""

    def __init__(self, backbone: Backbone, layer: int, prompts: Sequence[TrainingPrompt], workspace: Path) -> None:
        self._backbone = backbone
        self._layer = layer
        self._prompts = prompts
        digest = hashlib.sha256(json.dumps([backbone.identity(), layer], sort_keys=True).encode())
        for item in prompts:
            digest.update(repr((item.prompt.tokens, item.answer)).encode())
        self._folder = workspace / "trunks" / digest.hexdigest()[:16]
        self._order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i].prompt.tokens), i))
        self._place = {row: divmod(rank, PIECE) for rank, row in enumerate(self._order)}

    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(item.prompt.tokens) for item in self._prompts]

    def fill(self) -> None:
        """Compute the pieces that are not on disk yet."""
        with bar("trunk states", len(self._prompts)) as progress:
            for piece in range(-(-len(self._order) // PIECE)):
                rows = self._order[piece * PIECE : (piece + 1) * PIECE]
                if not self._path(piece).exists():
                    self._compute(piece, rows)
                progress.update(len(rows))

    def load(self, rows: Sequence[int]) -> TrunkBatch:
        """The training batch of some prompts, by number."""
        prompts = [self._prompts[row] for row in rows]
        batch = make_batch(
            [item.prompt.tokens for item in prompts],
            [item.prompt.text for item in prompts],
            device=self._backbone.device,
        )
        width = batch.input_ids.shape[1]
        states = torch.zeros(len(rows), width, self._backbone.dims.hidden)
        entropies = []
        for index, row in enumerate(rows):
            piece, place = self._place[row]
            with safe_open(self._path(piece), framework="pt") as file:
                own = file.get_tensor(f"{place}.states").float() * file.get_tensor(f"{place}.scale")
                states[index, : own.shape[0]] = own
                entropies.append(file.get_tensor(f"{place}.entropy"))
        device, dtype = self._backbone.device, self._backbone.dtype
        return TrunkBatch(
            batch=batch,
            states=states.to(device, dtype),
            answers=torch.tensor([item.answer for item in prompts], device=device),
            entropy=torch.stack(entropies).to(device),
        )

    def _path(self, piece: int) -> Path:
        return self._folder / f"{piece:05d}.safetensors"

    @torch.inference_mode()
    def _compute(self, piece: int, rows: Sequence[int]) -> None:
        tensors: dict[str, Tensor] = {}
        start = 0
        while start < len(rows):
            longest = len(self._prompts[rows[start]].prompt.tokens)
            chunk = rows[start : start + max(1, BATCH_TOKENS // longest)]
            sequences = [self._prompts[row].prompt.tokens for row in chunk]
            batch = make_batch(sequences, [""] * len(chunk), device=self._backbone.device)
            with captured_input(self._backbone, self._layer, stop=False) as captured:
                final = self._backbone.hidden_states(batch)
            uncertainty = entropy(self._backbone.logits(batch.at_last(final))).cpu()
            for index, sequence in enumerate(sequences):
                states = captured[0][index, : len(sequence)].float().cpu()
                scale = (states.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
                place = start + index
                tensors[f"{place}.states"] = (states / scale).half()
                tensors[f"{place}.scale"] = scale
                tensors[f"{place}.entropy"] = uncertainty[index].clone()
            start += len(chunk)
        write_atomic(self._path(piece), save(tensors))
