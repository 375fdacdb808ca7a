from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from icrbench.backbone import Backbone
from icrbench.data.find_tasks import load_tasks
from icrbench.data.task import Example, Task
from icrbench.scoring.prompting import MAX_QUERY_TOKENS, Prompter, cut_front
from icrbench.util.errors import UserError
from tiny import tiny_backbone
from tiny import tokenizer as bytes_only
from vocabularies import backbone_with, byte_level, sentence_piece

SST2 = load_tasks()["sst2"]
KINDS = pytest.mark.parametrize("kind", [byte_level, sentence_piece])
Kind = Callable[..., PreTrainedTokenizerFast]


def review(text: str, options: tuple[str, ...] = SST2.options) -> Example:
    return Example("sst2/test/0", {"text": text}, options, 0, "0" * 16)


def pieces(backbone: Backbone, ids: tuple[int, ...]) -> list[str]:
    return list(backbone.tokenizer.convert_ids_to_tokens(list(ids)))


def with_options(*options: str, template: str = SST2.template) -> tuple[Task, Example]:
    task = replace(SST2, options=options, template=template)
    return task, review("dull", options)


@pytest.mark.parametrize(("kind", "space"), [(byte_level, "Ġ"), (sentence_piece, "▁")])
def test_an_option_is_the_token_of_its_word_with_a_space(kind: Kind, space: str) -> None:
    backbone = backbone_with(kind())
    prompt = Prompter(backbone, SST2)(review("dull film"))
    assert pieces(backbone, prompt.options) == [f"{space}negative", f"{space}positive"]
    # What the model would read if the answer stood there.
    for option, token in zip(SST2.options, prompt.options, strict=True):
        assert backbone.encode(f"{prompt.text} {option}")[len(prompt.tokens)] == token


@KINDS
def test_options_of_several_tokens_are_told_apart_by_the_first(kind: Kind) -> None:
    backbone = backbone_with(kind())
    task, example = with_options("yes indeed", "no way", "positive thing")
    first = [token.strip("Ġ▁") for token in pieces(backbone, Prompter(backbone, task)(example).options)]
    assert first == ["yes", "no", "positive"]


@pytest.mark.parametrize(
    ("tokenizer", "options"),
    [(sentence_piece(), ("A", "B")), (sentence_piece(), ("é", "日")), (bytes_only(), ("A", "B"))],
)
def test_where_the_space_is_a_token_of_its_own_options_go_without(
    tokenizer: PreTrainedTokenizerFast, options: tuple[str, ...]
) -> None:
    backbone = backbone_with(tokenizer)
    task, example = with_options(*options)
    prompt = Prompter(backbone, task)(example)
    spaced = {backbone.encode(f"{prompt.text} {option}")[len(prompt.tokens)] for option in options}
    assert len(spaced) == 1
    for option, token in zip(options, prompt.options, strict=True):
        assert backbone.encode(prompt.text + option)[len(prompt.tokens)] == token


def test_letters_that_share_their_first_byte_cannot_be_told_apart() -> None:
    task, example = with_options("é", "ü")  # both <0xC3>
    with pytest.raises(UserError, match="'é' and 'ü' start with one token"):
        Prompter(backbone_with(sentence_piece()), task)(example)


@KINDS
def test_options_that_start_alike_are_named(kind: Kind) -> None:
    task, example = with_options("positive", "negative", "negative indeed")
    with pytest.raises(UserError) as caught:
        Prompter(backbone_with(kind()), task)(example)
    message = str(caught.value)
    assert message.count("\n") == 0
    for part in [
        "task 'sst2'",
        "model 'tiny'",
        "'negative' and 'negative indeed'",
        "after 'Sentiment:'",
        "other option",
    ]:
        assert part in message


def test_an_option_that_fuses_with_the_cue_is_not_scored() -> None:
    backbone = backbone_with(byte_level())
    task, example = with_options("itive", "xyz", template="Review: {text}\npos")
    assert len(backbone.encode("positive")) == 1  # so without a space there is no token for "itive" alone
    assert backbone.encode("pos itive")[1] == backbone.encode("pos xyz")[1]
    with pytest.raises(UserError, match="'itive' and 'xyz' start with one token after 'pos'"):
        Prompter(backbone, task)(example)


def test_each_question_has_the_options_it_has() -> None:
    task = load_tasks()["ai2scie"]
    fields = {"question": "dull?", "choices": "A. a\nB. b\nC. c", "letters": "A/B/C"}
    backbone = tiny_backbone("llama")
    prompter = Prompter(backbone, task)
    three = prompter(Example("", fields, ("A", "B", "C"), 0, ""))
    four = prompter(Example("", {**fields, "letters": "A/B/C/D"}, ("A", "B", "C", "D"), 0, ""))
    assert pieces(backbone, three.options) == ["A", "B", "C"]
    assert pieces(backbone, four.options) == ["A", "B", "C", "D"]


@KINDS
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_first_token_is_there_once_or_never(kind: Kind, family: str, adds_bos: bool) -> None:
    backbone = backbone_with(kind(adds_bos), family)
    assert backbone.adds_bos == (adds_bos or family == "gemma3")
    bos = backbone.tokenizer.bos_token_id
    for text in ("dull film", "<s>dull", "film <s><s> dull", "</s>", ""):
        tokens = Prompter(backbone, SST2)(review(text), [f"Review: {text}\nSentiment: positive"]).tokens
        assert list(tokens).count(bos) == backbone.adds_bos
        assert (tokens[0] == bos) == backbone.adds_bos
        assert backbone.tokenizer.eos_token_id not in tokens


def test_a_tokenizer_without_such_a_token_gets_none() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level().backend_tokenizer)
    backbone = backbone_with(tokenizer)
    assert not backbone.adds_bos
    assert backbone.encode("dull") == tokenizer("dull").input_ids


@KINDS
def test_spelled_out_special_tokens_are_read_as_text(kind: Kind) -> None:
    backbone = backbone_with(kind())
    tokens = backbone.encode("dull <s> film")
    assert backbone.tokenizer.decode(tokens[backbone.adds_bos :]).strip() == "dull <s> film"


@pytest.mark.parametrize(
    "tokenizer", [byte_level(True), sentence_piece(), bytes_only()], ids=["byte", "piece", "bytes"]
)
@pytest.mark.parametrize("letter", ["film ", "x", "é", "日本", "🙂"])
def test_a_long_text_loses_its_front_and_keeps_the_cue(tokenizer: PreTrainedTokenizerFast, letter: str) -> None:
    backbone = backbone_with(tokenizer)
    example = review(letter * 3000)
    prompt = Prompter(backbone, SST2)(example)
    whole = SST2.prompt(example)
    assert prompt.truncated
    assert MAX_QUERY_TOKENS - 8 < len(prompt.tokens) <= MAX_QUERY_TOKENS
    assert whole.endswith(prompt.text)
    assert prompt.text.endswith(f"{letter}\nSentiment:")
    assert prompt.tokens == tuple(backbone.encode(prompt.text))
    assert prompt.options == Prompter(backbone, SST2)(review("dull")).options


def test_a_text_that_just_fits_is_left_whole() -> None:
    backbone = tiny_backbone("llama")  # one token a byte
    room = MAX_QUERY_TOKENS - len("Review: \nSentiment:")
    fits, over = (Prompter(backbone, SST2)(review("x" * count)) for count in (room, room + 1))
    assert (fits.truncated, len(fits.tokens)) == (False, MAX_QUERY_TOKENS)
    assert (over.truncated, len(over.tokens)) == (True, MAX_QUERY_TOKENS)


def test_the_longest_end_is_kept() -> None:
    backbone = tiny_backbone("llama")
    assert cut_front(backbone, "abcdefgh", 3) == "fgh"
    assert cut_front(backbone, "abc", 3) == "abc"
    assert cut_front(backbone, "ééé", 3) == "é"  # two bytes each: no half letters


def test_a_model_with_less_room_cuts_more() -> None:
    backbone = backbone_with(bytes_only(), max_length=64)
    prompt = Prompter(backbone, SST2)(review("x" * 300), [SST2.demonstration(review("dull"))])
    assert (len(prompt.tokens), prompt.truncated, prompt.dropped) == (64, True, 1)


def test_demonstrations_stand_before_the_query_one_a_line() -> None:
    backbone = tiny_backbone("llama")
    shown = [SST2.demonstration(review(text)) for text in ("first", "second")]
    prompt = Prompter(backbone, SST2)(review("third"), shown)
    wanted = "Review: first\nSentiment: negative\nReview: second\nSentiment: negative\nReview: third\nSentiment:"
    assert backbone.tokenizer.decode(list(prompt.tokens)) == wanted
    assert prompt.text == "Review: third\nSentiment:"
    assert (prompt.dropped, prompt.truncated) == (0, False)


def test_demonstrations_that_do_not_fit_go_from_the_front() -> None:
    backbone = tiny_backbone("gpt2")  # 512 positions
    shown = [SST2.demonstration(review(f"number {number}")) for number in range(40)]
    prompt = Prompter(backbone, SST2)(review("the query"), shown)
    assert 0 < prompt.dropped < 40
    assert not prompt.truncated
    kept = "\n".join([*shown[prompt.dropped :], prompt.text])
    assert backbone.tokenizer.decode(list(prompt.tokens)) == kept
    assert len(prompt.tokens) <= 512 < len(prompt.tokens) + len(shown[prompt.dropped - 1]) + 1


def test_a_long_query_is_cut_before_demonstrations_are_counted() -> None:
    backbone = tiny_backbone("llama")
    shown = [SST2.demonstration(review("dull"))] * 3
    prompt = Prompter(backbone, SST2)(review("x" * 5000), shown)
    assert (prompt.truncated, prompt.dropped) == (True, 0)
    assert len(prompt.tokens) == MAX_QUERY_TOKENS + 3 * (len(shown[0]) + 1)
