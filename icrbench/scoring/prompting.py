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
        options: first token of each answer option at the place where the prompt ends; where answers are written, that
            of the right one alone.
        truncated: whether the query's text was cut.
        dropped: demonstrations left out because the whole did not fit the model.
        continuations: all tokens of each option, where whole options are scored (``answer: sum`` or ``mean``).
        written: whether the answer is written: any token might be its first.
    """

    tokens: tuple[int, ...]
    text: str
    options: tuple[int, ...]
    truncated: bool
    dropped: int
    continuations: tuple[tuple[int, ...], ...] = ()
    written: bool = False


def cut_front(backbone: Backbone, text: str, limit: int) -> str:
    """Cut ``text`` to its longest end of at most ``limit`` tokens: the front goes, the answer cue stays."""
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
        self._most_query_tokens = max_query_tokens
        self._options: dict[tuple[str, tuple[str, ...]], tuple[tuple[int, ...], ...]] = {}

    def __call__(self, example: Example, demonstrations: Sequence[str] = ()) -> Prompt:
        """Make the prompt of a query after demonstrations; the first of them are dropped if the whole is too long."""
        whole = self._task.prompt(example)
        options = self._option_tokens(whole, example.options)
        # What is read beyond the prompt: an option's or an answer's tokens, but for the last.
        beyond = max(map(len, options)) if self._task.scores_whole_options else self._task.max_new_tokens
        longest = self._backbone.max_length - max(0, beyond - 1)
        framed = len(self._backbone.encode_prompt("")) - len(self._backbone.encode(""))
        text = cut_front(self._backbone, whole, min(self._most_query_tokens, longest - framed))
        kept = list(demonstrations)
        while True:
            tokens = self._backbone.encode_prompt(DEMONSTRATION_SEPARATOR.join([*kept, text]))
            if len(tokens) <= longest or not kept:
                break
            kept.pop(0)
        return Prompt(
            tokens=tuple(tokens),
            text=text,
            options=tuple(option[0] for option in options),
            truncated=text != whole,
            dropped=len(demonstrations) - len(kept),
            continuations=options if self._task.scores_whole_options else (),
            written=self._task.answer_form == "generate",
        )

    def check(self, example: Example) -> None:
        """Find out, before any work, whether the options can be told apart.

        Raises:
            UserError: if two options are scored by the same tokens, or an option's characters fuse with the prompt's.
        """
        self._option_tokens(self._task.prompt(example), example.options)

    def _option_tokens(self, prompt: str, options: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Tokens of each option as it continues the prompt; found from the prompt's last line.

        Each option is tried with a space before it, as templates end without one; if two options are then scored by
        the same tokens (the first one, or all where options are scored whole), without it. Prompt and option are
        tokenised together, since a tokenizer may treat the start of a text in its own way.

        Raises:
            UserError: as ``check``.
        """
        cue = prompt.rsplit("\n", 1)[-1]
        key = (cue, options)
        if key not in self._options:
            spaced = [self._continuation(cue, " " + option) for option in options]
            plain = [self._continuation(cue, option) for option in options]
            # A turn of its own starts without a space.
            first, second = (spaced, plain) if self._backbone.chat is None else (plain, spaced)
            found = next((ids for ids in (first, second) if self._apart(ids)), None)
            if found is None:
                clash = _clash(options, list(map(self._scored, first)))
                way = "give the task other option words"
                if self._task.answer_form == "first_token" and self._apart(first, whole=True):
                    way += ", or score its options whole (answer: sum or answer: mean)"
                raise UserError(
                    f"task '{self._task.name}' cannot be scored with model '{self._backbone.revision.name}': {clash}"
                    f" after '{cue}' on its tokenizer; {way}."
                )
            self._options[key] = tuple(tokens for tokens in found if tokens is not None)
        return self._options[key]

    def _scored(self, tokens: tuple[int, ...] | None, whole: bool = False) -> tuple[int, ...] | None:
        """Return the tokens by which an option is scored."""
        return tokens if tokens is None or whole or self._task.scores_whole_options else tokens[:1]

    def _apart(self, options: Sequence[tuple[int, ...] | None], whole: bool = False) -> bool:
        """Whether every option has tokens of its own to be scored by."""
        scored = [self._scored(tokens, whole) for tokens in options]
        return None not in scored and len(set(scored)) == len(scored)

    def _continuation(self, cue: str, text: str) -> tuple[int, ...] | None:
        """Return the tokens that ``text`` adds to what it follows, or None if it changes the tokens of that itself.

        It follows ``cue``, or in a chat the opening of the model's turn.
        """
        if self._backbone.chat is None:
            before, after = self._backbone.encode(cue), self._backbone.encode(cue + text)
        else:
            before, after = self._backbone.encode_answer(""), self._backbone.encode_answer(text)
        return tuple(after[len(before) :]) if after[: len(before)] == before and len(after) > len(before) else None


def _clash(options: Sequence[str], scored: Sequence[tuple[int, ...] | None]) -> str:
    """Which options cannot be told apart, in words."""
    seen: dict[tuple[int, ...] | None, str] = {}
    for option, tokens in zip(options, scored, strict=True):
        if tokens is None:
            return f"option '{option}' fuses with the prompt"
        if tokens in seen:
            what = "start with one token" if len(tokens) == 1 else "are the same tokens"
            return f"options '{seen[tokens]}' and '{option}' {what}"
        seen[tokens] = option
    return "its options cannot be told apart"
