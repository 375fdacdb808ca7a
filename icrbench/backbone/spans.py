"""Where a character of a text is among its tokens."""

from bisect import bisect_right
from collections.abc import Sequence

from icrbench.backbone import Backbone
from icrbench.util.errors import UserError


def tokens_at(backbone: Backbone, text: str, characters: Sequence[int]) -> list[int]:
    """For each character of a text, the place in ``backbone.encode(text)`` of the token that holds it.

    Of a character spread over several tokens (bytes) it is the last. White space that a tokenizer counts to no token
    belongs to the token before it: ask for the first letter of a word, not for the space before it.

    Args:
        backbone: the model whose tokenizer it is.
        text: the whole text.
        characters: places in it, each from 0 to ``len(text) - 1``.
    """
    return _located(backbone, text, characters)[1]


def columns_at(backbone: Backbone, tokens: Sequence[int], text: str, characters: Sequence[int]) -> list[int | None]:
    """As `tokens_at`, for tokens from which the front of the text may be missing, since it did not fit the model.

    Args:
        backbone: the model whose tokenizer it is.
        tokens: what the model is given, without padding: all tokens of the text or its last ones, behind BOS if the
            model has one. White space at the text's end may be missing too (lm-evaluation-harness counts it to the
            continuation).
        text: the whole text.
        characters: places in it.

    Returns:
        Places in ``tokens``; None for characters that are missing.

    Raises:
        ValueError: if these are not the tokens of the text.
        UserError: if they stand in the frame of a chat template.
    """
    if backbone.chat is not None:
        raise UserError("demonstrations cannot be found inside a chat template's turn: run without --chat-template.")
    bos = int(backbone.adds_bos)
    for candidate in dict.fromkeys((text, text.rstrip())):
        whole, places = _located(backbone, candidate, characters)
        missing = len(whole) - len(tokens)
        columns = [place - missing if place - missing >= bos else None for place in places]
        kept = [column for column in columns if column is not None]
        start = min(kept, default=len(tokens) - 1)
        if missing >= 0 and list(tokens[start:]) == whole[start + missing :]:
            return columns
    raise ValueError("these tokens do not come from this text")


def _located(backbone: Backbone, text: str, characters: Sequence[int]) -> tuple[list[int], list[int]]:
    # As Backbone.encode does it, which cannot return offsets.
    encoded = backbone.tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    ids: list[int] = encoded.input_ids
    starts = [start for start, _ in encoded.offset_mapping]
    bos = int(backbone.adds_bos)
    whole = [backbone.tokenizer.bos_token_id, *ids] if bos else ids
    return whole, [max(0, bisect_right(starts, character) - 1) + bos for character in characters]
