"""What a fit draws from its pools: demonstrations, queries to follow them, and rows held out to choose by.

All three come from train splits. Held-out rows are set aside first and are never shown or asked in fitting; a query is
never among its own demonstrations; both by content, not by row number.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.data.task import Example, Task
from icrbench.method import FitData, Pool
from icrbench.randomness import Randomness
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.toolkit.demonstrations import balanced, dealt, multi_task, spread

LARGEST_SHARE_HELD_OUT = 3  # at most one row in this many, so that small pools keep rows to fit on


@dataclass(frozen=True)
class Labelled:
    """A train row and the task it belongs to."""

    task: Task
    example: Example


@dataclass(frozen=True)
class Episode:
    """One in-context prompt: demonstrations, first to last, and the query they precede."""

    demonstrations: tuple[Labelled, ...]
    query: Labelled


@dataclass(frozen=True)
class Question:
    """A prompt whose answer is known.

    Attributes:
        prompt: its tokens and options.
        label: index of the right option.
    """

    prompt: Prompt
    label: int

    @property
    def answer(self) -> int:
        """First token of the right option."""
        return self.prompt.options[self.label]

    def answered(self, logits: Tensor) -> bool:
        """Whether logits ``[V]`` put the right answer's first token before those of the other options.

        Where answers are written, before all other tokens.
        """
        if self.prompt.written:
            return int(logits.argmax()) == self.answer
        return self.prompt.options[int(logits[list(self.prompt.options)].argmax())] == self.answer


class Questions:
    """Makes the prompts of any task for one model."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._prompters: dict[str, Prompter] = {}

    def __call__(self, query: Labelled, demonstrations: Sequence[Labelled] = ()) -> Question:
        """Return the prompt of a query after demonstrations."""
        prompter = self._prompters.setdefault(query.task.name, Prompter(self._backbone, query.task))
        texts = [shown.task.demonstration(shown.example) for shown in demonstrations]
        return Question(prompter(query.example, texts), query.example.label)

    def zero_shot(self, queries: Iterable[Labelled]) -> list[Question]:
        """Return the prompts of queries without demonstrations."""
        return [self(query) for query in queries]

    def in_context(self, episodes: Iterable[Episode]) -> list[Question]:
        """Return the prompts of episodes."""
        return [self(episode.query, episode.demonstrations) for episode in episodes]


class Episodes:
    """Draws from the pools of one fit.

    A fit that sees the task's own train split (``data.target`` is set) shows balanced demonstrations of it; one that
    sees only in-domain tasks shows some of each of them (ICR paper, Sec. 3.1).

    Args:
        data: what the fit may see.
        rng: the fit's randomness.
        per_class: demonstrations per class of the task's own.
        per_task: demonstrations per in-domain task, where there is no split of its own.
        held_out: rows set aside, over all pools; fewer where pools are small.

    Attributes:
        held_out: the rows set aside, for choosing layers and strengths.
    """

    def __init__(self, data: FitData, rng: Randomness, *, per_class: int, per_task: int, held_out: int = 0) -> None:
        self._target = data.target
        self._rng = rng
        self._per_class, self._per_task = per_class, per_task
        self._pools: dict[str, Pool] = {}
        self.held_out: list[Labelled] = []
        shares = dealt(held_out, data.pools.keys(), rng.python("held-out"))
        for name, pool in sorted(data.pools.items()):
            count = min(shares[name], len(pool.train) // LARGEST_SHARE_HELD_OUT)
            rows = spread(pool.train, count, rng.python("held-out", name))
            self.held_out += [Labelled(pool.task, row) for row in rows]
            gone = {row.content_hash for row in rows}
            left = tuple(row for row in pool.train if row.content_hash not in gone)
            self._pools[name] = replace(pool, train=left)

    @property
    def rows(self) -> list[Labelled]:
        """Every row that may be shown or asked, in the pools' order."""
        return [Labelled(pool.task, row) for pool in self._pools.values() for row in pool.train]

    def demonstrations(self, *purpose: str, exclude: Collection[str] = ()) -> tuple[Labelled, ...]:
        """Draw demonstrations, first to last.

        Args:
            purpose: names the draw: the same purpose gives the same draw.
            exclude: content hashes that may not be shown, for example the queries' own.
        """
        rng = self._rng.demonstrations("demonstrations", *purpose)
        if self._target is not None:
            own = self._pools[self._target]
            rows = balanced(own.train, self._per_class, rng, exclude)
            return tuple(self._rng.ordered([Labelled(own.task, row) for row in rows]))
        chosen = multi_task(self._pools, self._per_task, rng, exclude)
        return tuple(self._rng.ordered([Labelled(pool.task, row) for pool, row in chosen]))

    def queries(self, count: int, *purpose: str) -> list[Labelled]:
        """Random rows, as many from each pool as from any other; a pool with fewer gives all it has.

        Where ``count`` does not divide, the draw says which pools give one more, so that a few queries are not all
        from the pools whose names come first.
        """
        chosen: list[Labelled] = []
        shares = dealt(count, self._pools.keys(), self._rng.python("query-shares", *purpose))
        for name, pool in self._pools.items():
            rng = self._rng.python("queries", name, *purpose)
            rows = rng.sample(pool.train, min(shares[name], len(pool.train)))
            chosen += [Labelled(pool.task, row) for row in rows]
        self._rng.python("query-order", *purpose).shuffle(chosen)
        return chosen

    def episodes(self, count: int, *purpose: str, queries_per_set: int = 1) -> list[Episode]:
        """Return queries with demonstrations drawn for them.

        Args:
            count: queries.
            purpose: names the draw.
            queries_per_set: successive queries that share one draw, so that its keys and values are computed once.
        """
        queries = self.queries(count, *purpose)
        found: list[Episode] = []
        for start in range(0, len(queries), queries_per_set):
            group = queries[start : start + queries_per_set]
            shown = self.demonstrations(*purpose, str(start), exclude={query.example.content_hash for query in group})
            found += [Episode(shown, query) for query in group]
        return found


def shares(data: FitData, shots: int) -> tuple[int, int]:
    """``per_class`` and ``per_task`` for at most ``shots`` demonstrations in all, if that is one of each or more."""
    classes = 1 if data.target is None else data.pools[data.target].task.max_options
    return max(1, shots // classes), max(1, shots // len(data.pools))


def minibatches(count: int, size: int, rng: random.Random) -> Iterator[list[int]]:
    """Endless minibatches of row numbers: all rows in random order, then again in another; the last may be smaller."""
    while True:
        order = rng.sample(range(count), count)
        yield from (order[start : start + size] for start in range(0, count, size))


def demonstration_tokens(
    per_class: int, per_task: int, tokens: Mapping[str, float], classes: Mapping[str, int]
) -> float:
    """Mean tokens of one draw of demonstrations, for estimates (arguments as of `Method.fit_tokens`)."""
    if len(tokens) == 1:
        return sum(per_class * classes[name] * tokens[name] for name in tokens)
    return per_task * sum(tokens.values())
