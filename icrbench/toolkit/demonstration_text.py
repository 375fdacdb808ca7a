"""Demonstrations as one text, as they stand before a query, and where its parts are among the tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Formatter

from icrbench.backbone import Backbone
from icrbench.backbone.spans import tokens_at
from icrbench.data.task import DEMONSTRATION_SEPARATOR
from icrbench.scoring.prompting import MAX_QUERY_TOKENS
from icrbench.toolkit.episodes import Labelled


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations as one text, the separator behind the last one with it.

    Attributes:
        shown: first to last.
        text: all of it.
        tokens: of the text.
    """

    shown: tuple[Labelled, ...]
    text: str
    tokens: tuple[int, ...]

    @classmethod
    def fitting(cls, backbone: Backbone, shown: Sequence[Labelled], most: int | None = None) -> "Demonstrations":
        """As many of the last ones as leave a query room, and have no more than ``most`` tokens; at least one."""
        limit = backbone.max_length - min(MAX_QUERY_TOKENS, backbone.max_length // 2)
        limit = limit if most is None else min(most, limit)
        shown = tuple(shown)
        while True:
            text = "".join(own.task.demonstration(own.example) + DEMONSTRATION_SEPARATOR for own in shown)
            tokens = tuple(backbone.encode(text))
            if len(tokens) <= limit or len(shown) == 1:
                return cls(shown, text, tokens)
            shown = shown[1:]

    def anchors(self, backbone: Backbone, labels_only: bool) -> list[int]:
        """Numbers of the tokens that hold labels and, unless they are left out, words and line breaks of templates."""
        characters = []
        for start, own in self._starts():
            end = start + len(own.task.demonstration(own.example))
            characters += [*range(end - len(own.task.answer(own.example)), end)]
            if not labels_only:
                characters += [start + place for place in _format_characters(own)] + [end]
        chosen = [place for place in characters if self.text[place] == "\n" or not self.text[place].isspace()]
        return sorted({*tokens_at(backbone, self.text, chosen), *([0] if backbone.adds_bos else [])})

    def cues(self, backbone: Backbone) -> list[int]:
        """Return the number of the token that predicts each demonstration's label: the last of its answer cue."""
        ends = [start + len(own.task.prompt(own.example)) - 1 for start, own in self._starts()]
        return tokens_at(backbone, self.text, ends)

    def labels(self, backbone: Backbone) -> list[int]:
        """Return the number of the first token of each demonstration's label."""
        ends = [start + len(own.task.demonstration(own.example)) for start, own in self._starts()]
        lengths = [len(own.task.answer(own.example)) for own in self.shown]
        return tokens_at(backbone, self.text, [end - length for end, length in zip(ends, lengths, strict=True)])

    def spans(self, backbone: Backbone) -> list[tuple[int, int]]:
        """First and behind the last token of each demonstration with the separator behind it; BOS is in none."""
        starts = tokens_at(backbone, self.text, [start for start, _ in self._starts()])
        return list(zip(starts, [*starts[1:], len(self.tokens)], strict=True))

    def _starts(self) -> Iterator[tuple[int, Labelled]]:
        """Each demonstration with the place of its first character."""
        start = 0
        for own in self.shown:
            yield start, own
            start += len(own.task.demonstration(own.example)) + len(DEMONSTRATION_SEPARATOR)


def _format_characters(own: Labelled) -> list[int]:
    """Places in a prompt of the characters that its template puts there."""
    places: list[int] = []
    start = 0
    for literal, name, _, _ in Formatter().parse(own.task.template):
        places += range(start, start + len(literal))
        start += len(literal) + (len(own.example.fields[name]) if name else 0)
    return [place for place in places if place < len(own.task.prompt(own.example))]
