"""What every method keeps: one row a method in ``ROWS`` runs them all."""

import atexit
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import demo_test, pools
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.hooks import StopForward, forward_pre_hook
from icrbench.backbone.metering import metered
from icrbench.backbone.reuse import Reused
from icrbench.data.find_tasks import load_tasks
from icrbench.data.sources import Demo, load
from icrbench.data.task import Example
from icrbench.method import FitData, Fitted, Scope
from icrbench.methods.reft import orthonormal
from icrbench.randomness import Randomness
from icrbench.registry import make_method, methods
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError
from tiny import DEVICE, DTYPE, FAMILIES, tiny_backbone

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.5}[DTYPE]  # of logits, which are computed in another way
DOMAINS = ("agnews", "csqa", "piqa", "sst2", "trec")
SST2 = load_tasks()["sst2"]
DEFAULT = ScoringOptions()


def scaled(*names: str, replaced: Mapping[str, float] | None = None) -> Callable[[Fitted], Fitted]:
    """Strength 0: some tensors multiplied by zero, some filled with a number."""

    def neutral(fitted: Fitted) -> Fitted:
        tensors = {name: t * 0 if name in names else t for name, t in fitted.tensors.items()}
        assert set(names) <= set(tensors)
        for name, value in (replaced or {}).items():
            tensors[name] = torch.full_like(tensors[name], value)
        return type(fitted)(fitted.config, tensors)

    return neutral


def configured(**values: Any) -> Callable[[Fitted], Fitted]:
    """Strength 0: a number of the configuration."""

    def neutral(fitted: Fitted) -> Fitted:
        assert set(values) <= set(fitted.config)
        return type(fitted)({**fitted.config, **values}, dict(fitted.tensors))

    return neutral


def with_its_own_value(fitted: Fitted) -> Fitted:
    """LoReFT at strength 0: each direction takes the value that it has."""
    tensors = dict(fitted.tensors)
    own = {"weight": orthonormal(tensors["rotation"]).transpose(1, 2), "bias": torch.zeros_like(tensors["bias"])}
    return type(fitted)(fitted.config, {**tensors, **own})


@dataclass(frozen=True)
class Row:
    """How to try a method.

    Attributes:
        settings: hyperparameters that make a fit on a tiny model take little time.
        neutral: the fit at strength 0, which has to be zero-shot; None where the method has no strength (its own tests
            then hold its identities).
        exact: whether strength 0 is zero-shot bit for bit, else within a tenth of `CLOSE`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    neutral: Callable[[Fitted], Fitted] | None = None
    exact: bool = True


FEW = {"per_class": 1, "per_task": 1}
TRAINED = {"epochs": 2, "batch_size": 4}
DISTILLED = {**FEW, **TRAINED, "queries": 8, "queries_per_set": 4}

ROWS = {
    "atv": Row(
        {**TRAINED, "domains": "sst2", "train_per_domain": 6, "learning_rate": 0.05, "strength": 0.5},
        neutral=configured(strength=0.0),
    ),
    "cartridges": Row({**FEW, **TRAINED, "queries": 8, "tokens": 6, "learning_rate": 0.05}),
    "ct_kv": Row({**FEW, "epochs": 2, "learning_rate": 0.05}),
    "elicit": Row({"prompts": 3, "shots": 4, "k": 3, "held_out": 4, "layer": 3}, neutral=configured(vector_weight=0.0)),
    "function_vector": Row(
        {**FEW, "mean_prompts": 6, "effect_prompts": 3, "queries_per_set": 3, "filter_correct": False, "held_out": 4},
        neutral=scaled("vector"),
    ),
    "hidden_calibration": Row({"rows_per_class": 3}),
    "hificl": Row({**TRAINED, "queries": 8, "own": "whole", "learning_rate": 0.05}, neutral=scaled("values.right")),
    "i2cl": Row({**FEW, "epochs": 2}, neutral=scaled("vectors", replaced={"coefficients": 1.0})),
    # Scaling to a norm and back rounds.
    "icv": Row({**FEW, "held_out": 4, "strength": 0.3}, neutral=configured(strength=0.0), exact=False),
    "iterative_vector": Row(
        {**FEW, "episodes": 4, "batch": 2, "held_out": 4, "strength": 0.5}, neutral=configured(strength=0.0)
    ),
    "knn_prompting": Row({"rows_per_class": 3}),
    "label_anchor": Row(FEW),
    "learned_task_vector": Row({**FEW, **TRAINED, "held_out": 4, "every": 3}, neutral=scaled("vector")),
    "live": Row({**DISTILLED, "learning_rate": 0.05}, neutral=scaled("scales"), exact=False),
    "lora": Row(
        {**FEW, **TRAINED, "learning_rate": 0.01, "held_out": 4, "rank": 2},
        neutral=lambda fitted: scaled(*(name for name in fitted.tensors if name.endswith(".B")))(fitted),
    ),
    "ltv": Row({"shots": 4, "queries": 8}, neutral=scaled("matrix")),
    "m2iv": Row({**DISTILLED, "learning_rate": 0.05}, neutral=scaled("scales")),
    "mimic": Row({**DISTILLED, "learning_rate": 0.05}, neutral=scaled("shifts")),
    "reft": Row(
        {**FEW, **TRAINED, "learning_rate": 0.01, "rank": 2, "positions": "f7+l7"},
        neutral=with_its_own_value,
        exact=False,
    ),
    "soft_prompt": Row({**FEW, **TRAINED}),
    "ttt": Row(
        {**FEW, "sequences": 4, "batch_size": 2, "rank": 2, "learning_rate": 0.01, "shots_at_test": False},
        neutral=lambda fitted: scaled(*(name for name in fitted.tensors if name.endswith(".B")))(fitted),
    ),
    "zero_shot": Row(neutral=lambda fitted: fitted),
    "few_shot": Row({"per_class": 1, "per_task": 1}, neutral=configured(demonstrations=[])),
    "ia2": Row(
        {**FEW, **TRAINED, "learning_rate": 0.01, "rank": 2},
        neutral=lambda fitted: scaled(*(name for name in fitted.tensors if name.endswith(".B")))(fitted),
    ),
    "icr": Row(
        {
            "rank": 2,
            "prompts_per_domain": 6,
            "prompts_agnews": 6,
            "queries_per_set": 6,
            "per_class": 1,
            "train_per_domain": 6,
            "epochs": 1,
            "learning_rate": 0.05,
            "domains": "sst2",
            "target": "late",
        },
        neutral=configured(alpha_scale=0.0),
    ),
    "sadi": Row(
        {"pairs": 4, "heads": "3", "strengths": "4", "held_out": 4},
        neutral=configured(strength=1.0),
    ),
    "state_vector": Row({"shots": 4, "held_out": 4, "layer": 3}),
    "task_vector": Row({"per_class": 1, "per_task": 1, "held_out": 4}),
}

every_method = pytest.mark.parametrize("name", sorted(ROWS))
every_family = pytest.mark.parametrize("family", FAMILIES)


def test_every_method_has_a_row() -> None:
    built_in = {name for name, kind in methods().items() if kind.__module__.startswith("icrbench.methods.")}
    assert set(ROWS) == built_in


def backbone_of(family: str, dtype: torch.dtype = DTYPE) -> Backbone:
    """A tiny model on the device that is tested."""
    return tiny_backbone(family, dtype, DEVICE)


@cache
def workspace() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="icrbench-contract-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def data_of(name: str, target: str | None = "sst2") -> FitData:
    scope = make_method(name, ROWS[name].settings).scope
    if scope is Scope.NONE:
        return FitData({}, None, workspace())
    if scope is Scope.UNIVERSAL or target is None:
        return FitData(pools(*DOMAINS), None, workspace())
    return FitData(pools(target), target, workspace())


STEPS: dict[str, int] = {}
"""Steps of an optimiser in the latest fit, by method."""


@cache
def fitted_on(name: str, family: str, dtype: torch.dtype = DTYPE, seed: int = 0, target: str | None = "sst2") -> Fitted:
    method, backbone = make_method(name, ROWS[name].settings), backbone_of(family, dtype)
    with metered(backbone) as cost:
        fitted = method.fit(backbone, data_of(name, target), Randomness(seed))
    STEPS[name] = cost.steps
    return fitted


def logits_of(
    backbone: Backbone, fitted: Fitted, options: ScoringOptions = DEFAULT, reused: Reused | None = None
) -> Tensor:
    scored = score(backbone, fitted, SST2, demo_test("sst2")[:8], options, reused)
    return torch.tensor([row.option_logits for row in scored])


def some_prompts(backbone: Backbone, count: int = 3, padding: Any = "left") -> Batch:
    prompter = Prompter(backbone, SST2)
    prompts = [prompter(example) for example in demo_test("sst2")[:count]]
    tokens, texts = [item.tokens for item in prompts], [item.text for item in prompts]
    return make_batch(tokens, texts, device=DEVICE, padding=padding)


def fingerprint(backbone: Backbone) -> tuple[str, int, list[str]]:
    """Of everything that a method might leave changed: weights, hooks, modules."""
    digest = hashlib.sha256()
    for name, tensor in backbone.model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in backbone.model.modules())
    modules = [
        f"{name} {type(module).__name__} {sorted(vars(module))}" for name, module in backbone.model.named_modules()
    ]
    return digest.hexdigest(), hooks, modules


@every_method
def test_what_trains_by_gradient_says_so_and_its_budget_is_of_its_hyperparameters(name: str) -> None:
    fitted_on(name, "llama")
    method = make_method(name, ROWS[name].settings)
    assert method.trained == (STEPS[name] > 0)
    assert set(method.budget) <= set(method.hyperparameters())
    assert methods()[name]().below_published() == {}


CHOOSERS = sorted(
    name
    for name, kind in methods().items()
    if {"by_layer", "by_accuracy", "accuracies"} & set(vars(sys.modules[kind.__module__]))
)
"""Methods that choose layers, strengths or learning rates on held-out train rows."""
ASKED = ("layer", "strength", "heads", "learning_rate")


@pytest.mark.parametrize("name", CHOOSERS)
def test_a_method_that_chooses_can_do_so_by_calibrated_accuracy_and_says_so(name: str) -> None:
    settings = {key: value for key, value in ROWS[name].settings.items() if key not in ASKED}
    method = make_method(name, {**settings, "choose_by": "calibrated"})
    fitted = method.fit(backbone_of("llama"), data_of(name), Randomness(0))
    assert fitted.config["chosen_by"] == "calibrated"


@every_method
@every_family
def test_strength_zero_is_zero_shot(name: str, family: str) -> None:
    row, backbone = ROWS[name], backbone_of(family)
    if row.neutral is None:
        pytest.skip("has no strength")
    plain = logits_of(backbone, Fitted({}, {}))
    found = logits_of(backbone, row.neutral(fitted_on(name, family)))
    if row.exact:
        assert torch.equal(found, plain)
    else:
        torch.testing.assert_close(found, plain, atol=CLOSE / 10, rtol=0)


@every_method
def test_a_method_says_whether_it_shows_demonstrations(name: str) -> None:
    shown = fitted_on(name, "llama").prefix(SST2, demo_test("sst2")[0])
    assert make_method(name, ROWS[name].settings).explicit == bool(shown)


@every_method
@every_family
def test_a_fit_changes_the_logits(name: str, family: str) -> None:
    backbone = backbone_of(family)
    changed = not torch.allclose(
        logits_of(backbone, fitted_on(name, family)), logits_of(backbone, Fitted({}, {})), atol=1e-4
    )
    assert changed == (name != "zero_shot")


@contextmanager
def stopped(backbone: Backbone) -> Iterator[None]:
    """Within the context, forward passes fail before the last block."""

    def stop(_module: Any, _args: Any, _kwargs: Any) -> None:
        raise StopForward

    with forward_pre_hook(backbone.blocks[-1], stop):
        yield


@every_method
@every_family
def test_the_model_is_left_as_it_was(name: str, family: str) -> None:
    backbone = backbone_of(family)
    before, plain = fingerprint(backbone), logits_of(backbone, Fitted({}, {}))
    fitted = fitted_on.__wrapped__(name, family)  # fitting, too, must leave nothing behind
    assert fingerprint(backbone) == before
    batch = some_prompts(backbone)
    with torch.no_grad(), fitted.applied(backbone, batch):
        backbone.hidden_states(batch)
    assert fingerprint(backbone) == before
    with pytest.raises(StopForward), torch.no_grad(), fitted.applied(backbone, batch), stopped(backbone):
        backbone.hidden_states(batch)
    assert fingerprint(backbone) == before
    assert backbone.active is None
    assert torch.equal(logits_of(backbone, Fitted({}, {})), plain)


@every_method
@every_family
def test_what_is_stored_gives_the_same_logits(name: str, family: str, tmp_path: Path) -> None:
    backbone, fitted = backbone_of(family), fitted_on(name, family)
    method = make_method(name, ROWS[name].settings)
    Artefact(method, fitted, backbone.identity()).save(tmp_path / "fit")
    read = Artefact.load(tmp_path / "fit", backbone)
    assert read.method == method
    assert torch.equal(logits_of(backbone, read.fitted), logits_of(backbone, fitted))


@every_method
@every_family
def test_batches_and_padding_change_nothing(name: str, family: str) -> None:
    backbone, fitted = backbone_of(family), fitted_on(name, family)
    alone = logits_of(backbone, fitted, ScoringOptions(batch_size=1))
    for options in (ScoringOptions(batch_size=7), ScoringOptions(batch_size=7, padding="left")):
        torch.testing.assert_close(logits_of(backbone, fitted, options), alone, atol=CLOSE, rtol=0)
    reused = Reused()
    for _ in range(2):
        torch.testing.assert_close(logits_of(backbone, fitted, reused=reused), alone, atol=CLOSE, rtol=0)
    whole = logits_of(backbone, fitted, ScoringOptions(prefix_cache=False))
    torch.testing.assert_close(whole, alone, atol=CLOSE, rtol=0)


@every_method
@every_family
def test_decoding_with_a_cache_is_one_long_pass(name: str, family: str) -> None:
    backbone, fitted = backbone_of(family), fitted_on(name, family)
    batch = some_prompts(backbone)
    width = batch.input_ids.shape[1]
    more = torch.randint(0, 256, (3, 4), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    longer = replace(
        batch,
        input_ids=torch.cat([batch.input_ids, more], 1),
        attention_mask=torch.cat([batch.attention_mask, torch.ones_like(more)], 1),
        position_ids=torch.cat([batch.position_ids, batch.position_ids[:, -1:] + torch.arange(1, 5, device=DEVICE)], 1),
    )
    with torch.no_grad(), fitted.applied(backbone, batch):
        whole = backbone.hidden_states(longer)
    cached = DynamicCache(config=backbone.model.config)
    with torch.no_grad(), fitted.applied(backbone, batch):
        states = [backbone.hidden_states(batch, cached)]
        for end in range(width + 1, width + 5):
            columns = slice(end - 1, end)
            step = replace(
                longer,
                input_ids=longer.input_ids[:, columns],
                attention_mask=longer.attention_mask[:, :end],
                position_ids=longer.position_ids[:, columns],
            )
            states.append(backbone.hidden_states(step, cached))
    real = longer.attention_mask.bool()
    torch.testing.assert_close(torch.cat(states, 1)[real], whole[real], atol=10 * CLOSE, rtol=1e-3)


@every_method
def test_fits_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = fitted_on(name, "llama")
    torch.manual_seed(2)
    again = fitted_on.__wrapped__(name, "llama")
    assert again.config == first.config
    assert again.tensors.keys() == first.tensors.keys()
    assert all(torch.equal(again.tensors[key], first.tensors[key]) for key in first.tensors)
    other = fitted_on(name, "llama", seed=2)
    differs = other.config != first.config or any(
        not torch.equal(other.tensors[key], first.tensors[key]) for key in first.tensors
    )
    assert differs == make_method(name, ROWS[name].settings).seeded


@every_method
def test_tasks_out_of_domain_are_fitted_on_the_in_domain_ones(name: str) -> None:
    backbone = backbone_of("llama")
    if make_method(name, ROWS[name].settings).own_rows:
        with pytest.raises(UserError, match="labelled rows of the task itself"):
            fitted_on(name, "llama", target=None)
    else:
        assert logits_of(backbone, fitted_on(name, "llama", target=None)).isfinite().all()


@every_method
@every_family
def test_bfloat16_works(name: str, family: str) -> None:
    backbone = backbone_of(family, torch.bfloat16)
    fitted = fitted_on(name, family, torch.bfloat16)
    assert logits_of(backbone, fitted).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in fitted.tensors.values())


@every_method
@every_family
def test_parameters_by_formula_are_those_counted(name: str, family: str) -> None:
    fitted = fitted_on(name, family)
    assert fitted.parameters_by_formula(backbone_of(family).dims) == fitted.cached_parameters
    assert (fitted.formula == "0") == (name == "zero_shot")


@contextmanager
def texts_read(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> Any:
    seen: list[str] = []
    encode = Backbone.encode

    def noted(self: Backbone, text: str) -> list[int]:
        seen.append(text)
        return encode(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "encode", noted)
        yield seen


@every_method
@pytest.mark.parametrize("target", ["sst2", None])
def test_no_test_row_is_read(name: str, target: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if target is None and make_method(name, ROWS[name].settings).own_rows:
        pytest.skip("is not fitted without rows of the task")
    with texts_read(backbone_of("llama"), monkeypatch) as seen:
        fitted = fitted_on.__wrapped__(name, "llama", target=target)
    stored = repr(fitted.config)
    known = {row.content_hash for pool in data_of(name, target).pools.values() for row in pool.train}
    for domain in DOMAINS:
        task, test = load_tasks()[domain], load(load_tasks()[domain], Demo()).test
        for example in test:
            assert example.content_hash not in known
            assert not any(task.prompt(example) in text for text in seen)
            assert task.prompt(example) not in stored
    if make_method(name, ROWS[name].settings).scope is not Scope.NONE:
        assert seen  # the fit did read something


def relabelled(example: Example) -> Example:
    return replace(example, label=(example.label + 1) % len(example.options))


@every_method
def test_labels_of_test_rows_change_no_prediction(name: str) -> None:
    backbone, fitted = backbone_of("llama"), fitted_on(name, "llama")
    rows = demo_test("sst2")[:4]
    one, two = (score(backbone, fitted, SST2, given) for given in (rows, [relabelled(row) for row in rows]))
    assert [row.option_logits for row in one] == [row.option_logits for row in two]
