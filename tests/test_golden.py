"""What the authors' own code gave on a tiny seeded model, and what this project gives for the same inputs.

``golden/METHOD.json`` says how its numbers were made: repository, commit, functions, inputs, seeds, versions. They are
data, not ours to change: a test that fails here says that a method has drifted from its authors.
"""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from icr_setup import demo_pool
from icrbench.backbone import Backbone, Revision, make_batch
from icrbench.backbone.sites import Site, captured
from icrbench.backbone.virtual import virtual_tokens
from icrbench.data.find_tasks import load_tasks
from icrbench.method import Fitted
from icrbench.methods.function_vector import _strongest, contributions, indirect_effects
from icrbench.methods.i2cl import I2CL, context_vectors
from icrbench.methods.icv import shift, states
from icrbench.methods.ltv import LTV, LTVFitted
from icrbench.methods.mimic import MimICFitted
from icrbench.methods.task_vector import TaskVectorFitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.prompting import Prompt
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import Attempt, Lesson
from icrbench.toolkit.episodes import Labelled, Question
from icrbench.toolkit.reading import last_token_vectors
from tiny import LAYERS, tiny_backbone, tiny_model, tokenizer

FOLDER = Path(__file__).parent / "golden"
BLOCKS = [Site("block", layer) for layer in range(LAYERS)]


def golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The inputs of a method's numbers, and the numbers."""
    stored = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return stored["inputs"], {key: torch.tensor(value) for key, value in stored["expected"].items()}


def close(found: Tensor, wanted: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found.detach().float(), wanted.float(), rtol=1e-5, atol=atol)


def asked(backbone: Backbone, text: str, options: tuple[int, ...] = (), label: int = 0) -> Question:
    """A prompt as it stands."""
    return Question(Prompt(tuple(backbone.encode(text)), text, options, truncated=False, dropped=0), label)


def of_tokens(tokens: list[int], answer: int = 0) -> Question:
    return Question(Prompt(tuple(tokens), "", (answer,), truncated=False, dropped=0), 0)


def logits(backbone: Backbone, fitted: Fitted, text: str) -> Tensor:
    batch = make_batch([backbone.encode(text)], [text])
    with torch.no_grad(), fitted.applied(backbone, batch):
        return backbone.logits(batch.at_last(backbone.hidden_states(batch)))[0]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_says_how_its_numbers_were_made(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    assert stored["method"] == path.stem
    assert stored["repository"].startswith("https://")
    assert len(stored["commit"]) == 40
    assert {"torch", "transformers"} <= set(stored["made_with"])
    assert stored["how"]
    assert stored["inputs"]
    assert stored["expected"]


def test_task_vectors_and_what_they_do() -> None:
    given, wanted = golden("task_vector")
    backbone = tiny_backbone("llama")
    found = last_token_vectors(backbone, [asked(backbone, text) for text in given["few_shot_prompts"]], BLOCKS)
    vectors = torch.stack([found[site].mean(0) for site in BLOCKS])
    close(vectors, wanted["vectors"], atol=5e-5)  # of some ten; prompts are padded on their side
    for layer, row in zip(given["blocks"], wanted["logits"], strict=True):
        fitted = TaskVectorFitted({"layer": layer, "sweep": []}, {"vector": vectors[layer]})
        close(logits(backbone, fitted, given["zero_shot_prompt"])[: len(row)], row, atol=2e-5)


def test_function_vector_from_head_means_and_indirect_effects() -> None:
    given, wanted = golden("function_vector")
    backbone = tiny_backbone("llama")
    sites = [Site("heads", layer) for layer in range(LAYERS)]
    outputs = last_token_vectors(backbone, [of_tokens(tokens) for tokens in given["clean"]], sites)
    means = torch.stack([outputs[site].mean(0).unflatten(-1, (backbone.dims.heads, -1)) for site in sites])
    close(means, wanted["means"])
    permuted = [of_tokens(tokens, answer) for tokens, answer in zip(given["permuted"], given["answers"], strict=True)]
    effects = indirect_effects(backbone, permuted, means)
    close(effects, wanted["effects"], atol=1e-6)
    heads = _strongest(effects, len(wanted["heads"]))
    assert heads == [tuple(head) for head in wanted["heads"].tolist()]
    added = [contributions(backbone, site.layer, outputs[site]) for site in sites]
    close(torch.stack([added[layer][head] for layer, head in heads]).sum(0), wanted["vector"])


def test_in_context_vector_directions() -> None:
    given, wanted = golden("icv")
    backbone = tiny_backbone("llama")
    plain, answered = ([pair[place] for pair in given["pairs"]] for place in (0, 1))
    close(shift(states(backbone, answered) - states(backbone, plain), "code"), wanted["directions"][1:], atol=3e-5)


class Replayed:
    """The authors' draws in the place of ours."""

    def __init__(self, minibatches: list[list[int]], seed: int) -> None:
        self._minibatches = iter(minibatches)
        self._seed = seed

    def python(self, *_purpose: str) -> random.Random:
        draw = SimpleNamespace(sample=lambda rows, _size: [rows[row] for row in next(self._minibatches)])
        return cast(random.Random, draw)

    def torch(self, *_purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)


def test_i2cl_coefficients_after_a_hundred_noisy_steps() -> None:
    given, wanted = golden("i2cl")
    backbone = tiny_backbone("llama")
    options = tuple(backbone.encode(word)[0] for word in given["options"])
    questions = [
        asked(backbone, text, options, label) for text, label in zip(given["prompts"], given["labels"], strict=True)
    ]
    vectors = context_vectors(backbone, given["texts"])
    close(vectors, wanted["vectors"])
    assert len(given["minibatches"]) == 100
    rng = cast(Randomness, Replayed(given["minibatches"], given["noise_seed"]))
    coefficients, loss = I2CL(epochs=given["epochs"])._calibrate(backbone, questions, vectors, rng)
    close(coefficients, wanted["coefficients"])
    assert len(loss) == given["epochs"]


def test_mimic_shifts_of_every_block_and_its_distance() -> None:
    given, wanted = golden("mimic")
    backbone = tiny_backbone("llama")
    tensors = {name: torch.tensor(given[name]) for name in ("shifts", "probes", "biases")}
    batch = make_batch([backbone.encode(given["prompt"])], [given["prompt"]])
    for layer, heads in enumerate(wanted["heads"]):
        only = torch.zeros_like(tensors["shifts"])  # a shift of 0 changes nothing, so the blocks before are untouched
        only[layer] = tensors["shifts"][layer]
        fitted, site = MimICFitted({}, {**tensors, "shifts": only}), Site("heads", layer)
        with torch.no_grad(), fitted.applied(backbone, batch), captured(backbone, [site]) as seen:
            backbone.hidden_states(batch)
        close(seen[site][0, -1].view_as(heads), heads, atol=2e-5)


def test_mimic_distance_is_a_mean_over_queries_of_means_over_tokens() -> None:
    given, wanted = golden("mimic")
    student, teacher = ([torch.tensor(own) for own in given[side]] for side in ("student", "teacher"))
    sites = [Site("mlp", layer) for layer in range(2)]
    lengths = [own.shape[1] for own in student]
    batch = make_batch([[0] * (length + 1) for length in lengths], [""] * 2)
    held = {site: torch.zeros(2, max(lengths) + 1, 3) for site in sites}
    lessons = []
    for row, length in enumerate(lengths):
        for site in sites:
            held[site][row, 1 : length + 1] = student[row][site.layer]
        lessons.append(Lesson(of_tokens([0]), vectors={site: teacher[row][site.layer] for site in sites}))
    found = Attempt(tiny_backbone("llama"), lessons, batch, torch.zeros(2, 1), held).distance()
    close(found, wanted["distance"])


def test_linear_task_vectors_in_the_released_form() -> None:
    given, wanted = golden("ltv")
    backbone = tiny_backbone("llama")
    zero_shot = [asked(backbone, text) for text in given["queries"]]
    few_shot = [asked(backbone, given["demonstrations"] + text) for text in given["queries"]]
    fitted = LTV(ridge=given["ridge"]).solved(backbone, zero_shot, few_shot)
    matrix = fitted.tensors["matrix"]
    close(matrix.diagonal(), wanted["matrix_diagonal"])
    close(matrix.sum(1), wanted["matrix_times_ones"])
    constant = LTV(variant="constant").solved(backbone, zero_shot, few_shot)
    close(constant.tensors["mean"], wanted["mean_shift"])
    for text, row in zip(given["asked"], wanted["logits"], strict=True):
        close(logits(backbone, cast(LTVFitted, fitted), text)[: len(row)], row, atol=5e-5)


def with_words(words: list[str]) -> PreTrainedTokenizerFast:
    """The byte tokenizer with one token for each of some words behind a space."""
    vocabulary, merges = dict(tokenizer().get_vocab()), []
    for word in (word.replace(" ", "Ġ") for word in words):
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = max(vocabulary.values()) + 1
                merges.append((word[:end], word[end]))
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def test_label_anchors_keep_the_same_tokens_and_give_the_same_logits() -> None:
    given, wanted = golden("label_anchor")
    backbone = Backbone(tiny_model("gpt2"), with_words(given["words"]), Revision("tiny", "tiny", ""))
    task, row = load_tasks()["sst2"], demo_pool("sst2").train[0]
    (field,) = row.fields
    shown = [
        Labelled(task, replace(row, fields={field: text}, label=row.options.index(label)))
        for text, label in given["demonstrations"]
    ]
    demonstrations = Demonstrations.fitting(backbone, shown)
    kept = demonstrations.anchors(backbone, labels_only=False)
    assert kept == wanted["kept"].int().tolist()
    with torch.no_grad():
        virtual = virtual_tokens(backbone, demonstrations.tokens).kept(kept)
    queries = [task.prompt(replace(row, fields={field: text})) for text in given["queries"]]
    assert [backbone.encode(text) for text in queries] == given["query_tokens"]
    for places in ("restart", "keep"):
        fitted = make_method("label_anchor", {"places": places})._fitted(virtual, [])  # type: ignore[attr-defined]
        for text, logits_there in zip(queries, wanted[places], strict=True):
            close(logits(backbone, fitted, text)[: len(logits_there)], logits_there, atol=5e-5)
