"""Test texts that a method may have met in training data, counted and, under protocol ``clean``, removed.

SST was built from the MR reviews (Socher et al. 2013, section 3), so a sentiment method that trains on one
has seen sentences of the other.

A train row *contaminates* a test row if their contents are equal (`Example.content_hash`), or if a text of
one is contained in a text of the other. Texts are compared by their letters and digits alone, in lower case,
and only a text of `MIN_LETTERS` of them or more counts: shorter phrases coincide by chance. The answers of
multiple choice are left out; they are short, and the same noun recurs in unrelated questions.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from icrbench.data.task import CHOICES_FIELD, LETTERS_FIELD, Example

MIN_LETTERS = 25


@dataclass(frozen=True)
class Overlap:
    """How far one task's train pool and another's test split share texts."""

    train_rows: int
    """Train rows that contaminate at least one test row."""
    test_rows: int
    """Test rows contaminated by at least one train row."""
    equal_test_rows: int
    """Those of ``test_rows`` with a text that is equal, not merely contained."""


def normalise(text: str) -> str:
    """Letters and digits alone, in lower case, without spaces."""
    return "".join(filter(str.isalnum, text.lower()))


def count(
    train: Mapping[str, Sequence[Example]], test: Mapping[str, Sequence[Example]]
) -> dict[tuple[str, str], Overlap]:
    """Count shared texts for every pair of a train pool and a test split.

    Args:
        train: by task, the pool a method may see.
        test: by task, the rows it is tested on.

    Returns:
        The overlap by (train task, test task), for all pairs.
    """
    seen: dict[tuple[str, str], tuple[set[int], set[int], set[int]]] = {
        (trained, tested): (set(), set(), set()) for trained in train for tested in test
    }
    for (trained, row), (tested, other), equal in _pairs(_refer(train), _refer(test)):
        rows, others, equals = seen[trained, tested]
        rows.add(row)
        others.add(other)
        if equal:
            equals.add(other)
    return {pair: Overlap(*map(len, found)) for pair, found in seen.items()}


def clean(train: Sequence[Example], tests: Iterable[Sequence[Example]]) -> tuple[Example, ...]:
    """Return the train rows that contaminate no row of any test split, in their order.

    Args:
        train: one task's pool.
        tests: whole test splits, of all tasks that are reported.
    """
    tested = _refer({str(number): examples for number, examples in enumerate(tests)})
    dirty = {row for (_, row), _, _ in _pairs(_refer({"": train}), tested)}
    return tuple(example for row, example in enumerate(train) if row not in dirty)


_Row = tuple[str, int]  # task and index
_Rows = dict[_Row, Example]


def _refer(pools: Mapping[str, Sequence[Example]]) -> _Rows:
    return {(task, row): example for task, examples in pools.items() for row, example in enumerate(examples)}


def _pairs(train: _Rows, test: _Rows) -> Iterator[tuple[_Row, _Row, bool]]:
    """Yield the contaminating pairs of rows (some more than once), and whether their texts are equal."""
    by_hash: dict[str, list[_Row]] = defaultdict(list)
    for row, example in train.items():
        by_hash[example.content_hash].append(row)
    for other, example in test.items():
        for row in by_hash.get(example.content_hash, ()):
            yield row, other, True

    train_texts, test_texts = _by_text(train), _by_text(test)
    found = [(needle, text) for needle, text in _contained(train_texts, test_texts)]
    found += [(text, needle) for needle, text in _contained(test_texts, train_texts)]
    for trained, tested in found:
        for row, other in product(train_texts[trained], test_texts[tested]):
            yield row, other, trained == tested


def _by_text(rows: _Rows) -> dict[str, list[_Row]]:
    """Return the rows of every normalised text that is long enough to be evidence."""
    texts: dict[str, list[_Row]] = defaultdict(list)
    for row, example in rows.items():
        natural = (text for name, text in example.fields.items() if name not in {CHOICES_FIELD, LETTERS_FIELD})
        for text in {normalise(text) for text in natural}:
            if len(text) >= MIN_LETTERS:
                texts[text].append(row)
    return texts


def _contained(needles: Collection[str], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield every needle with each text that contains it: one dictionary look-up per position of a text."""
    by_start: dict[str, list[str]] = defaultdict(list)
    for needle in needles:
        by_start[needle[:MIN_LETTERS]].append(needle)
    for text in texts:
        for at in range(len(text) - MIN_LETTERS + 1):
            for needle in by_start.get(text[at : at + MIN_LETTERS], ()):
                if text.startswith(needle, at):
                    yield needle, text
