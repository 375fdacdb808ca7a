"""From examples to tokens: the whole prompt, cut where it must be, and the token of each answer option."""

from collections.abc import Sequence
from dataclasses import dataclass

from icrbench.backbone import Backbone
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Example, Task
from icrbench.util.errors import UserError

MAX_QUERY_TOKENS = 512  # ICR paper, Sec. 3.1: inputs are cut at 512 tokens


@dataclass(frozen=True)
class Prompt:
    """What one query becomes.

    Attributes:
        tokens: all of it, with demonstrations and BOS.
        text: the query part alone, as cut: what per-query methods condition on.
        options: token id of each answer option at the place where the prompt ends.
        truncated: whether the query's text was cut.
        dropped: demonstrations left out because the whole did not fit the model.
    """

    tokens: tuple[int, ...]
    text: str
    options: tuple[int, ...]
    truncated: bool
    dropped: int


def cut_front(backbone: Backbone, text: str, limit: int) -> str:
    """The longest end of ``text`` that is at most ``limit`` tokens: the front goes, the answer cue stays."""
    if len(backbone.encode(text)) <= limit:
        return text
    fits, too_long = len(text), 0  # cutting `fits` characters is enough, cutting `too_long` is not
    while fits - too_long > 1:
        middle = (fits + too_long) // 2
        if len(backbone.encode(text[middle:])) <= limit:
            fits = middle
        else:
            too_long = middle
    return text[fits:]


class Prompter:
    """Makes the prompts of one task for one model."""

    def __init__(self, backbone: Backbone, task: Task, max_query_tokens: int = MAX_QUERY_TOKENS) -> None:
        self._backbone = backbone
        self._task = task
        self._limit = min(max_query_tokens, backbone.max_length)
        self._options: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    def __call__(self, example: Example, demonstrations: Sequence[str] = ()) -> Prompt:
        """The prompt for a query after some demonstrations, the first of which are dropped if the whole is too long."""
        whole = self._task.prompt(example)
        text = cut_front(self._backbone, whole, self._limit)
        kept = list(demonstrations)
        while True:
            tokens = self._backbone.encode(DEMONSTRATION_SEPARATOR.join([*kept, text]))
            if len(tokens) <= self._backbone.max_length or not kept:
                break
            kept.pop(0)
        return Prompt(
            tokens=tuple(tokens),
            text=text,
            options=self.option_tokens(whole, example.options),
            truncated=text != whole,
            dropped=len(demonstrations) - len(kept),
        )

    def option_tokens(self, prompt: str, options: tuple[str, ...]) -> tuple[int, ...]:
        """First token of each option as it continues the prompt; found from the prompt's last line.

        Each option is tried with a space before it, as templates end without one; if two options then start with the
        same token, without it. Prompt and option are tokenised together, since a tokenizer may treat the start of a
        text in its own way.

        Raises:
            UserError: if two options share their token either way, or an option's characters fuse with the prompt's.
        """
        cue = prompt.rsplit("\n", 1)[-1]
        key = (cue, options)
        if key not in self._options:
            spaced = [self._continuation(cue, " " + option) for option in options]
            plain = [self._continuation(cue, option) for option in options]
            found = next((ids for ids in (spaced, plain) if None not in ids and len(set(ids)) == len(ids)), None)
            if found is None:
                clash = _clash(options, spaced)
                raise UserError(
                    f"task '{self._task.name}' cannot be scored with model '{self._backbone.revision.name}': {clash}"
                    f" after '{cue}' on its tokenizer; give the task other option words."
                )
            self._options[key] = tuple(token for token in found if token is not None)
        return self._options[key]

    def _continuation(self, cue: str, text: str) -> int | None:
        """First token that ``text`` adds to ``cue``, or None if it changes the tokens of ``cue`` itself."""
        before, after = self._backbone.encode(cue), self._backbone.encode(cue + text)
        return after[len(before)] if after[: len(before)] == before and len(after) > len(before) else None


def _clash(options: Sequence[str], ids: Sequence[int | None]) -> str:
    """Which options cannot be told apart, in words."""
    seen: dict[int | None, str] = {}
    for option, token in zip(options, ids, strict=True):
        if token is None:
            return f"option '{option}' fuses with the prompt"
        if token in seen:
            return f"options '{seen[token]}' and '{option}' start with one token"
        seen[token] = option
    return "its options cannot be told apart"
