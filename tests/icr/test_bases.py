from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

from icr_setup import demo_pool
from icrbench.backbone import Backbone, Batch
from icrbench.backbone.metering import metered
from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.methods.icr import bases
from icrbench.methods.icr.bases import Bases, Extraction, icl_bases
from icrbench.randomness import Randomness
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.toolkit import episodes
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.toolkit.episodes import Episode, Questions
from icrbench.util.cache import verified
from icrbench.util.errors import UserError
from live_bytes import peak_of_tensors
from slow_attention import Reference
from tiny import FAMILIES, tiny_backbone, tokenizer

HOW = Extraction(6, 2, "balanced", 1, "last", "pre_rope", None)


class Watched:
    """Runs an extraction and remembers which prompts went into it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Example, list[str], Prompt]] = []
        asked = self.asked

        class Recorder(Prompter):
            def __call__(self, example: Example, demonstrations: Any = ()) -> Prompt:
                prompt = super().__call__(example, demonstrations)
                asked.append((example, list(demonstrations), prompt))
                return prompt

        monkeypatch.setattr(episodes, "Prompter", Recorder)

    def run(self, backbone: Backbone, pool: Pool, how: Extraction, folder: Path, seed: int = 0) -> Bases:
        self.asked.clear()
        return icl_bases(backbone, pool, how, Randomness(seed), folder)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def stored(found: Bases, layers: int = 6) -> dict[str, Tensor]:
    return {kind: torch.stack([found.vectors(kind, layer) for layer in range(layers)]) for kind in ("queries", "keys")}


def assert_half_equal(found: Tensor, expected: Tensor) -> None:
    """Equal to half precision, plus what float32 and the order of summation cost."""
    assert found.shape == expected.shape
    largest = expected.abs().max()
    assert ((found - expected).abs() <= 1e-3 * expected.abs() + 1e-4 * largest).all()
    assert largest > 0.1


def slowly(family: str, watched: Watched, how: Extraction) -> dict[str, Tensor]:
    """The vectors of every watched prompt alone, without prefix cache or padding: ``[L, N, n]``."""
    reference, rows = Reference(family), []
    for _, _, prompt in watched.asked:
        reference.one(prompt.tokens)
        length = len(prompt.tokens)
        if how.pooling == "rollout":
            flow = torch.eye(length, dtype=torch.float64)
            for layer in range(6):
                flow = (reference.seen[layer].attention[0].mean(0) + torch.eye(length)) / 2 @ flow
            weights = flow[-1]
        else:
            count = {"last": 1, "last4": 4, "last8": 8}[how.pooling]
            weights = torch.zeros(length, dtype=torch.float64)
            weights[-count:] = 1 / count
        raw = how.position == "pre_rope"
        rows.append(
            [
                ((seen.query if raw else seen.rotated_query)[0], (seen.key if raw else seen.rotated_key)[0])
                for seen in (reference.seen[layer] for layer in range(6))
            ]
        )
        rows[-1] = [(weights @ query, weights @ key) for query, key in rows[-1]]
    return {
        kind: torch.stack([torch.stack([row[layer][side] for row in rows]) for layer in range(6)]).float()
        for side, kind in enumerate(("queries", "keys"))
    }


def ones(backbone: Backbone, rows: int) -> tuple[Tensor, Tensor]:
    dims = backbone.dims
    return torch.ones(dims.layers, rows, dims.heads * dims.head_dim), torch.ones(
        dims.layers, rows, dims.kv_heads * dims.head_dim
    )


def prompts_alone(backbone: Backbone, group: Sequence[Episode], _how: Extraction) -> list[tuple[Tensor, Tensor]]:
    """Makes the prompts of a group and leaves the model alone."""
    return [ones(backbone, 1) for _ in Questions(backbone).in_context(group)]


@pytest.mark.parametrize("sampling", ["balanced", "similar"])
@pytest.mark.parametrize("per_set", [1, 4])
@pytest.mark.parametrize("name", ["sst2", "trec", "piqa"])
def test_a_query_is_never_among_its_demonstrations(
    name: str, per_set: int, sampling: Any, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "_read_group", prompts_alone)
    pool = demo_pool(name)
    # Every row twice: the copy of a query must not be shown either.
    doubled = Pool(pool.task, pool.train[:12] + tuple(replace(row, id=row.id + "x") for row in pool.train[:12]), "0")
    how = replace(HOW, prompts=24, queries_per_set=per_set, sampling=sampling, encoder="minilm")
    watched.run(tiny_backbone("gpt_neox"), doubled, how, tmp_path)
    assert len(watched.asked) == 24
    assert {row.id for row, _, _ in watched.asked} == {row.id for row in doubled.train}  # without replacement
    for row, shown, prompt in watched.asked:
        assert shown
        assert doubled.task.demonstration(row) not in shown
        assert prompt.text == doubled.task.prompt(row)


@pytest.mark.parametrize(("name", "classes"), [("sst2", 2), ("trec", 6), ("csqa", 5)])
def test_demonstrations_are_balanced_shuffled_and_drawn_anew(
    name: str, classes: int, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "_read_group", prompts_alone)
    pool = demo_pool(name)
    watched.run(tiny_backbone("gpt_neox"), pool, HOW, tmp_path)
    labels = {pool.task.demonstration(row): row.label for row in pool.train}
    orders = []
    for _, shown, _ in watched.asked:
        assert len(set(shown)) == len(shown)
        assert Counter(labels[text] for text in shown) == dict.fromkeys(range(classes), 2)
        orders.append([labels[text] for text in shown])
    assert any(order != sorted(order) for order in orders)
    assert len({tuple(shown) for _, shown, _ in watched.asked}) == 6
    prompt = watched.asked[0][2]
    assert prompt.dropped == 0
    text = tokenizer().decode(list(prompt.tokens))
    assert text == "\n".join([*watched.asked[0][1], watched.asked[0][2].text])


def test_similar_demonstrations_are_the_nearest_neighbours(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "_read_group", prompts_alone)
    pool, how = demo_pool("agnews"), replace(HOW, sampling="similar", prompts=5, encoder="minilm")
    watched.run(tiny_backbone("gpt_neox"), pool, how, tmp_path)
    vectors = normalize(sentence_encoder("minilm")([pool.task.prompt(row) for row in pool.train]), dim=1)
    for row, shown, _ in watched.asked:
        similarity = vectors @ vectors[pool.train.index(row)]
        similarity[pool.train.index(row)] = -2
        nearest = similarity.argsort(descending=True)[: 2 * 4].tolist()
        assert shown == [pool.task.demonstration(pool.train[i]) for i in nearest]


@pytest.mark.parametrize("value", [7e4, torch.nan])
def test_vectors_that_do_not_fit_half_precision_are_refused(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(backbone: Backbone, batch: Batch, *_: Any) -> tuple[Tensor, Tensor]:
        queries, keys = ones(backbone, len(batch.rows))
        keys[3, -1, 2] = value
        return queries, keys

    monkeypatch.setattr(bases, "_read_batch", huge)
    with pytest.raises(UserError, match=r"prompts of sst2: vectors of block 3 reach .*: use icr\.basis"):
        icl_bases(tiny_backbone("llama"), demo_pool("sst2"), HOW, Randomness(0), tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("position", ["pre_rope", "post_rope"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_demonstrations_give_the_vectors_of_every_prompt_alone(
    family: str, position: Any, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    run = Backbone.hidden_states

    def counted(self: Backbone, batch: Batch, cache: Any = None) -> Tensor:
        widths.append(int(batch.attention_mask[:, -batch.input_ids.shape[1] :].sum()))
        return run(self, batch, cache)

    monkeypatch.setattr(Backbone, "hidden_states", counted)
    how = replace(HOW, prompts=7, per_class=1, queries_per_set=4, position=position)
    found = stored(watched.run(tiny_backbone(family), demo_pool("sst2"), how, tmp_path))
    assert len({tuple(shown) for _, shown, _ in watched.asked}) == 2
    assert sum(widths) < 0.7 * sum(len(prompt.tokens) for _, _, prompt in watched.asked)  # shared tokens run once
    for kind, expected in slowly(family, watched, how).items():
        assert_half_equal(found[kind], expected)


@pytest.mark.parametrize("per_set", [1, 3])
@pytest.mark.parametrize("pooling", ["last4", "last8", "rollout"])
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama", "mistral"])
def test_pooling(family: str, pooling: Any, per_set: int, watched: Watched, tmp_path: Path) -> None:
    how = replace(HOW, prompts=3, per_class=1, pooling=pooling, queries_per_set=per_set)
    found = stored(watched.run(tiny_backbone(family), demo_pool("sst2"), how, tmp_path))
    for kind, expected in slowly(family, watched, how).items():
        assert_half_equal(found[kind], expected)


@pytest.mark.parametrize("pooling", ["last", "last8"])
def test_equal_queries_keep_the_tokens_that_are_pooled(
    pooling: Any, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts alike to the last token share at most what pooling does not read."""
    row, other = demo_pool("sst2").train[:2]
    queries = Pool(demo_pool("sst2").task, (row, row, other), "0")
    how = replace(HOW, prompts=3, per_class=1, pooling=pooling, queries_per_set=2)
    monkeypatch.setattr("random.Random.sample", lambda _self, rows, count: list(rows)[:count])
    found = stored(watched.run(tiny_backbone("llama"), queries, how, tmp_path))
    assert len({prompt.tokens for _, _, prompt in watched.asked[:2]}) == 1
    for kind, expected in slowly("llama", watched, how).items():
        assert_half_equal(found[kind], expected)


def test_before_and_after_rotary_embedding_differ(watched: Watched, tmp_path: Path) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    before, after = (
        watched.run(backbone, pool, replace(HOW, prompts=3, position=position), tmp_path)
        for position in ("pre_rope", "post_rope")
    )
    assert before.path != after.path
    assert (before.vectors("queries", 3) - after.vectors("queries", 3)).abs().max() > 0.1


def test_the_file_is_in_half_precision_and_read_layer_by_layer(watched: Watched, tmp_path: Path) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("trec")
    found = watched.run(backbone, pool, HOW, tmp_path)
    with safe_open(found.path, framework="pt") as file:
        assert file.get_tensor("queries").shape == (6, 6, 48)
        assert file.get_tensor("keys").shape == (6, 6, 16)
        assert file.get_tensor("keys").dtype == torch.float16
        assert torch.equal(found.vectors("keys", 4), file.get_tensor("keys")[4].float())
    assert found.path.parent.name.startswith("trec-")
    assert [path.name for path in found.path.parent.parent.iterdir()] == [found.path.parent.name]
    assert verified(found.path.parent)["identity"]["model"] == backbone.identity()


def test_a_second_call_reads_and_does_not_run_the_model(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    first = watched.run(backbone, pool, HOW, tmp_path)
    before = stored(first)

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(Backbone, "hidden_states", refuse)
    again = watched.run(backbone, pool, HOW, tmp_path)
    assert again.path == first.path
    assert all(torch.equal(before[kind], stored(again)[kind]) for kind in before)
    with pytest.raises(AssertionError, match="the model was run"):
        watched.run(backbone, pool, HOW, tmp_path / "elsewhere")


def test_anything_that_changes_the_vectors_changes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*arguments: Any) -> None:
        arguments[-1].write_bytes(b"")

    monkeypatch.setattr(bases, "_extract", empty)
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    variants = [
        (backbone, pool, HOW, 0),
        (backbone, pool, HOW, 1),
        (tiny_backbone("qwen2"), pool, HOW, 0),
        (backbone, demo_pool("trec"), HOW, 0),
        (backbone, demo_pool("sst2", 20), HOW, 0),
        *(
            (backbone, pool, replace(HOW, **change), 0)
            for change in (
                {"prompts": 7},
                {"per_class": 3},
                {"sampling": "similar"},
                {"queries_per_set": 2},
                {"pooling": "last4"},
                {"position": "post_rope"},
            )
        ),
        (backbone, pool, replace(HOW, sampling="similar", encoder="mpnet"), 0),
    ]
    paths = [icl_bases(model, data, how, Randomness(seed), tmp_path).path for model, data, how, seed in variants]
    assert len(set(paths)) == len(paths)


def test_another_seed_draws_other_prompts(watched: Watched, tmp_path: Path) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    first = stored(watched.run(backbone, pool, HOW, tmp_path))
    asked = [prompt.tokens for _, _, prompt in watched.asked]
    other = stored(watched.run(backbone, pool, HOW, tmp_path, seed=1))
    assert asked != [prompt.tokens for _, _, prompt in watched.asked]
    assert (first["queries"] - other["queries"]).abs().max() > 0.1


def test_prompts_too_long_for_the_model_lose_their_first_demonstrations(watched: Watched, tmp_path: Path) -> None:
    backbone, pool = tiny_backbone("gpt2"), demo_pool("sst2")  # 512 positions
    how = replace(HOW, prompts=4, per_class=6, queries_per_set=4)
    found = stored(watched.run(backbone, pool, how, tmp_path))
    assert all(prompt.dropped > 0 and len(prompt.tokens) <= 512 for _, _, prompt in watched.asked)
    for kind, expected in slowly("gpt2", watched, how).items():
        assert_half_equal(found[kind], expected)


def test_a_flipped_bit_costs_the_bases_and_nothing_else(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("sst2")
    path = watched.run(backbone, pool, HOW, tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with metered(backbone) as again:
        watched.run(backbone, pool, HOW, tmp_path)
    assert path.read_bytes() == whole
    assert f"{path} is damaged" in capsys.readouterr().err
    with metered(backbone) as read:
        watched.run(backbone, pool, HOW, tmp_path)
    assert capsys.readouterr().err == ""
    assert (read.tokens, read.sequences) == (again.tokens, again.sequences)
    assert again.taken is not None
    assert read.taken is not None
    assert (again.taken.tokens, read.taken.tokens) == (again.tokens, 0)


def test_memory_does_not_grow_with_the_number_of_prompts(tmp_path: Path) -> None:
    backbone, pool = tiny_backbone("llama"), demo_pool("trec")
    peaks = []
    for prompts in (4, 16):
        with peak_of_tensors(backbone) as peak:
            icl_bases(backbone, pool, replace(HOW, prompts=prompts, queries_per_set=4), Randomness(0), tmp_path)
        peaks.append(peak.bytes)
    dims = backbone.dims
    one = dims.layers * (dims.heads + dims.kv_heads) * dims.head_dim * 4  # bytes of the vectors of a prompt
    assert peaks[1] - peaks[0] < 4 * one
