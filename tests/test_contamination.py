import random
import string
import time

from icrbench.data.contamination import MIN_LETTERS, Overlap, clean, count, normalise
from icrbench.data.find_tasks import load_tasks
from icrbench.data.rows import content_hash
from icrbench.data.sources import Demo, load
from icrbench.data.task import Example

LONG = "The plot unfolds with rare and quiet grace"  # 35 letters


def example(number: int, *texts: str, choices: str = "") -> Example:
    fields = {f"field{index}": text for index, text in enumerate(texts)}
    if choices:
        fields |= {"choices": choices, "letters": "A/B"}
    return Example(f"t/train/{number}", fields, ("A", "B"), 0, content_hash(texts, choices.split("\n")))


def one(train: str, test: str) -> Overlap:
    return count({"a": [example(0, train)]}, {"b": [example(0, test)]})["a", "b"]


def test_normalise_keeps_letters_and_digits() -> None:
    assert normalise("It 's  a [Crane]-film, of\u0085 2001 .\n") == "itsacranefilmof2001"
    assert normalise("Motörhead’s") == "motörheads"


def test_a_phrase_is_found_whatever_its_case_and_punctuation() -> None:
    assert one("the plot UNFOLDS , with rare and quiet grace .", f"well: {LONG}! and so on") == Overlap(1, 1, 0)


def test_the_reverse_direction_counts_too() -> None:
    assert one(f"well: {LONG}! and so on", LONG) == Overlap(1, 1, 0)


def test_equal_texts() -> None:
    assert one(LONG, LONG.upper() + ".") == Overlap(1, 1, 1)
    assert one("a gem", "A  gem") == Overlap(1, 1, 1)


def test_the_limit_is_exact() -> None:
    phrase = string.ascii_lowercase[:MIN_LETTERS]
    assert one(phrase, f"1 {phrase} 2").test_rows == 1
    assert one(phrase[:-1], f"1 {phrase} 2").test_rows == 0
    assert one(f"1 {phrase[:-1]} 2 and more", f"3 {phrase[:-1]} 4 and other").test_rows == 0


def test_sharing_the_start_is_not_containing() -> None:
    assert one(f"{LONG} of old", f"{LONG} of new").test_rows == 0


def test_any_text_of_a_row_counts_but_not_its_choices() -> None:
    train = {"a": [example(0, "short", LONG)]}
    assert count(train, {"b": [example(0, "other", f"x {LONG}")]})["a", "b"].test_rows == 1
    assert count(train, {"b": [example(0, "other", choices=f"A. {LONG}\nB. no")]})["a", "b"].test_rows == 0


def test_rows_are_counted_once_and_pairs_apart() -> None:
    train = {
        "a": [example(0, LONG), example(1, LONG), example(2, "nothing of the kind at all, friend")],
        "c": [],
    }
    test = {"b": [example(0, f"1 {LONG}"), example(1, f"2 {LONG} {LONG}")], "a": [example(0, "unrelated")]}
    assert count(train, test) == {
        ("a", "b"): Overlap(2, 2, 0),
        ("a", "a"): Overlap(0, 0, 0),
        ("c", "b"): Overlap(0, 0, 0),
        ("c", "a"): Overlap(0, 0, 0),
    }


def test_clean_removes_exactly_the_rows_that_count_names() -> None:
    train = [example(0, "a gem"), example(1, f"x {LONG}"), example(2, "fine, thanks"), example(3, LONG)]
    tests = [[example(0, LONG)], [example(0, "A gem")]]
    kept = clean(train, tests)
    assert [row.id for row in kept] == ["t/train/2"]
    assert clean(train, []) == tuple(train)
    after = count({"a": kept}, {str(number): rows for number, rows in enumerate(tests)})
    assert all(overlap == Overlap(0, 0, 0) for overlap in after.values())


def test_agrees_with_comparing_every_pair() -> None:
    generator = random.Random(3)
    words = ["film", "of", "grace", "a", "and", "long", "tale"]

    def rows(n: int) -> list[Example]:
        return [example(i, " ".join(generator.choices(words, k=generator.randint(4, 14)))) for i in range(n)]

    train, test = rows(120), rows(120)
    train += [example(120 + i, row.fields["field0"][4:-2]) for i, row in enumerate(test[:40])]

    def hit(one: Example, two: Example) -> bool:
        short, long = sorted((normalise(row.fields["field0"]) for row in (one, two)), key=len)
        return (len(short) >= MIN_LETTERS and short in long) or one.content_hash == two.content_hash

    overlap = count({"a": train}, {"b": test})["a", "b"]
    assert overlap.train_rows == sum(any(hit(row, other) for other in test) for row in train)
    assert overlap.test_rows == sum(any(hit(row, other) for row in train) for other in test)
    assert overlap.test_rows > 10
    assert [row for row in train if not any(hit(row, other) for other in test)] == list(clean(train, [test]))


def test_the_bundled_rows_share_nothing() -> None:
    data = {name: load(task, Demo()) for name, task in load_tasks().items()}
    found = count({name: one.train for name, one in data.items()}, {name: one.test for name, one in data.items()})
    assert len(found) == len(data) ** 2
    assert {pair: overlap for pair, overlap in found.items() if overlap.test_rows} == {}


def test_the_whole_grid_takes_seconds() -> None:
    generator = random.Random(0)

    def rows(n: int) -> list[Example]:
        return [example(i, "".join(generator.choices(string.ascii_lowercase, k=150))) for i in range(n)]

    train = {str(task): rows(2000) for task in range(12)}
    test = {str(task): rows(1000) for task in range(12)}
    start = time.perf_counter()
    count(train, test)
    assert time.perf_counter() - start < 20  # about 2 s on an idle core; comparing every pair takes hours
