"""What a fit holds in memory, against the number of prompts and of demonstrations, at the widths of an 8 B model.

The model is random, with the widths of Llama 3.1 8B and few blocks; a token is a byte. What grows with neither number
at two blocks does not at thirty-two. Peaks are those of the process beyond what it held before the fit.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from icrbench.backbone import Backbone, Revision
from icrbench.backbone.metering import metered
from icrbench.data.find_tasks import get_tasks
from icrbench.data.rows import canonical_rows, to_examples
from icrbench.method import FitData, Pool
from icrbench.methods.icr.bases import Extraction, icl_bases
from icrbench.randomness import Randomness
from icrbench.registry import make_method

ROWS = 4096  # train rows to draw from
BASES = Extraction(0, 1, "balanced", 64, "last", "pre_rope", None)
TAUGHT = {"queries": 8, "batch_size": 4, "epochs": 1, "queries_per_set": 4}


def main() -> None:
    """Print the peak of every fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--prompts", default="64,256,1024", help="of which ICL bases are read")
    parser.add_argument("--demonstrations", default="1,4,16", help="a class, before a teacher's query")
    asked = parser.parse_args()
    backbone, pool = wide_model(asked.blocks), short_texts()
    dims = backbone.dims
    table = []
    with tempfile.TemporaryDirectory() as folder:
        icl_bases(backbone, pool, replace(BASES, prompts=64), Randomness(1), Path(folder))  # buffers that stay
        for count in map(int, asked.prompts.split(",")):
            how = replace(BASES, prompts=count)
            peak = measured(backbone, lambda how=how: icl_bases(backbone, pool, how, Randomness(0), Path(folder)))  # type: ignore[misc]
            entries = count * dims.layers * (dims.heads + dims.kv_heads) * dims.head_dim
            table.append(["ICL bases", f"{count} prompts", peak, entries * (4 + 2 + 2) / 2**20])
        data = FitData({"sst2": pool}, "sst2", Path(folder))
        for name in ("mimic", "live"):
            for count in map(int, asked.demonstrations.split(",")):
                method = make_method(name, {**TAUGHT, "per_class": count})
                peak = measured(backbone, lambda method=method: method.fit(backbone, data, Randomness(0)))  # type: ignore[misc]
                table.append([name, f"{2 * count} demonstrations", peak, None])
    print(tabulate(table, ["fit", "of", "peak, MiB", "if all were collected, MiB"], "github", floatfmt=".0f"))


def measured(backbone: Backbone, fit: Callable[[], Any]) -> float:
    """Most memory held during a fit, beyond what was held before, in MiB."""
    with metered(backbone) as cost:
        fit()
    if cost.peak_bytes is None:
        raise SystemExit("this system does not say how much memory a process takes.")
    return cost.peak_bytes / 2**20


def wide_model(blocks: int) -> Backbone:
    """Return a random model of an 8 B's widths, whose tokens are bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=blocks,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    )
    return Backbone(LlamaForCausalLM(config), byte_tokenizer(), Revision("wide", "wide", "seed0"))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte, which needs no file."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def short_texts() -> Pool:
    """Return made-up rows of a task with two options, all short and of one length."""
    (task,) = get_tasks("sst2")
    rng = random.Random(0)
    rows = [{"sentence": f"{rng.randrange(10**7):07d}", "label": number % 2} for number in range(ROWS)]
    return Pool(task, to_examples(task, "train", canonical_rows("made up", rows)), "made-up")


if __name__ == "__main__":
    main()
