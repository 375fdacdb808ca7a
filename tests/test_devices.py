"""Every method on devices that are not the CPU, one or two of them: the CPU's numbers, and nothing is mixed.

Each method is tried on one family here, and each family with several methods. ``ICRBENCH_EVERY_FAMILY=1`` tries all.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from torch import Tensor

from devices_setup import ONE, OTHER, device_map, fitted, on_both, on_one
from icr_setup import demo_test
from icrbench.backbone import Backbone
from icrbench.backbone.load import load_backbone, wrap
from icrbench.backbone.reuse import Reused
from icrbench.data.find_tasks import load_tasks
from icrbench.lm_eval import ICRBenchLM
from icrbench.method import Fitted
from icrbench.scoring.next_token import score
from icrbench.util.errors import UserError
from lm_eval_setup import artefact, instances, saved
from test_contract import ROWS
from test_generation import some_words
from tiny import FAMILIES, tiny_backbone, tiny_model, tokenizer

CLOSE = 1e-4
ANTONYMS = replace(load_tasks()["antonyms"], max_new_tokens=3)
TEXTS = ["Once, in a town by the sea, there lived", "Why?"]
ZERO = Fitted({}, {})
SST2, ROWS_SCORED = load_tasks()["sst2"], 4


def tried() -> list[tuple[str, str]]:
    """Methods and the families they are tried on."""
    names = sorted(ROWS)
    if os.environ.get("ICRBENCH_EVERY_FAMILY"):
        return [(name, family) for name in names for family in FAMILIES]
    return [(name, FAMILIES[number % len(FAMILIES)]) for number, name in enumerate(names)]


@cache
def fitted_on_the_cpu(name: str, family: str) -> Fitted:
    return fitted(name, tiny_backbone(family))


def logits(backbone: Backbone, method: Fitted, reused: Reused | None = None) -> Tensor:
    scored = score(backbone, method, SST2, demo_test("sst2")[:ROWS_SCORED], reused=reused)
    return torch.tensor([row.option_logits for row in scored])


@pytest.mark.parametrize(("name", "family"), tried())
def test_a_method_is_fitted_and_scored_on_a_model_spread_over_two_devices(name: str, family: str) -> None:
    want = logits(tiny_backbone(family), fitted_on_the_cpu(name, family))
    spread, reused = on_both(family), Reused()
    made = fitted(name, spread)
    assert {tensor.device.type for tensor in made.tensors.values()} <= {"cpu"}  # to be stored, and used anywhere
    for kept in (None, reused, reused):
        torch.testing.assert_close(logits(spread, made, kept), want, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(("name", "family"), tried())
def test_a_method_on_one_device_answers_in_every_way_as_on_the_cpu(name: str, family: str) -> None:
    method, cpu, device = fitted_on_the_cpu(name, family), tiny_backbone(family), on_one(family)
    torch.testing.assert_close(logits(device, method), logits(cpu, method), atol=CLOSE, rtol=0)
    texts, want = ([one.text for one in score(own, method, ANTONYMS, some_words(2))] for own in (device, cpu))
    assert texts == want
    found, want = (answered(ICRBenchLM(own, artefact(method))) for own in (device, cpu))
    assert found["generate_until"] == want["generate_until"]
    assert [greedy for _, greedy in found["loglikelihood"]] == [greedy for _, greedy in want["loglikelihood"]]
    assert [value for value, _ in found["loglikelihood"]] == close([value for value, _ in want["loglikelihood"]])
    assert found["loglikelihood_rolling"] == close(want["loglikelihood_rolling"])


def close(values: list[float]) -> Any:
    return pytest.approx(values, abs=CLOSE)


def answered(lm: ICRBenchLM) -> dict[str, list[Any]]:
    """What a model answers to each of lm-eval's kinds of requests."""
    until = {"until": ["\n"], "do_sample": False, "max_gen_toks": 3}
    more: dict[str, tuple[Any, ...]] = {
        "loglikelihood": (" and",),
        "loglikelihood_rolling": (),
        "generate_until": (until,),
    }
    return {
        kind: getattr(lm, kind)(instances(kind, *((text, *rest) for text in TEXTS)), disable_tqdm=True)
        for kind, rest in more.items()
    }


@pytest.mark.parametrize("away", ["cpu", "disk"])
def test_a_model_that_would_be_offloaded_is_refused_when_it_is_loaded(away: str, tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    places = device_map("llama", ONE, away)
    with pytest.raises(UserError, match=r"does not fit .*29 of its 57 weights \(model.layers.3.*more GPUs"):
        load_backbone(folder, device="cpu", device_map=places)  # type: ignore[arg-type]  # what "auto" comes to


@pytest.mark.parametrize("offloaded", [cpu_offload, disk_offload])
def test_a_given_model_that_is_offloaded_is_refused(offloaded: Callable[..., Any], tmp_path: Path) -> None:
    more = {"offload_dir": str(tmp_path)} if offloaded is disk_offload else {}
    model = offloaded(tiny_model("llama"), execution_device=ONE, **more)
    with pytest.raises(UserError, match="would be offloaded"):
        wrap(model, tokenizer())


def test_a_model_is_loaded_onto_two_devices(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    spread = load_backbone(folder, device="cpu", device_map=device_map("llama"))  # type: ignore[arg-type]
    assert {str(weight.device) for weight in spread.model.parameters()} == {ONE, OTHER}
    assert spread.content["weights"] == tiny_backbone("llama").content["weights"]
    torch.testing.assert_close(logits(spread, ZERO), logits(tiny_backbone("llama"), ZERO), atol=CLOSE, rtol=0)
