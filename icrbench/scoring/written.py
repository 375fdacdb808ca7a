"""How a written answer is compared with the right one: exact match and token F1, after one normalisation.

Both are those of SQuAD (Rajpurkar et al. 2016, Sec. 6.1), but for one thing: punctuation goes from the ends of words
alone, so that 2.5 is not 25, and a minus sign before a digit stays.
"""

from collections import Counter
from string import punctuation

ARTICLES = frozenset({"a", "an", "the"})


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation at their ends and without articles; of articles alone, all of them."""
    found = [word for word in map(_bare, text.lower().split()) if word]
    return [word for word in found if word not in ARTICLES] or found


def exact_match(text: str, right: str) -> bool:
    """Whether the words are the same, in the same order."""
    return words(text) == words(right)


def token_f1(text: str, right: str) -> float:
    """Harmonic mean of the shares of the written and of the right words that the two have in common, 0 to 1."""
    written, wanted = Counter(words(text)), Counter(words(right))
    common = (written & wanted).total()
    if not common:
        return float(written == wanted)
    return 2 * common / (written.total() + wanted.total())


def _bare(word: str) -> str:
    bare = word.strip(punctuation)
    negative = word.lstrip(punctuation.replace("-", "")).startswith("-") and bare[:1].isdigit()
    return f"-{bare}" if negative else bare
