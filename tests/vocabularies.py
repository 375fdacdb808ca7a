"""Tiny tokenizers of the two kinds that matter, trained here so that option words are single tokens."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from icrbench.backbone import Backbone, Revision
from tiny import tiny_model

SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = ["positive", "negative", "Review:", "Sentiment:", "Label:", "film", "dull", "yes", "no"]
CORPUS = [" ".join(WORDS), *(f"{word} {word}" for word in WORDS)] * 20


def _wrapped(core: Tokenizer, adds_bos: bool) -> PreTrainedTokenizerFast:
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def byte_level(adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and Qwen: a space belongs to the word after it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    return _wrapped(core, adds_bos)


@cache
def sentence_piece(adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """As Llama 2: a space is a letter of its own, put before the text too, and unknown letters become bytes."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [chr(letter) for letter in range(33, 127)]
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL + bytes_, initial_alphabet=letters, show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Metaspace()
    core.pre_tokenizer = None  # as the Llama 2 file has it: merges may cross words
    return _wrapped(core, adds_bos)


def backbone_with(tokenizer: PreTrainedTokenizerFast, family: str = "llama", max_length: int = 2048) -> Backbone:
    """A tiny model behind a tokenizer; its vocabulary does not fit, which matters only to forward passes."""
    backbone = Backbone(tiny_model(family), tokenizer, Revision("tiny", "tiny", ""))
    backbone.max_length = max_length
    return backbone
