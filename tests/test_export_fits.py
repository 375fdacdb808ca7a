"""Fits in other tools' formats do there what they do here."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from cli_setup import Commands, icrbench, model_folder
from icr_setup import pools
from icrbench.api.control_vector import write_control_vector
from icrbench.api.fit import Fit
from icrbench.api.peft_adapter import write_adapter
from icrbench.backbone import make_batch
from icrbench.method import FitData, Fitted, Method
from icrbench.methods.cartridges import Cartridges
from icrbench.methods.ct_kv import CTKV
from icrbench.methods.function_vector import FunctionVector, FunctionVectorFitted
from icrbench.methods.ia2 import IA2
from icrbench.methods.icv import ICV, ICVFitted
from icrbench.methods.learned_task_vector import LearnedTaskVector, LearnedTaskVectorFitted
from icrbench.methods.lora import LoRA
from icrbench.methods.soft_prompt import SoftPrompt
from icrbench.methods.task_vector import TaskVector, TaskVectorFitted
from icrbench.randomness import Randomness
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError
from tiny import FAMILIES, tiny_backbone, tiny_model

__all__ = ["icrbench"]  # a fixture

pytestmark = [  # what peft 0.21 asks of transformers, and that a tied embedding stays as it is
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning"),
]

TEXTS = ["the film was good", "bad, a long and winding road to nowhere at all"]
LORA: dict[str, Any] = {"per_class": 1, "epochs": 4, "learning_rate": 0.1, "rank": 2}
QUICK: dict[str, Any] = {"per_class": 1, "epochs": 1, "learning_rate": 0.01}
SOME = ("gemma3", "gpt2", "llama")
ADAPTERS: dict[str, Method] = {
    "lora": LoRA(**LORA),
    "lora-last-block": LoRA(**LORA, targets="last_block"),
    "lora-head": LoRA(**LORA, targets="head"),
    "soft-prompt": SoftPrompt(**QUICK, tokens=3),
    "soft-prompt-layers": SoftPrompt(**QUICK, tokens=3, where="layers"),
    "ct_kv": CTKV(**QUICK),
    "cartridges": Cartridges(**QUICK, queries=4, tokens=12),
}


def made(family: str, method: Method, fitted: Fitted | None = None) -> Fit:
    backbone = tiny_backbone(family)
    data = FitData(pools("sst2"), "sst2", Path("unused"))
    fitted = method.fit(backbone, data, Randomness(0)) if fitted is None else fitted
    return Fit(backbone, Artefact(method, fitted, backbone.identity()))


def ours(found: Fit, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Logits of every real token of right-padded rows, row by row."""
    batch = make_batch(
        [found.backbone.encode(text) for text in TEXTS], TEXTS, device=found.backbone.device, padding="right"
    )
    assert torch.equal(batch.input_ids, inputs["input_ids"])
    with found.on(TEXTS, "right"), torch.no_grad():
        logits = found.fitted.logits(found.backbone, found.backbone.hidden_states(batch))
    return [own[mask.bool()] for own, mask in zip(logits, inputs["attention_mask"], strict=True)]


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in FAMILIES for name in ADAPTERS if family in SOME or name in ("lora", "ct_kv")],
)
def test_peft_loads_an_adapter_with_equal_logits(family: str, name: str, tmp_path: Path) -> None:
    found = made(family, ADAPTERS[name])
    hint = write_adapter(found, tmp_path / "adapter")
    plain = PeftModel.from_pretrained(tiny_model(family), tmp_path / "adapter").eval()
    inputs = found.inputs(TEXTS, "right")
    wanted = ours(found, inputs)
    without_bos = bool(hint)
    assert without_bos == (name in ("ct_kv", "cartridges") and found.backbone.adds_bos)
    slots = getattr(plain.peft_config["default"], "num_virtual_tokens", 0) if name == "soft-prompt" else 0
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        tokens = inputs["input_ids"][row : row + 1, int(without_bos) : length]
        with torch.no_grad():
            logits = plain(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, slots:]
        torch.testing.assert_close(logits, wanted[row][int(without_bos) :], atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        changed = tiny_model(family)(**inputs).logits[0, 3] - wanted[0][3]
    assert bool((changed.abs() > 1e-3).any())  # or any adapter would do


def test_what_peft_cannot_do_is_said(tmp_path: Path) -> None:
    spread = Cartridges(**QUICK, queries=4, tokens=12, init="spread")
    for method, words in ((ICV(strength=0.1), "peft has nothing that does what icv does"), (spread, "no gaps")):
        with pytest.raises(UserError, match=words):
            write_adapter(made("llama", method), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_ia2_is_an_adapter_too(tmp_path: Path) -> None:
    found = made("llama", IA2(per_class=1, per_task=1, most_steps=1))
    write_adapter(found, tmp_path / "adapter")
    plain = PeftModel.from_pretrained(tiny_model("llama"), tmp_path / "adapter").eval()
    inputs = found.inputs(TEXTS[:1])
    with torch.no_grad(), found.on(TEXTS[:1]):
        wanted = found.backbone.model(**inputs).logits
    torch.testing.assert_close(plain(**inputs).logits, wanted, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- control vectors


def directions(path: Path) -> dict[int, Tensor]:
    reader = gguf.GGUFReader(path)
    field = reader.get_field("general.architecture")
    assert field is not None
    assert field.contents() == "controlvector"
    return {int(own.name.removeprefix("direction.")): torch.from_numpy(own.data.copy()) for own in reader.tensors}


def test_a_control_vector_added_by_hand_gives_equal_logits(tmp_path: Path) -> None:
    vector = torch.randn(48, generator=torch.Generator().manual_seed(0))
    config = {"layer": 2, "where": "all", "blocks": [], "sweep": [], "loss": []}
    found = made("llama", LearnedTaskVector(where="all"), LearnedTaskVectorFitted(config, {"vector": vector}))
    assert write_control_vector(found, tmp_path / "vector.gguf") is None
    stored = directions(tmp_path / "vector.gguf")
    assert sorted(stored) == [1, 2, 3, 4, 5]
    plain = tiny_model("llama")
    for block, direction in stored.items():  # as llama.cpp adds them
        plain.model.layers[block].register_forward_hook(lambda _m, _a, out, add=direction: out + add)
    inputs = found.inputs(TEXTS, "right")
    logits = plain(**inputs).logits
    for own, mask, wanted in zip(logits, inputs["attention_mask"], ours(found, inputs), strict=True):
        torch.testing.assert_close(own[mask.bool()], wanted, atol=1e-4, rtol=1e-4)


def test_where_a_control_vector_is_not_the_method_it_is_said(tmp_path: Path) -> None:
    vector = {"vector": torch.ones(48)}
    config = {"layer": 2, "sweep": []}
    adds = made("llama", FunctionVector(), FunctionVectorFitted(config, vector))
    assert "at every token" in (write_control_vector(adds, tmp_path / "vector.gguf") or "")
    assert torch.equal(directions(tmp_path / "vector.gguf")[2], vector["vector"])
    first = made("llama", FunctionVector(), FunctionVectorFitted({**config, "layer": 0}, vector))
    replaces = made("llama", TaskVector(), TaskVectorFitted(config, vector))
    turns = made("llama", ICV(), ICVFitted({"strength": 0.1, "sweep": []}, {"vectors": torch.ones(6, 48)}))
    for found, words in ((first, "first block"), (replaces, "something else"), (turns, "something else")):
        with pytest.raises(UserError, match=words):
            write_control_vector(found, tmp_path / "other.gguf")
    assert not (tmp_path / "other.gguf").exists()


# ---------------------------------------------------------------- the command


def test_the_command_writes_what_peft_reads(icrbench: Commands) -> None:
    assert icrbench.run(methods="lora:epochs=1:per_class=1:rank=2:learning_rate=0.01").code == 0
    (folder,) = (icrbench.folder / "out" / "fitted").iterdir()
    adapter = icrbench.folder / "adapter"
    done = icrbench("export", folder, "--format", "peft", "--out", adapter)
    assert done.code == 0, done
    assert PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder()), adapter)
    icrbench.refused(icrbench("export", folder, "--format", "peft", "--out", adapter), "is there already")
    done = icrbench("export", folder, "--format", "gguf-control-vector", "--out", icrbench.folder / "v.gguf")
    icrbench.refused(done, "lora does something else")
    icrbench.refused(icrbench("export", icrbench.folder, "--format", "peft", "--out", adapter.with_name("b")), "fitted")
