"""The token of a character, on tokenizers of both kinds, and in prompts whose front was cut."""

import pytest

from icrbench.backbone import Backbone
from icrbench.backbone.spans import columns_at, tokens_at
from tiny import tiny_backbone
from vocabularies import backbone_with, byte_level, sentence_piece

TEXT = "Review: dull film\nSentiment: negative\nReview: film\nSentiment:"
KINDS = {
    "byte_level": lambda: backbone_with(byte_level()),
    "byte_level, BOS": lambda: backbone_with(byte_level(adds_bos=True)),
    "sentence_piece": lambda: backbone_with(sentence_piece()),
    "one token a byte": lambda: tiny_backbone("llama"),
    "one token a byte, BOS": lambda: tiny_backbone("gemma3"),
}


@pytest.fixture(params=KINDS)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return KINDS[request.param]()


def decoded(backbone: Backbone, tokens: list[int]) -> str:
    text = str(backbone.tokenizer.decode(tokens, skip_special_tokens=True)).strip()
    return text.replace("\n", "")  # which the toy sentence-piece decoder cannot spell


def test_the_tokens_up_to_a_character_spell_the_text_up_to_it(backbone: Backbone) -> None:
    ends = [place for place, letter in enumerate(TEXT) if letter in ":\n"]  # of words: no token goes on after them
    tokens = backbone.encode(TEXT)
    for end, place in zip(ends, tokens_at(backbone, TEXT, ends), strict=True):
        assert decoded(backbone, tokens[: place + 1]) == TEXT[: end + 1].replace("\n", "")


def test_the_first_letter_of_a_word_is_in_the_words_own_token(backbone: Backbone) -> None:
    word = TEXT.index("negative")
    first, last = tokens_at(backbone, TEXT, [word, word + len("negative") - 1])
    assert decoded(backbone, backbone.encode(TEXT)[first : last + 1]) == "negative"


def test_a_character_of_several_tokens_is_at_the_last_of_them() -> None:
    backbone = tiny_backbone("llama")
    assert tokens_at(backbone, "aéb", [0, 1, 2]) == [0, 2, 3]
    assert tokens_at(tiny_backbone("gemma3"), "aéb", [0, 1, 2]) == [1, 3, 4]


def test_columns_of_a_whole_prompt_are_its_tokens(backbone: Backbone) -> None:
    characters = list(range(0, len(TEXT), 5))
    assert columns_at(backbone, backbone.encode(TEXT), TEXT, characters) == tokens_at(backbone, TEXT, characters)


def test_characters_that_were_cut_have_no_column(backbone: Backbone) -> None:
    kept = TEXT[TEXT.rindex("Review:") :]
    tokens = backbone.encode(kept)
    inside = kept.rindex(":") - 1
    found = columns_at(backbone, tokens, TEXT, [3, len(TEXT) - len(kept) + inside, len(TEXT) - 1])
    assert found == [None, *tokens_at(backbone, kept, [inside]), len(tokens) - 1]


def test_white_space_at_the_end_may_be_missing(backbone: Backbone) -> None:
    tokens = backbone.encode(TEXT)
    assert columns_at(backbone, tokens, TEXT + " ", [len(TEXT) - 1]) == [len(tokens) - 1]


def test_tokens_of_another_text_are_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="do not come from"):
        columns_at(backbone, backbone.encode(TEXT), TEXT.replace("dull", "no"), [0])
