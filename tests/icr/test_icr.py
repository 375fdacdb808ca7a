import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_test, pools
from icrbench.backbone import Backbone, Revision, make_batch
from icrbench.backbone.reuse import Reused
from icrbench.experiments import experiments
from icrbench.method import FitData
from icrbench.methods.icr import ICR, ICRFitted
from icrbench.methods.icr import method as icr_method
from icrbench.methods.icr.directions import principal_directions
from icrbench.methods.icr.router import Router, evened
from icrbench.methods.zero_shot import ZeroShotFitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.runner.labels import parse_methods
from icrbench.runner.presets import preset
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.toolkit.encoder import _local_folder, sentence_encoder
from icrbench.util.errors import UserError
from slow_attention import Reference, Term
from tiny import CONFIGS, FAMILIES, tiny_backbone, tokenizer

SMALL = ICR(
    rank=3,
    prompts_per_domain=6,
    prompts_agnews=9,
    per_class=1,
    queries_per_set=3,
    train_per_domain=8,
    hidden=16,
    learning_rate=1e-2,
    epochs=3,
    routing_scale="attention",
)
TASKS = ("sst2", "trec")
MINILM = _local_folder("minilm")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


def fit(
    workspace: Path, method: ICR = SMALL, tasks: tuple[str, ...] = TASKS, seed: int = 0, family: str = "llama"
) -> ICRFitted:
    return method.fit(tiny_backbone(family), FitData(pools(*tasks), None, workspace), Randomness(seed))


def logits_of(fitted: Any, name: str = "sst2", family: str = "llama", reused: Reused | None = None) -> Tensor:
    task = pools(name)[name].task
    scored = score(tiny_backbone(family), fitted, task, demo_test(name)[:8], reused=reused)
    return torch.tensor([row.option_logits for row in scored])


def same(first: ICRFitted, second: ICRFitted) -> bool:
    assert set(first.tensors) == set(second.tensors)
    return all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())


def test_defaults_are_the_paper_s() -> None:
    expected = {
        "rank": 8, "basis": "pca", "center": True, "position": "pre_rope", "target": "late", "pooling": "last",
        "prompts_per_domain": 5000, "prompts_agnews": 10000, "per_class": 5, "sampling": "balanced",
        "queries_per_set": 1, "domains": "all", "train_domains": None, "train_per_domain": 5000,
        "encoder": "minilm", "embedding": "pipeline", "hidden": 256, "uniform_at": "inference",
        "alpha": "routed", "gamma": "routed", "routing_scale": "paper",
        "learning_rate": 1e-4, "weight_decay": 0.01, "batch_size": 4, "epochs": 2, "clip": 1.0,
        "length_groups": 1, "w_confidence": 0.01, "w_sparsity": 0.001, "w_gate": 0.02, "deepest": 3.0,
        "penalised": "model", "calibrated": False, "final_scale": 0.8,
    }  # fmt: skip
    assert ICR().hyperparameters() == expected
    assert make_method("icr", {"rank": "4", "center": "false"}) == replace(ICR(), rank=4, center=False)
    assert make_method("icr", preset("paper").methods.get("icr", {})) == ICR()  # plain shuffling, too


def test_a_fit_follows_its_seed_alone(workspace: Path, tmp_path: Path) -> None:
    first = fit(workspace)
    torch.manual_seed(777)
    again = fit(tmp_path)  # nothing on disk: computed anew
    assert same(first, again)
    assert first.config == again.config
    assert same(first, fit(workspace))  # and from disk
    assert not same(first, fit(workspace, seed=1))


def test_training_lowers_the_loss_and_changes_the_scores(workspace: Path) -> None:
    fitted = fit(workspace, replace(SMALL, epochs=8))
    history = fitted.config["history"]
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"] - 0.2
    assert (logits_of(fitted) - logits_of(ZeroShotFitted({}, {}))).abs().max() > 0.05


def test_directions_are_the_principal_ones_of_both_domains_together(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    original = icr_method.icl_bases

    def spy(*args: Any) -> Any:
        seen.append(original(*args))
        return seen[-1]

    monkeypatch.setattr(icr_method, "icl_bases", spy)
    fitted = fit(workspace)
    assert len(seen) == 2
    for kind in ("queries", "keys"):
        for place, layer in enumerate((4, 5)):
            rows = torch.cat([found.vectors(kind, layer) for found in seen])
            assert rows.shape[0] == 12
            centred = rows.double() - rows.double().mean(0)
            expected = torch.linalg.svd(centred, full_matrices=False).Vh[:3].T
            found = fitted.tensors[f"directions.{kind}"][place].double()
            torch.testing.assert_close((found.T @ expected).abs().diagonal(), torch.ones(3).double(), atol=1e-5, rtol=0)
            gram = found.T @ found
            torch.testing.assert_close(gram, torch.eye(3).double(), atol=1e-6, rtol=0)
    assert fitted.tensors["directions.queries"].shape == (2, 48, 3)
    assert fitted.tensors["directions.keys"].shape == (2, 16, 3)
    uncentred = fit(workspace, replace(SMALL, center=False, epochs=1))
    rows = torch.cat([found.vectors("keys", 4) for found in seen[:2]])
    assert torch.equal(uncentred.tensors["directions.keys"][0], principal_directions(rows, 3, center=False))


def test_agnews_gets_its_own_number_of_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}

    class Enough(Exception):
        pass

    def spy(_backbone: Any, pool: Any, how: Any, *_: Any) -> Any:
        asked[pool.task.name] = how.prompts
        if len(asked) == 3:
            raise Enough

    monkeypatch.setattr(icr_method, "icl_bases", spy)
    with pytest.raises(Enough):
        ICR().fit(tiny_backbone("llama"), FitData(pools("agnews", "sst2", "csqa"), None, tmp_path), Randomness(0))
    assert asked == {"agnews": 10000, "sst2": 5000, "csqa": 5000}


def test_training_prompts_are_zero_shot_rows_with_their_answers(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    taken: list[Any] = []

    def spy(_backbone: Backbone, layer: int, domains: list[list[Any]], _workspace: Path) -> Any:
        taken.extend([layer, domains])
        raise Enough

    monkeypatch.setattr(icr_method, "TrunkStore", spy)
    with pytest.raises(Enough):
        fit(workspace)
    layer, domains = taken
    assert layer == 4
    assert [len(prompts) for prompts in domains] == [8, 8]
    prompts = [item for prompts in domains for item in prompts]
    answers = {}
    for name in TASKS:
        pool = pools(name)[name]
        answers.update({pool.task.prompt(row): pool.task.answer(row) for row in pool.train})
    texts = [item.prompt.text for item in prompts]
    assert len(set(texts)) == 16
    for item in prompts:
        assert tokenizer().decode([item.answer]) == answers[item.prompt.text][0]  # one token a byte
        assert item.prompt.tokens == tuple(tiny_backbone("llama").encode(item.prompt.text))


def test_saved_and_loaded_it_scores_the_same(workspace: Path, tmp_path: Path) -> None:
    fitted, backbone = fit(workspace), tiny_backbone("llama")
    artefact = Artefact(SMALL, fitted, backbone.identity())
    artefact.save(tmp_path / "icr")
    loaded = Artefact.load(tmp_path / "icr", backbone)
    assert loaded.method == SMALL
    assert loaded.sha256 == artefact.sha256
    assert isinstance(loaded.fitted, ICRFitted)
    assert same(fitted, loaded.fitted)
    assert torch.equal(logits_of(loaded.fitted), logits_of(fitted))
    assert json.loads((tmp_path / "icr" / "fitted.json").read_text("utf-8"))["config"] == fitted.config


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_from_the_trunk_are_those_of_the_full_path(family: str, workspace: Path) -> None:
    fitted = fit(workspace, replace(SMALL, epochs=1), family=family)
    assert fitted.first_layer == 4
    full, reused = logits_of(fitted, family=family), Reused()
    for _ in range(2):  # filling the cache, and from it
        torch.testing.assert_close(logits_of(fitted, family=family, reused=reused), full, atol=1e-5, rtol=1e-5)
    zero = logits_of(ZeroShotFitted({}, {}), family=family)
    assert (zero - full).abs().max() > 1e-4  # ten times the tolerance above


def test_scores_are_those_of_eq_10_with_the_router_s_strengths(workspace: Path) -> None:
    """From texts to logits, written out: encoder, both branches, the end value of the scale, T x T matrices."""
    fitted, backbone, task = fit(workspace), tiny_backbone("llama"), pools("trec")["trec"].task
    tensors, reference = fitted.tensors, Reference("llama")
    found = logits_of(fitted, "trec")
    for row, example in enumerate(demo_test("trec")[:3]):
        prompt = Prompter(backbone, task)(example)
        embedding = sentence_encoder("minilm")([task.prompt(example)])[0].double()

        def branch(name: str, embedding: Tensor = embedding) -> Tensor:
            weight = {
                key: tensors[f"router.{name}.{key}"].double() for key in ("0.weight", "0.bias", "2.weight", "2.bias")
            }
            hidden = (weight["0.weight"] @ embedding + weight["0.bias"]).clamp(min=0)
            return weight["2.weight"] @ hidden + weight["2.bias"]

        alpha = 0.8 * torch.tanh(branch("alpha")).view(1, 2, 3)
        gamma = torch.sigmoid(branch("gamma")).view(1, 2, 6)
        low_rank = {
            layer: Term(
                tensors["directions.queries"][place],
                tensors["directions.keys"][place],
                alpha[:, place],
                gamma[:, place],
                8**-0.5,
            )
            for place, layer in enumerate((4, 5))
        }
        logits = reference.logits(make_batch([prompt.tokens], [""]), low_rank)[0, -1]
        torch.testing.assert_close(found[row].double(), logits[list(prompt.options)], atol=1e-4, rtol=1e-4)


def test_chosen_domains_alone_are_used(workspace: Path) -> None:
    chosen = fit(workspace, replace(SMALL, domains="trec"), ("sst2", "trec", "agnews"))
    assert same(chosen, fit(workspace, tasks=("trec",)))
    assert not same(chosen, fit(workspace))
    two = fit(workspace, replace(SMALL, domains="trec+sst2"), ("agnews", "sst2", "trec"))
    assert same(two, fit(workspace))


@pytest.mark.parametrize("domains", ["mr", "sst2+nosuch", "sst2+", ""])
def test_an_unknown_domain_is_a_user_error(domains: str, workspace: Path) -> None:
    with pytest.raises(UserError, match=r"icr\.domains"):
        fit(workspace, replace(SMALL, domains=domains))


def test_a_random_basis_needs_no_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("in-context prompts were run")

    monkeypatch.setattr(icr_method, "icl_bases", refuse)
    method = replace(SMALL, basis="random", epochs=1)
    first, again, other = fit(tmp_path, method), fit(tmp_path, method), fit(tmp_path, method, seed=1)
    assert same(first, again)
    assert not torch.equal(first.tensors["directions.keys"], other.tensors["directions.keys"])
    for tensor in (first.tensors["directions.queries"], first.tensors["directions.keys"]):
        for basis in tensor:
            torch.testing.assert_close(basis.T @ basis, torch.eye(3), atol=1e-6, rtol=0)
    assert not torch.equal(first.tensors["directions.keys"][0], first.tensors["directions.keys"][1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_learned_basis_is_trained_without_prompts_and_kept_in_the_artefact(
    family: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("in-context prompts were run")

    monkeypatch.setattr(icr_method, "icl_bases", refuse)
    learned = fit(workspace, replace(SMALL, basis="learned"), family=family)
    start = fit(workspace, replace(SMALL, basis="random"), family=family)
    for kind in ("directions.queries", "directions.keys"):
        assert learned.tensors[kind].shape == start.tensors[kind].shape
        difference = (learned.tensors[kind] - start.tensors[kind]).abs()
        assert difference.amax((1, 2)).min() > 1e-3  # every layer's has moved
        assert difference.max() < 0.2  # from where the random basis lies: at most 12 steps of 0.01
        assert not learned.tensors[kind].requires_grad
    backbone = tiny_backbone(family)
    Artefact(replace(SMALL, basis="learned"), learned, backbone.identity()).save(tmp_path)
    loaded = Artefact.load(tmp_path, backbone).fitted
    assert isinstance(loaded, ICRFitted)
    assert same(loaded, learned)
    full = logits_of(learned, family=family)
    assert torch.equal(logits_of(loaded, family=family), full)
    torch.testing.assert_close(logits_of(learned, family=family, reused=Reused()), full, atol=1e-5, rtol=1e-5)
    assert (full - logits_of(start, family=family)).abs().max() > 1e-4


@pytest.mark.parametrize(("branch", "left"), [("alpha", "gamma"), ("gamma", "alpha")])
def test_a_shared_branch_gives_every_query_the_same(branch: str, left: str, workspace: Path, tmp_path: Path) -> None:
    method = make_method("icr", {**SMALL.hyperparameters(), branch: "shared"})
    fitted, backbone = fit(workspace, method), tiny_backbone("llama")
    Artefact(method, fitted, backbone.identity()).save(tmp_path)
    loaded = Artefact.load(tmp_path, backbone).fitted
    assert isinstance(loaded, ICRFitted)
    texts = tuple(pools("sst2")["sst2"].task.prompt(row) for row in demo_test("sst2")[:3])
    strengths = dict(zip(("alpha", "gamma"), loaded.strengths(texts), strict=True))
    assert strengths[branch].unique().numel() == 1
    assert strengths[branch].unique() not in (0.0, 0.5)  # it has been trained
    assert strengths[left].std(0).min() > 0
    assert torch.equal(logits_of(loaded), logits_of(fitted))
    assert (logits_of(fitted) - logits_of(ZeroShotFitted({}, {}))).abs().max() > 1e-4


def test_training_on_calibrated_answers_is_another_router(workspace: Path) -> None:
    found = fit(workspace, replace(SMALL, calibrated=True))
    assert not same(found, fit(workspace))
    assert torch.equal(found.tensors["directions.keys"], fit(workspace).tensors["directions.keys"])


@pytest.mark.parametrize("branch", ["alpha", "gamma"])
def test_a_branch_uniform_at_inference_is_trained_as_a_routed_one(branch: str, workspace: Path) -> None:
    plain, found = fit(workspace), fit(workspace, make_method("icr", {**SMALL.hyperparameters(), branch: "uniform"}))
    assert same(plain, found)
    texts = tuple(pools("sst2")["sst2"].task.prompt(row) for row in demo_test("sst2")[:3])
    for name, before, after in zip(("alpha", "gamma"), plain.strengths(texts), found.strengths(texts), strict=True):
        torch.testing.assert_close(after, 0.8 * evened(before / 0.8) if name == branch else before)
    assert not torch.equal(logits_of(found), logits_of(plain))


def test_alpha_uniform_in_training_tells_queries_and_layers_apart_but_not_directions(workspace: Path) -> None:
    found = fit(workspace, replace(SMALL, alpha="uniform", uniform_at="training"))
    assert not same(found, fit(workspace))
    raw = Router(**{**found.config["router"], "alpha": "routed"})
    raw.load_state_dict(found.router.state_dict())
    texts = tuple(pools("sst2")["sst2"].task.prompt(row) for row in demo_test("sst2")[:3])
    alpha, _ = raw(sentence_encoder("minilm")(texts))
    torch.testing.assert_close(alpha, alpha[..., :1].expand_as(alpha), atol=1e-6, rtol=1e-4)
    assert alpha[..., 0].std(0).min() > 1e-4
    assert (alpha[:, 0] - alpha[:, 1]).abs().min() > 1e-4
    torch.testing.assert_close(found.strengths(texts)[0], 0.8 * alpha)


def test_directions_and_training_can_have_their_own_domains(workspace: Path) -> None:
    """Table 5's mismatched: directions of the one set, training on another."""
    both, sst2 = fit(workspace), fit(workspace, replace(SMALL, domains="sst2"))
    found = fit(workspace, replace(SMALL, domains="sst2", train_domains="all"))
    assert torch.equal(found.tensors["directions.keys"], sst2.tensors["directions.keys"])
    assert not torch.equal(found.tensors["directions.keys"], both.tensors["directions.keys"])
    other = fit(workspace, replace(SMALL, train_domains="sst2"))
    assert torch.equal(other.tensors["directions.keys"], both.tensors["directions.keys"])
    # Gates see no direction at first: the router's first loss is that of its training prompts.
    assert other.config["history"] != both.config["history"]
    assert not same(found, sst2)
    assert same(fit(workspace, replace(SMALL, domains="sst2", train_domains="sst2")), sst2)
    with pytest.raises(UserError, match=r"icr\.train_domains"):
        fit(workspace, replace(SMALL, train_domains="sst"))


def test_the_domains_experiment_has_the_paper_s_three_settings() -> None:
    made = {row.name: parse_methods(row.method, [], preset("paper"))[0].method for row in experiments()["domains"].rows}
    three = "agnews+sst2+trec"
    assert made == {
        "matched-3": ICR(domains=three),
        "mismatched": ICR(domains=three, train_domains="all"),
        "matched-5": ICR(),
    }


def test_the_router_can_read_vectors_before_they_are_normalised(workspace: Path) -> None:
    found = fit(workspace, replace(SMALL, embedding="pooled"))
    assert not same(found, fit(workspace))
    text = pools("sst2")["sst2"].task.prompt(demo_test("sst2")[0])
    alpha, _ = found.strengths((text,))
    torch.testing.assert_close(alpha, 0.8 * found.router(sentence_encoder("minilm", "pooled")([text]))[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "change", [{"basis": "learned"}, {"alpha": "shared"}, {"gamma": "shared"}, {"encoder": "random"}, {"rank": 16}]
)
def test_without_strength_every_variant_is_zero_shot_bit_for_bit(
    change: dict[str, Any], family: str, workspace: Path
) -> None:
    method = replace(SMALL, epochs=1, **{"basis": "random", **change})
    zero = logits_of(ZeroShotFitted({}, {}), family=family)
    fitted = fit(workspace, method, family=family)
    assert fitted.first_layer == 4
    assert not torch.equal(logits_of(fitted, family=family), zero)
    silent = ICRFitted({**fitted.config, "alpha_scale": 0.0}, fitted.tensors)
    assert torch.equal(logits_of(silent, family=family), zero)
    # Gates that are shut to the last bit.
    last = "router.gamma.value" if method.gamma == "shared" else "router.gamma.2.bias"
    shut = {last: torch.full_like(fitted.tensors[last], -1e4)}
    assert torch.equal(logits_of(ICRFitted(fitted.config, {**fitted.tensors, **shut}), family=family), zero)


@pytest.mark.parametrize("basis", ["pca", "learned"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_runs(family: str, basis: Any, tmp_path: Path) -> None:
    backbone = tiny_backbone(family, torch.bfloat16)
    method = replace(SMALL, basis=basis, learning_rate=5e-2)  # so that the change is above a rounding of bfloat16
    fitted = method.fit(backbone, FitData(pools(*TASKS), None, tmp_path), Randomness(0))
    assert {tensor.dtype for tensor in fitted.tensors.values()} == {torch.float32}
    task = pools("sst2")["sst2"].task
    routed, plain = (
        [row.option_logits for row in score(backbone, method, task, demo_test("sst2")[:4])]
        for method in (fitted, ZeroShotFitted({}, {}))
    )
    assert torch.tensor(routed).isfinite().all()
    assert routed != plain


def test_random_vectors_in_place_of_the_encoder(workspace: Path) -> None:
    """Queries still differ from one another; the bases and trunks are those of the real encoder."""
    fitted = fit(workspace, replace(SMALL, encoder="random"))
    plain = fit(workspace)
    assert torch.equal(fitted.tensors["directions.keys"], plain.tensors["directions.keys"])
    alpha, _ = fitted.strengths(("one text", "another", "one text"))
    assert torch.equal(alpha[0], alpha[2])
    assert not torch.equal(alpha[0], alpha[1])
    assert not same(fitted, plain)


@pytest.mark.parametrize("rank", [1, 2, 16])
def test_any_rank_up_to_the_key_space(rank: int, workspace: Path) -> None:
    method = replace(SMALL, rank=rank, prompts_per_domain=10, epochs=1)
    fitted = fit(workspace, method)
    assert fitted.tensors["directions.keys"].shape == (2, 16, rank)
    assert (logits_of(fitted) - logits_of(ZeroShotFitted({}, {}))).abs().max() > 1e-4


def test_a_rank_of_64_where_the_model_is_wide_enough(tmp_path: Path) -> None:
    """GPT-NeoX has no grouped keys, 48 dimensions; a wide random one has 96."""
    config = deepcopy(CONFIGS["gpt_neox"][1])
    config.hidden_size = 96
    torch.manual_seed(0)
    model = CONFIGS["gpt_neox"][0](config).eval()
    backbone = Backbone(model, tokenizer(), Revision("wide", "wide", "0"))
    data = FitData(pools(*TASKS), None, tmp_path)
    method = replace(SMALL, rank=64, prompts_per_domain=40, epochs=1, per_class=1)
    fitted = method.fit(backbone, data, Randomness(0))
    for kind in ("queries", "keys"):
        basis = fitted.tensors[f"directions.{kind}"][0]
        assert basis.shape == (96, 64)
        torch.testing.assert_close(basis.T @ basis, torch.eye(64), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("target", "layers"), [("all", list(range(6))), ("early", [0, 1]), ("middle", [2, 3]), ("late", [4, 5])]
)
def test_any_third_can_be_routed(target: Any, layers: list[int], workspace: Path) -> None:
    fitted = fit(workspace, replace(SMALL, target=target, epochs=1))
    assert fitted.config["layers"] == layers
    assert fitted.first_layer == layers[0]
    assert fitted.tensors["directions.queries"].shape[0] == len(layers)
    full = logits_of(fitted)
    assert (full - logits_of(ZeroShotFitted({}, {}))).abs().max() > 1e-3
    torch.testing.assert_close(logits_of(fitted, reused=Reused()), full, atol=1e-5, rtol=1e-5)


def test_variants_share_bases_and_trunks(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank, centring, learning rate, loss weights and layers never run the in-context prompts again."""
    expected = fit(workspace)
    # Another encoder, of another name but the same weights.
    monkeypatch.setattr("icrbench.toolkit.encoder._local_folder", lambda _name: MINILM)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("in-context prompts were run")

    monkeypatch.setattr("icrbench.methods.icr.bases._extract", refuse)
    monkeypatch.setattr("icrbench.methods.icr.trunkstore.TrunkStore._compute", refuse)
    changes: list[dict[str, Any]] = [
        {"rank": 2},
        {"center": False},
        {"learning_rate": 1e-3},
        {"w_gate": 0.0},
        {"routing_scale": "paper"},
        {"domains": "sst2+trec+sst2"},
        {"domains": "trec"},
        {"alpha": "uniform"},
        {"gamma": "shared"},
        {"embedding": "pooled"},
        {"domains": "trec", "train_domains": "sst2"},
        {"penalised": "routed"},
        {"encoder": "random"},
        {"basis": "learned"},
    ]
    for change in changes:
        fit(workspace, replace(SMALL, epochs=1, **change))
    assert same(fit(workspace, replace(SMALL, encoder="a folder")), expected)


def test_a_fit_is_the_same_whatever_was_on_disk_before(tmp_path: Path) -> None:
    """Other thirds, other sets of domains: a fit after them equals a fit from nothing."""
    for change in ({"target": "all"}, {"domains": "trec"}, {"target": "middle", "domains": "sst2"}):
        fit(tmp_path / "used", replace(SMALL, epochs=1, **change))
    for change in ({}, {"target": "early"}, {"target": "middle"}):
        method = replace(SMALL, epochs=1, **change)
        assert same(fit(tmp_path / "used", method), fit(tmp_path / "-".join(["new", *change.values()]), method))


def test_cached_parameters_are_what_is_stored(workspace: Path) -> None:
    fitted = fit(workspace)
    directions = 2 * (48 + 16) * 3
    alpha = 384 * 16 + 16 + 16 * 2 * 3 + 2 * 3
    gamma = 384 * 16 + 16 + 16 * 2 * 6 + 2 * 6
    assert fitted.cached_parameters == directions + alpha + gamma


def test_the_model_is_bit_identical_after_a_fit(workspace: Path) -> None:
    backbone = tiny_backbone("gemma3")
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    fit(workspace, replace(SMALL, epochs=1), family="gemma3")
    after = backbone.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert backbone.active is None


def test_fitting_after_scoring_in_one_process(workspace: Path, tmp_path: Path) -> None:
    """Scoring runs without autograd and fills the encoder's memory; a fit afterwards must still train."""
    fitted = fit(workspace)
    logits_of(fitted)
    task = pools("sst2")["sst2"].task
    score(tiny_backbone("llama"), fitted, task, pools("sst2")["sst2"].train[:8])
    assert same(fitted, fit(tmp_path))


def test_a_rank_beyond_the_key_space_is_a_user_error(workspace: Path) -> None:
    with pytest.raises(UserError, match=r"icr\.rank=17"):
        fit(workspace, replace(SMALL, rank=17))


@pytest.mark.parametrize(("rank", "center"), [(12, True), (13, False), (14, True)])
def test_more_directions_than_prompts_span_is_a_user_error(rank: int, center: bool, workspace: Path) -> None:
    """Twelve prompts span twelve directions, eleven around their mean."""
    fit(workspace, replace(SMALL, rank=11 if center else 12, center=center, epochs=1))
    with pytest.raises(UserError, match=rf"icr\.rank={rank} .* 12 in-context prompts"):
        fit(workspace, replace(SMALL, rank=rank, center=center))


@pytest.mark.parametrize(
    ("name", "value"), [("rank", 0), ("batch_size", 0), ("epochs", 0), ("learning_rate", 0.0), ("clip", -1.0)]
)
def test_sizes_that_mean_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"icr\.{name} must be"):
        make_method("icr", {name: value})
