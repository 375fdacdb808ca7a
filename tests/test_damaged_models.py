"""Models that are damaged, hostile or not what their files say: one sentence each, and no code of theirs is run."""

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cli_setup import Commands, icrbench, model_folder
from icrbench.backbone.load import load_backbone
from icrbench.model_names import check_model
from icrbench.util.errors import LONGEST, UserError

__all__ = ["icrbench"]  # a fixture
ROOT = Path(__file__).parents[1]
Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a tiny model."""
    return Path(shutil.copytree(model_folder(), tmp_path / "mine"))


def config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        edit(tensors)
        save_file(tensors, path, {"format": "pt"})

    return change


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sharded(*files: str) -> Change:
    def change(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        shutil.move(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, files[0])}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.up_proj.weight"][3, 4] = float("nan")


def deep(levels: int) -> str:
    return '{"model_type": "llama", "x": ' + "[" * levels + "]" * levels + "}"


DAMAGES: dict[str, tuple[Change, str]] = {
    "null sizes": (config(num_hidden_layers=None), "num_hidden_layers"),
    "null heads": (config(num_attention_heads=None), "num_attention_heads"),
    "no heads": (config(num_attention_heads=0), ""),
    "no key heads": (config(num_key_value_heads=0), ""),
    "minus one layer": (config(num_hidden_layers=-1), ""),
    "text for a size": (config(hidden_size="48"), "hidden_size"),
    "a vocabulary of none": (config(vocab_size=0), ""),
    "unknown rotary scaling": (config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "spiral"),
    "unknown activation": (config(hidden_act="wavy"), "wavy"),
    "null": (text("config.json", "null"), ""),
    "a list": (text("config.json", "[]"), ""),
    "cut off": (text("config.json", '{"model_type": '), ""),
    "deep": (text("config.json", deep(100_000)), ""),
    "quantised for a package that is not here": (
        config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128}),
        "",
    ),
    "fewer layers than weights": (config(num_hidden_layers=2), "no place for the weights model.layers.2"),
    "more layers than weights": (config(num_hidden_layers=7), "lacks the weights model.layers.6"),
    "another width": (config(intermediate_size=32), ""),
    "an empty tokenizer": (text("tokenizer.json", ""), ""),
    "an empty object as tokenizer": (text("tokenizer.json", "{}"), ""),
    "null as tokenizer settings": (text("tokenizer_config.json", "null"), ""),
    "a tokenizer class that is not": (text("tokenizer_config.json", '{"tokenizer_class": 3}'), ""),
    "pickled weights": (pickled, "pytorch_model.bin is a pickle"),
    "an index that points outside": (sharded("../elsewhere.safetensors"), "outside the folder, '../elsewhere"),
    "an index that points to nothing": (sharded("model-1.safetensors"), ""),
    "an index that is not one": (text("model.safetensors.index.json", "[]"), ""),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ""),
    "weights cut off": (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08\0\0"), ""),
    "a header of terabytes": (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64), ""),
    "a weight that is no number": (weights(nan), "up_proj.weight holds numbers that are not finite in float32"),
    "a weight too many": (
        weights(lambda tensors: tensors.update(extra=torch.zeros(2))),
        "no place for the weights extra",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_one_sentence(folder: Path, damage: str) -> None:
    change, said = DAMAGES[damage]
    change(folder)
    with pytest.raises(UserError) as caught:
        load_backbone(str(folder), device="cpu")
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 2 * LONGEST


def test_numbers_too_large_for_the_number_type_are_said_to_be(folder: Path) -> None:
    weights(lambda tensors: tensors["model.norm.weight"].fill_(1e6))(folder)
    assert load_backbone(str(folder), device="cpu").dtype == torch.float32
    with pytest.raises(UserError, match=r"model\.norm\.weight holds numbers that are not finite in float16"):
        load_backbone(str(folder), device="cpu", dtype="float16")


CODE = """
from pathlib import Path
Path({witness!r}).write_text("the model's code ran")
from transformers import {base} as Base
class Mine(Base):
    model_type = "mine"
"""


@pytest.mark.parametrize("part", ["config", "tokenizer"])
def test_code_of_a_model_runs_only_if_it_is_trusted(
    folder: Path, icrbench: Commands, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # as `yes |` answers a library's question
    witness = folder.parent / "witness"
    base = "LlamaConfig" if part == "config" else "PreTrainedTokenizerFast"
    (folder / "mine.py").write_text(CODE.format(witness=str(witness), base=base))
    if part == "config":
        config(model_type="mine", auto_map={"AutoConfig": "mine.Mine"})(folder)
    else:
        path = folder / "tokenizer_config.json"
        stored = {**json.loads(path.read_text()), "tokenizer_class": "Mine"}
        path.write_text(json.dumps({**stored, "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}))
    icrbench.refused(icrbench.run(models=folder), "--trust-remote-code")
    assert not witness.exists()
    done = icrbench.run("--trust-remote-code", models=folder)
    assert witness.exists()
    if part == "tokenizer":  # the model itself is of a family we know
        assert done.code == 0
        assert [record["identity"]["model"]["remote_code"] for record in icrbench.records()] == [True]
    else:
        icrbench.refused(done, "model family 'mine' is not supported")


def test_a_trusted_model_without_code_is_the_same_cell(folder: Path, icrbench: Commands) -> None:
    assert icrbench.run("--trust-remote-code", models=folder).counts == (1, 0, 0)
    assert icrbench.run(models=folder).counts == (0, 1, 0)


def test_every_loader_says_whether_code_may_run() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for part in ("icrbench", "methods", "speed")
        for path in (ROOT / part).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith((".from_pretrained", "SentenceTransformer"))
        and not {"trust_remote_code", None} & {keyword.arg for keyword in call.keywords}
    ]
    assert silent == []


def test_a_folder_has_no_revisions(folder: Path) -> None:
    with pytest.raises(UserError, match="is on this machine, where models have no revisions: leave out '@main'"):
        check_model(f"{folder}@main")
    check_model(str(folder))
    check_model("someone/some-model@main")
