"""Models whose weights are quantised, with ``--quantize`` or as they come: what is theirs, and what methods do."""

import functools
import importlib.util
import json
import shutil
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.tasks import TaskManager
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import icrbench as package
from cli_setup import Commands, icrbench, model_folder
from icrbench.backbone import Backbone
from icrbench.backbone.load import load_backbone
from icrbench.backbone.quantised import GROUP, parts
from icrbench.backbone.sites import output_weight
from icrbench.methods.function_vector import contributions
from icrbench.runner.guard import Guard
from icrbench.store.records import quantisation_words
from icrbench.util.errors import UserError
from method_setup import fit, logits, zero_shot_questions
from test_contract import ROWS
from tiny import tokenizer

pytest.importorskip("torchao")
pytest.importorskip("bitsandbytes")

__all__ = ["icrbench"]  # a fixture
KINDS = ("int8", "int4", "torchao folder", "bitsandbytes folder")
SOME = {"few_shot", "function_vector", "i2cl", "icr", "live", "lora", "task_vector"}
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def plain_folder() -> Path:
    """A tiny model whose widths are whole numbers of groups."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )
    with torch.inference_mode(False):
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.normal_(std=0.2)
    return saved(model, "plain")


def saved(model: Any, name: str) -> Path:
    folder = model_folder().parent / f"quantised-{name}"
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@cache
def spec_of(kind: str) -> tuple[str, str | None]:
    """The folder and ``--quantize`` of a kind."""
    if kind == "torchao folder":
        return str(saved(load_backbone(str(plain_folder()), device="cpu", quantize="int8").model, "torchao")), None
    if kind == "bitsandbytes folder":
        how = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
        model = AutoModelForCausalLM.from_pretrained(
            plain_folder(),
            dtype=torch.float32,
            device_map={"": "cpu"},
            quantization_config=how,
            trust_remote_code=False,
        )
        return str(saved(model, "bitsandbytes")), None
    return str(plain_folder()), None if kind == "plain" else kind


@cache
def backbone(kind: str) -> Backbone:
    spec, quantize = spec_of(kind)
    with torch.inference_mode(False):
        return load_backbone(spec, device="cpu", quantize=quantize)


def plain_logits(own: Backbone) -> Tensor:
    return logits(own, None, zero_shot_questions(own))


def rounded(weight: Tensor, kind: str) -> Tensor:
    """What is left of weights ``[d_out, d_in]`` after symmetric rounding, from the formula."""
    groups = weight.unflatten(1, (-1, GROUP if kind == "int4" else weight.shape[1]))
    largest = groups.abs().amax(-1, keepdim=True)
    if kind == "int4":  # from -8 to 7
        scale = largest / 7.5
        return ((groups / scale).round().clamp(-8, 7) * scale).flatten(1)
    scale = largest / 127
    return ((groups / scale).round().clamp(-128, 127) * scale).flatten(1)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_weights_are_rounded_as_the_name_says(kind: str) -> None:
    """Every linear layer but the output head computes with rounded weights; all else is as it was."""
    plain, own = backbone("plain"), backbone(kind)
    wanted = deepcopy(plain.model)
    with torch.no_grad():
        for name, module in wanted.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                step = module.weight.unflatten(1, (-1, GROUP if kind == "int4" else module.in_features))
                step = step.abs().amax(-1) / (7 if kind == "int4" else 127)
                found = matrix_of(own, name)
                assert ((found - module.weight).unflatten(1, (step.shape[1], -1)).abs() <= 0.52 * step[..., None]).all()
                module.weight.copy_(found)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(own.model(ids).logits, wanted(ids).logits, rtol=0, atol=2e-4)
        assert not torch.allclose(own.model(ids).logits, plain.model(ids).logits, atol=1e-3)


def matrix_of(own: Backbone, name: str) -> Tensor:
    weight: Any = own.model.get_submodule(name).weight
    found: Tensor = weight.dequantize()
    return found


@kinds
def test_a_quantised_model_is_another_one(kind: str) -> None:
    plain, own = backbone("plain").identity(), backbone(kind).identity()
    package = "bitsandbytes" if kind == "bitsandbytes folder" else "torchao"
    assert "quantisation" not in plain
    assert own["quantisation"]["quant_method"] == package
    assert own["quantiser"].startswith(f"{package} 0.")
    assert own["weights"] != plain["weights"]
    json.dumps(own)
    assert quantisation_words(own) == f"{package} {'int4' if kind == 'int4' else 'int8'}"
    assert quantisation_words(plain) == ""


def test_a_folder_of_what_quantize_makes_is_the_same_weights() -> None:
    made, read = backbone("int8").identity(), backbone("torchao folder").identity()
    assert {key for key in made if made[key] != read[key]} == {"name", "location", "revision"}
    torch.testing.assert_close(plain_logits(backbone("int8")), plain_logits(backbone("torchao folder")), rtol=0, atol=0)


@kinds
def test_every_code_and_scale_is_in_the_fingerprint(kind: str, tmp_path: Path) -> None:
    spec, quantize = spec_of(kind)
    own = load_backbone(spec, device="cpu", quantize=quantize)
    before = own.content["weights"]
    found = dict(part for whole in own.model.named_parameters() for part in parts(*whole))
    codes = next(tensor for name, tensor in found.items() if "q_proj" in name and tensor.dtype == torch.int8)
    guard = Guard(own)
    assert guard.left(whole=True) == []
    with torch.no_grad():
        codes.view(-1)[5] += 1
    assert any("q_proj" in sentence for sentence in guard.left(whole=True))
    del own.content
    assert own.content["weights"] != before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("int8", name) for name in sorted(ROWS)),
        *((kind, name) for kind in KINDS[1:] for name in sorted(set(ROWS) & SOME) if kind != "torchao folder"),
    ],
)
def test_methods_on_quantised_models(kind: str, name: str, tmp_path: Path) -> None:
    """Every method fits and scores; a batch gives what each row gives alone, and strength 0 is zero-shot."""
    own, row = backbone(kind), ROWS[name]
    fitted = fit(name, own, workspace=tmp_path, **row.settings)
    questions = zero_shot_questions(own)
    together = logits(own, fitted, questions)
    assert together.isfinite().all()
    alone = torch.cat([logits(own, fitted, [question]) for question in questions])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-3)
    if row.neutral is not None:
        torch.testing.assert_close(logits(own, row.neutral(fitted), questions), plain_logits(own), rtol=0, atol=1e-3)


@kinds
def test_heads_add_up_to_what_attention_adds(kind: str) -> None:
    own = backbone(kind)
    weight = output_weight(own, 2)
    assert weight.shape == (64, 64)
    states = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted: Tensor = own.part(2, own.anatomy.output)(states)
    # bitsandbytes also rounds what goes in
    tolerance = 0.05 if kind == "bitsandbytes folder" else 1e-4
    torch.testing.assert_close(contributions(own, 2, states).sum(0), wanted.mean(0), rtol=0, atol=tolerance)


def test_an_output_head_that_is_quantised_too(tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    own = load_backbone(str(plain_folder()), device="cpu")
    states, tokens = torch.randn(2, 64), torch.tensor([3, 200, 17])
    quantize_(own.model.get_output_embeddings(), Int8WeightOnlyConfig(version=2))
    whole = own.logits(states)
    torch.testing.assert_close(own.logits(states, tokens), whole[:, tokens], rtol=0, atol=1e-5)


@kinds
def test_a_run_of_both(kind: str, icrbench: Commands) -> None:
    """Plain and quantised in one folder are cells of their own, and fits are not taken for each other's."""
    spec, quantize = spec_of(kind)
    flags = ["--quantize", quantize] if quantize else []
    methods = {"methods": "few_shot,task_vector", "set": "task_vector.held_out=4"}
    assert icrbench.run(models=plain_folder(), **methods).counts == (2, 0, 0)
    done = icrbench.run(*flags, models=spec, **methods)
    assert done.counts == (2, 0, 0), done
    assert icrbench.run(*flags, models=spec, **methods).counts == (0, 2, 0)
    assert len(list((icrbench.folder / "out" / "fitted").glob("task_vector-*"))) == 2
    named = [record["identity"]["model"].get("quantisation", {}).get("quant_method") for record in icrbench.records()]
    assert named.count(None) == 2
    assert len(named) == 4
    report = icrbench("report", icrbench.folder / "out")
    word = "bitsandbytes int8" if kind == "bitsandbytes folder" else f"torchao {quantize or 'int8'}"
    assert word in (icrbench.folder / "out" / "leaderboard.md").read_text() or word in report.out


def test_a_fit_belongs_to_its_quantisation(icrbench: Commands) -> None:
    icrbench.run("--quantize", "int8", models=plain_folder(), methods="task_vector", set="task_vector.held_out=4")
    (folder,) = (icrbench.folder / "out" / "fitted").glob("task_vector-*")
    with pytest.raises(UserError, match=r"was fitted on .* in torchao int8, not on .*: use the model it was"):
        package.load_fit(folder, str(plain_folder()))
    fitted = package.load_fit(folder, str(plain_folder()), quantize="int8")
    assert fitted.backbone.identity()["quantisation"]["quant_method"] == "torchao"
    refused = icrbench("explain", "good", "--model", plain_folder(), "--artifact", folder)
    icrbench.refused(refused, "in torchao int8")
    explained = icrbench("explain", "good", "--model", plain_folder(), "--artifact", folder, "--quantize", "int8")
    assert explained.code == 0, explained


def test_lm_eval_on_a_quantised_model(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager", functools.partial(TaskManager, include_defaults=False))
    asked = [
        "lm-eval",
        "--model",
        plain_folder(),
        "--method",
        "zero_shot",
        "--tasks",
        "icrbench_everyday",
        "--limit",
        4,
    ]
    found = {}
    for kind, flags in {"plain": [], "int8": ["--quantize", "int8"]}.items():
        done = icrbench(*asked, "--log_samples", "--output_path", icrbench.folder / kind, *flags)
        assert done.code == 0, done
        (path,) = (icrbench.folder / kind).rglob("samples_*.jsonl")
        found[kind] = [json.loads(line)["resps"] for line in path.read_text().splitlines()]
    assert len(found["plain"]) == 4
    assert found["plain"] != found["int8"]


def config_of(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_folder(), tmp_path / "mine"))


@pytest.mark.parametrize(
    ("method", "packages"),
    [("gptq", "gptqmodel optimum"), ("awq", "gptqmodel"), ("compressed-tensors", "compressed-tensors")],
)
def test_a_missing_package_costs_its_model_alone(method: str, packages: str, copied: Path, icrbench: Commands) -> None:
    config_of(copied, quantization_config={"quant_method": method, "bits": 4})
    icrbench.refused(icrbench.run(models=copied), f"`pip install {packages}`", f"comes quantised ({method})")
    done = icrbench.run(models=f"{copied},{plain_folder()}")
    assert done.code == 1
    assert f"`pip install {packages}` gets it. None of its cells was run." in done.out + done.err
    assert [record["cell"]["model"] for record in icrbench.records()] == [str(plain_folder())]


def test_workers_lose_the_cells_of_a_model_that_lacks_a_package_alone(copied: Path, icrbench: Commands) -> None:
    config_of(copied, quantization_config={"quant_method": "gptq", "bits": 4})
    done = icrbench.run("--launcher", "local", "--workers", "1", models=f"{copied},{plain_folder()}")
    assert done.code == 1
    assert "`pip install gptqmodel optimum` gets it" in done.out + done.err
    assert [record["cell"]["model"] for record in icrbench.records()] == [str(plain_folder())]


def test_quantize_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torchao" else found(name, *more)
    )
    with pytest.raises(UserError, match=r"^--quantize needs a package that is not installed: `pip install torchao`"):
        load_backbone(str(plain_folder()), quantize="int8")


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "no such": ({"quantize": "int9"}, "unknown quantisation 'int9': did you mean int"),
    "no groups": ({"quantize": "int4", "model": "llama"}, "groups of 32, into which the 48 inputs .*: use int8"),
    "not linear": ({"quantize": "int8", "model": "gpt2"}, "outside of linear layers, .*: leave it out"),
    "already": ({"quantize": "int8", "model": "torchao folder"}, r"comes quantised \(torchao\): leave out --quantize"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantised_is_one_sentence(case: str) -> None:
    arguments, sentence = REFUSED[case]
    model = arguments.get("model", "llama")
    folder = spec_of(model)[0] if model in KINDS else str(model_folder(model))
    with pytest.raises(UserError, match=sentence) as caught:
        load_backbone(folder, device="cpu", quantize=arguments["quantize"])
    assert "\n" not in str(caught.value)


def test_a_loaded_model_is_not_quantised(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="loaded already is not quantised here"):
        package.run(
            "zero_shot",
            deepcopy(backbone("plain").model),
            tokenizer=tokenizer(),
            demo=True,
            quantize="int8",
            out=tmp_path,
        )


def test_a_quantised_weight_that_is_not_finite(copied: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][3, 4] = float("inf")
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"up_proj\.weight.* not finite"):
        load_backbone(str(copied), device="cpu", quantize="int8")
