import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from icrbench.backbone import Backbone, Batch, Revision, make_batch
from icrbench.backbone.attention import extra_channels
from icrbench.backbone.metering import Cost
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.registry import make_method, methods
from icrbench.store.artefact import Artefact, DamagedArtefact
from icrbench.util.cache import sealed
from icrbench.util.errors import UserError
from reference import low_rank
from tiny import tiny_backbone, tiny_model, tokenizer


class Steered(Fitted):
    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        term = low_rank("llama", [3, 5], len(batch.texts))
        return extra_channels(backbone, term.layers, term.channels)


@dataclass(frozen=True)
class Example(Method):
    rank: int = 8
    rate: float = 1e-4
    center: bool = True
    place: Literal["late", "all"] = "late"
    layer: int | None = None
    encoder: str = "minilm"

    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = Steered

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> Fitted:
        return Steered({}, {})


@pytest.fixture(autouse=True)
def _example(own_registry: None) -> None:
    register("example")(Example)


def test_methods_are_found_by_their_files() -> None:
    found = methods()
    assert list(found) == sorted(found)
    assert {"zero_shot", "few_shot", "icr"} <= set(found)
    for name, kind in found.items():
        assert kind.name == name
        assert isinstance(kind.scope, Scope)
        assert issubclass(kind.fitted, Fitted)
        made = make_method(name, {})
        assert json.loads(json.dumps(made.hyperparameters())) == made.hyperparameters()
        assert make_method(name, made.hyperparameters()) == made  # as an artefact is read back
        assert hash(made) == hash(make_method(name, {}))


def test_a_name_is_given_once() -> None:
    class Other(Example):
        pass

    Other.__module__ = "icrbench.methods.other"
    with pytest.raises(UserError, match=r"two methods are named 'example' \(.*test_method, icrbench\.methods\.other\)"):
        register("example")(Other)
    register("example")(Example)  # a module that is imported again


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("rank", "12", 12),
        ("rank", 12.0, 12),
        ("rank", "1e3", 1000),
        ("rate", "3e-4", 3e-4),
        ("rate", 1, 1.0),
        ("center", "False", False),
        ("center", "true", True),
        ("center", False, False),
        ("place", "all", "all"),
        ("layer", "none", None),
        ("layer", None, None),
        ("layer", "3", 3),
        ("encoder", "none", "none"),
    ],
)
def test_values_become_what_the_field_declares(key: str, value: object, wanted: object) -> None:
    found = getattr(make_method("example", {key: value}), key)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"rank": "eight"}, r"example\.rank must be a whole number, not 'eight'"),
        ({"rank": "2.5"}, r"example\.rank must be a whole number, not '2\.5'"),
        ({"rank": "inf"}, r"example\.rank must be a whole number"),
        ({"rank": None}, r"example\.rank must be a whole number"),
        ({"rank": ""}, r"example\.rank must be a whole number"),
        ({"rank": [1]}, r"example\.rank must be a whole number"),
        ({"rate": "fast"}, r"example\.rate must be a number"),
        ({"rate": "nan"}, r"example\.rate must be a number"),
        ({"center": "yes"}, r"example\.center must be true or false"),
        ({"center": 1}, r"example\.center must be true or false"),
        ({"layer": "first"}, r"example\.layer must be a whole number"),
        ({"place": "lat"}, r"unknown value of example\.place 'lat': did you mean late"),
        ({"place": 3}, r"unknown value of example\.place '3': known: all, late"),
        ({"ranc": 3}, r"unknown hyperparameter of example 'ranc': did you mean rank"),
        ({"name": "x"}, r"unknown hyperparameter of example 'name'"),
        ({"scope": "task"}, r"unknown hyperparameter of example 'scope'"),
    ],
)
def test_wrong_values_are_one_sentence(overrides: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make_method("example", overrides)


def test_an_unknown_method_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown method 'zeroshot': did you mean zero_shot"):
        make_method("zeroshot", {})


# Applying


@pytest.fixture
def batch() -> Batch:
    return make_batch([list(range(30)), list(range(50, 70))], ["a", "b"])


def states(backbone: Backbone, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return backbone.hidden_states(batch)


def test_leaving_a_method_restores_the_model(batch: Batch) -> None:
    backbone = tiny_backbone("llama")
    before = states(backbone, batch)
    with Steered({}, {}).applied(backbone, batch):
        assert backbone.active == "Steered"
        assert not torch.equal(states(backbone, batch), before)
    assert backbone.active is None
    assert torch.equal(states(backbone, batch), before)


def test_an_exception_inside_restores_the_model(batch: Batch) -> None:
    backbone = tiny_backbone("llama")
    before = states(backbone, batch)

    def fail() -> None:
        with Steered({}, {}).applied(backbone, batch):
            states(backbone, batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert backbone.active is None
    assert torch.equal(states(backbone, batch), before)


def test_an_exception_on_the_way_in_restores_the_model(batch: Batch) -> None:
    class Fails(Fitted):
        @contextmanager
        def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
            raise ZeroDivisionError
            yield

    backbone = tiny_backbone("llama")
    with pytest.raises(ZeroDivisionError), Fails({}, {}).applied(backbone, batch):
        pass
    assert backbone.active is None


def test_methods_are_not_nested(batch: Batch) -> None:
    backbone = tiny_backbone("llama")
    with Steered({}, {}).applied(backbone, batch):
        inside = states(backbone, batch)
        with pytest.raises(RuntimeError, match="Steered is already applied"), Fitted({}, {}).applied(backbone, batch):
            pass
        assert backbone.active == "Steered"
        assert torch.equal(states(backbone, batch), inside)
    assert backbone.active is None


def test_what_a_plain_fit_promises() -> None:
    fitted = Fitted({}, {"a": torch.zeros(2, 3), "b": torch.zeros(4)})
    assert fitted.cached_parameters == 10
    assert fitted.first_layer is None
    assert not fitted.shares_prefix


# Storing


def an_artefact(backbone: Backbone, **hyperparameters: Any) -> Artefact:
    both = torch.arange(12.0).reshape(3, 4)
    tensors = {"turned": both.T, "row": both[1], "alias": both[1], "half": torch.ones(2).bfloat16()}
    fitted = Steered({"layers": [1, 2], "text": "ünïcode ☃"}, tensors)
    return Artefact(make_method("example", hyperparameters), fitted, backbone.identity(), Cost(1.5, 7, 90, None))


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    backbone = tiny_backbone("llama")
    stored = an_artefact(backbone, rank=3, layer=None, place="all")
    stored.save(tmp_path / "fit")
    read = Artefact.load(tmp_path / "fit", backbone)
    assert read.method == stored.method
    assert type(read.fitted) is Steered
    assert read.fitted.config == stored.fitted.config
    assert read.model == stored.model
    assert read.cost == Cost(1.5, 7, 90, None)
    assert set(read.fitted.tensors) == set(stored.fitted.tensors)
    for name, tensor in stored.fitted.tensors.items():
        assert read.fitted.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.fitted.tensors[name], tensor)
    assert read.sha256 == stored.sha256
    assert sorted(path.name for path in (tmp_path / "fit").iterdir()) == ["fitted.json", "fitted.safetensors"]


def test_the_hash_is_of_everything() -> None:
    backbone = tiny_backbone("llama")
    first = an_artefact(backbone)
    assert first.sha256 == an_artefact(backbone).sha256
    assert len(first.sha256) == 16
    others = [an_artefact(backbone, rank=3), an_artefact(tiny_backbone("qwen2"))]
    changed = an_artefact(backbone)
    changed.fitted.tensors["row"] = changed.fitted.tensors["row"] + 1
    configured = an_artefact(backbone)
    configured.fitted.config["layers"] = [1, 3]
    found = {artefact.sha256 for artefact in [first, *others, changed, configured]}
    assert len(found) == 5


def test_an_artefact_without_tensors(tmp_path: Path) -> None:
    backbone = tiny_backbone("llama")
    Artefact(make_method("example", {}), Steered({}, {}), backbone.identity()).save(tmp_path)
    assert Artefact.load(tmp_path, backbone).fitted.tensors == {}


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change what is stored, and its hash with it."""

    def damage(folder: Path) -> None:
        stored = json.loads((folder / "fitted.json").read_text("utf-8"))
        del stored["sha256"]
        change(stored)
        (folder / "fitted.json").write_bytes(sealed(stored))

    return damage


def unseen(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / "fitted.json").read_text("utf-8")
        assert old in text
        (folder / "fitted.json").write_text(text.replace(old, new), "utf-8")

    return damage


def of_format_2(folder: Path) -> None:
    stored = json.loads((folder / "fitted.json").read_text("utf-8"))
    stored = {name: value for name, value in stored.items() if name not in ("sha256", "files")}
    (folder / "fitted.json").write_text(json.dumps({**stored, "format": 2, "weights_sha256": "0"}), "utf-8")


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / "fitted.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "fitted.safetensors").write_bytes(content)


def other_weights(folder: Path) -> None:
    other = an_artefact(tiny_backbone("llama"))
    other.fitted.tensors["row"] = torch.zeros(4)
    other.save(folder / "other")
    (folder / "other" / "fitted.safetensors").replace(folder / "fitted.safetensors")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "fitted.json").unlink(), "fitted.json is missing"),
        (lambda folder: (folder / "fitted.safetensors").unlink(), "fitted.safetensors is missing"),
        (lambda folder: (folder / "fitted.json").write_text('{"format": 3'), "does not end with a hash"),
        (lambda folder: (folder / "fitted.json").write_bytes(b"\xff\xfe"), "does not end with a hash"),
        (lambda folder: (folder / "fitted.json").write_text("[]"), "does not end with a hash"),
        (lambda folder: (folder / "fitted.json").write_text(""), "does not end with a hash"),
        (lambda folder: (folder / "fitted.safetensors").write_bytes(b""), "changed after it was written"),
        (flip_a_bit, r"fitted.safetensors is damaged \(it was changed after it was written"),
        (other_weights, "changed after it was written"),
        (unseen('"layers": [', '"layers": [ '), r"fitted.json is damaged \(it was changed after it was written"),
        (unseen("ünïcode", "ünicode"), "changed after it was written"),
        (unseen('"tokens": 90', '"tokens": 9'), "changed after it was written"),
        (unseen('"rank": ', '"rank": 1'), "changed after it was written"),
        (of_format_2, "format 2, this version reads 3"),
        (edit(lambda stored: stored.update(format=1)), "format 1, this version reads 3"),
        (edit(lambda stored: stored.pop("files")), "files"),
        (edit(lambda stored: stored.pop("method")), "method"),
        (edit(lambda stored: stored.update(hyperparameters=None)), "NoneType"),
        (edit(lambda stored: stored.update(model=None)), "NoneType"),
    ],
)
def test_damaged_artefacts(damage: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    backbone = tiny_backbone("llama")
    an_artefact(backbone).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(DamagedArtefact, match=problem) as caught:
        Artefact.load(tmp_path, backbone)
    assert f"{tmp_path} does not hold a fitted method that can be read" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_artefacts_of_methods_that_are_gone(tmp_path: Path) -> None:
    backbone = tiny_backbone("llama")
    an_artefact(backbone).save(tmp_path)
    edit(lambda stored: stored.update(method="exampel"))(tmp_path)
    with pytest.raises(DamagedArtefact, match="unknown method 'exampel': did you mean example"):
        Artefact.load(tmp_path, backbone)
    edit(lambda stored: stored.update(method="example", hyperparameters={"old": 1}))(tmp_path)
    with pytest.raises(DamagedArtefact, match="unknown hyperparameter of example 'old'"):
        Artefact.load(tmp_path, backbone)


def test_artefacts_of_other_weights_or_another_tokenizer(tmp_path: Path) -> None:
    an_artefact(tiny_backbone("llama")).save(tmp_path)
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[0, 0] += 1
    words = deepcopy(tokenizer())
    words.add_tokens("unheard-of")
    revision = Revision("tiny-llama", "another", "seed0")
    for other in (Backbone(model, tokenizer(), revision), Backbone(tiny_model("llama"), words, revision)):
        with pytest.raises(
            DamagedArtefact, match=r"was fitted on tiny-llama@seed0, not on another@seed0: use the model"
        ):
            Artefact.load(tmp_path, other)


@pytest.mark.parametrize(
    ("dtype", "revision"),
    [
        (torch.float32, Revision("mine", "elsewhere", "unknown")),  # the same content, wherever it lies
        (torch.bfloat16, Revision("mine", "tiny-llama", "seed0")),  # one place, loaded as another number type
    ],
)
def test_the_same_weights_are_fine(dtype: torch.dtype, revision: Revision, tmp_path: Path) -> None:
    an_artefact(tiny_backbone("llama")).save(tmp_path)
    renamed = Backbone(tiny_model("llama", dtype), tokenizer(), revision)
    assert Artefact.load(tmp_path, renamed).method == make_method("example", {})


def test_what_is_there_stays(tmp_path: Path) -> None:
    """As where two processes make one fit, and locks do nothing: no weights of one beside the json of another."""
    backbone = tiny_backbone("llama")
    an_artefact(backbone, rank=3).save(tmp_path)
    second = an_artefact(backbone, rank=4)
    second.fitted.tensors["row"] = torch.zeros(4)
    second.save(tmp_path)
    read = Artefact.load(tmp_path, backbone)
    assert read.method.hyperparameters()["rank"] == 3
    assert read.fitted.tensors["row"].any()
