"""Trunk states of the training prompts: computed once, on disk, in pieces that survive an interruption.

Everything below the first routed layer does not depend on the router. Each prompt's hidden states at that layer are
kept in half precision with one scale a token (so that the few very large entries some models carry do not overflow).
What else training needs of the unrouted model, its entropy at the answer, depends on no layer and lies in a file of
its own, too: another target layer then costs only the blocks below it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.batch import by_length
from icrbench.backbone.trunk import captured_input, trunk_states
from icrbench.toolkit.episodes import Question
from icrbench.toolkit.intermediate import Intermediate
from icrbench.util.progress import bar

from .objective import entropy

PIECE = 256  # prompts a file
BATCH_TOKENS = 2048
LARGEST = 2.0**14  # of a scaled entry: well inside half precision, leaving as many digits below it as can be


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


@dataclass(frozen=True)
class _Piece:
    """Prompts, by number and longest first; one file has their states at a layer, and what lies in the other, too."""

    rows: list[int]
    states: Intermediate
    entropy: Intermediate
    """Of use at other layers."""


class TrunkStore:
    """Trunk states of the training prompts of some domains at one layer, for one model.

    Prompts are numbered through, domain after domain. Each domain's pieces follow from its own prompts alone, so any
    set of domains shares them, and states are the same to the last bit in whatever company they were computed.
    """

    def __init__(self, backbone: Backbone, layer: int, domains: Sequence[Sequence[Question]], workspace: Path) -> None:
        self._backbone = backbone
        self._layer = layer
        self._prompts = [item for prompts in domains for item in prompts]
        self._pieces: list[_Piece] = []
        first = 0
        for prompts in domains:
            tokens = [item.prompt.tokens for item in prompts]
            digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]
            folder = workspace / "trunks" / digest
            order = sorted(range(len(tokens)), key=lambda row: (-len(tokens[row]), row))
            for number, start in enumerate(range(0, len(order), PIECE)):
                rows = [first + row for row in order[start : start + PIECE]]
                about = {"prompts": digest, "piece": [number, PIECE]}
                entropy = Intermediate(backbone, folder / f"{number:05d}.entropy", __name__, about)
                place = folder / f"{number:05d}.layer-{layer:02d}"
                states = Intermediate(backbone, place, __name__, {**about, "layer": layer})
                self._pieces.append(_Piece(rows, states, entropy))
            first += len(prompts)
        self._places = {row: (piece, place) for piece in self._pieces for place, row in enumerate(piece.rows)}

    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(item.prompt.tokens) for item in self._prompts]

    def fill(self) -> None:
        """Compute the pieces that are not on disk yet."""
        with bar("trunk states", len(self._prompts)) as progress:
            for piece in self._pieces:
                states = piece.states.make(lambda piece=piece: self._compute(piece))  # type: ignore[misc]
                piece.entropy.make(lambda states=states: {"entropy": _entropies(states)})  # type: ignore[misc]
                progress.update(len(piece.rows))

    def load(self, rows: Sequence[int]) -> TrunkBatch:
        """Return the training batch of some prompts, by number."""
        prompts = [self._prompts[row] for row in rows]
        batch = make_batch(
            [item.prompt.tokens for item in prompts],
            [item.prompt.text for item in prompts],
            device=self._backbone.device,
        )
        width = batch.input_ids.shape[1]
        states = torch.zeros(len(rows), width, self._backbone.dims.hidden)
        for index, row in enumerate(rows):
            piece, place = self._places[row]
            with safe_open(piece.states.file, framework="pt") as file:
                own = file.get_tensor(f"{place}.states").float() * file.get_tensor(f"{place}.scale")
            states[index, : own.shape[0]] = own
        device, dtype = self._backbone.device, self._backbone.dtype
        return TrunkBatch(
            batch=batch,
            states=states.to(device, dtype),
            answers=torch.tensor([item.answer for item in prompts], device=device),
            entropy=self._entropy[list(rows)].to(device),
        )

    @cached_property
    def _entropy(self) -> Tensor:
        """Of the unrouted model at the answer of every prompt, ``[N]``."""
        entropies = torch.zeros(len(self._prompts))
        for piece in self._pieces:
            entropies[piece.rows] = _entropies(piece.states.file)
        return entropies

    @torch.inference_mode()
    def _compute(self, piece: _Piece) -> dict[str, Tensor]:
        known = piece.entropy.is_there()
        tensors: dict[str, Tensor] = {}
        entropies: list[Tensor] = []
        own = [self._prompts[row].prompt.tokens for row in piece.rows]  # longest first
        for places in by_length([len(tokens) for tokens in own], BATCH_TOKENS):
            sequences = [own[place] for place in places]
            batch = make_batch(sequences, [""] * len(sequences), device=self._backbone.device)
            if known:
                entering = trunk_states(self._backbone, self._layer, batch)
            else:
                entering, uncertainty = self._whole_pass(batch)
                entropies.append(uncertainty.float().cpu())
            for index, (place, sequence) in enumerate(zip(places, sequences, strict=True)):
                states = entering[index, : len(sequence)].float().cpu()
                scale = (states.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
                tensors[f"{place}.states"] = (states / scale).half()
                tensors[f"{place}.scale"] = scale
        tensors["entropy"] = _entropies(piece.entropy.file) if known else torch.cat(entropies)
        return tensors

    def _whole_pass(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states entering the layer, and the unrouted model's entropy at the answers."""
        with captured_input(self._backbone, self._layer, stop=False) as captured:
            final = self._backbone.hidden_states(batch)
        return captured[0], entropy(self._backbone.logits(batch.at_last(final)))


def _entropies(file: Path) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        found: Tensor = opened.get_tensor("entropy")
    return found
