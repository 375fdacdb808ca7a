import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from icr_setup import pools
from icrbench.method import FitData
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstrations import dealt
from icrbench.toolkit.episodes import Episodes, Labelled, Questions, demonstration_tokens, minibatches
from tiny import tiny_backbone

DOMAINS = ("agnews", "csqa", "piqa", "sst2", "trec")


def made(*names: str, target: str | None = None, seed: int = 0, held_out: int = 9) -> Episodes:
    data = FitData(pools(*names), target, Path("unused"))
    return Episodes(data, Randomness(seed), per_class=2, per_task=3, held_out=held_out)


def contents(rows: list[Labelled] | tuple[Labelled, ...]) -> set[str]:
    return {row.example.content_hash for row in rows}


@pytest.mark.parametrize(("names", "target"), [(("sst2",), "sst2"), (DOMAINS, None)])
@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_rows_are_never_shown_or_asked(names: tuple[str, ...], target: str | None, seed: int) -> None:
    episodes = made(*names, target=target, seed=seed)
    held_out = contents(episodes.held_out)
    assert len(episodes.held_out) == 9
    assert {row.task.name for row in episodes.held_out} == set(names)
    assert not held_out & contents(episodes.rows)
    assert not held_out & contents(episodes.queries(10_000))
    for number in range(20):
        assert not held_out & contents(episodes.demonstrations(str(number)))


@pytest.mark.parametrize(("names", "target"), [(("trec",), "trec"), (DOMAINS, None)])
@pytest.mark.parametrize("together", [1, 4])
def test_a_query_is_never_among_its_demonstrations(names: tuple[str, ...], target: str | None, together: int) -> None:
    drawn = made(*names, target=target).episodes(24, queries_per_set=together)
    assert len(drawn) == 24
    for episode in drawn:
        assert episode.query.example.content_hash not in contents(episode.demonstrations)
    sets = [contents(drawn[start].demonstrations) for start in range(0, 24, together)]
    assert all(contents(episode.demonstrations) == sets[place // together] for place, episode in enumerate(drawn))
    assert any(own != sets[0] for own in sets)


def test_demonstrations_are_balanced_where_the_task_is_known_and_spread_over_tasks_elsewhere() -> None:
    own = Counter(row.example.label for row in made("trec", target="trec").demonstrations())
    assert own == dict.fromkeys(range(6), 2)
    shared = Counter(row.task.name for row in made(*DOMAINS).demonstrations())
    assert shared == dict.fromkeys(DOMAINS, 3)


def test_queries_are_spread_over_the_pools_without_repetition() -> None:
    queries = made(*DOMAINS).queries(23)
    found = Counter(row.task.name for row in queries)
    assert sorted(found.values()) == [4, 4, 5, 5, 5]
    assert len({row.example.id for row in queries}) == 23
    assert [row.task.name for row in queries] != sorted(row.task.name for row in queries)


def test_the_seed_draws_which_pools_take_the_remainder() -> None:
    """One dummy query of five pools would else be a row of the same task for every seed."""
    one = [made(*DOMAINS, seed=seed).queries(1)[0].task.name for seed in range(30)]
    assert set(one) == set(DOMAINS)
    held_out = [Counter(row.task.name for row in made(*DOMAINS, seed=seed, held_out=6).held_out) for seed in range(30)]
    assert {name for counts in held_out for name, count in counts.items() if count == 2} == set(DOMAINS)
    by_purpose = {made(*DOMAINS).queries(1, str(number))[0].task.name for number in range(30)}
    assert by_purpose == set(DOMAINS)


def test_counts_are_dealt_as_evenly_as_they_divide() -> None:
    for count in range(13):
        dealt_out = dealt(count, DOMAINS, random.Random(count))
        assert sum(dealt_out.values()) == count
        assert max(dealt_out.values()) - min(dealt_out.values()) <= 1
        assert dealt(count, DOMAINS[::-1], random.Random(count)) == dealt_out


def test_draws_depend_on_seed_and_purpose_alone() -> None:
    one, same, other = made("sst2", target="sst2"), made("sst2", target="sst2"), made("sst2", target="sst2", seed=1)
    same.queries(5, "something else first")
    assert one.queries(5) == same.queries(5)
    assert one.demonstrations("a") == same.demonstrations("a")
    assert one.demonstrations("a") != one.demonstrations("b")
    assert one.queries(5) != other.queries(5)
    assert one.held_out == same.held_out
    assert one.held_out != other.held_out


def test_small_pools_keep_most_of_their_rows() -> None:
    data = FitData(pools("sst2", rows=10), "sst2", Path("unused"))
    episodes = Episodes(data, Randomness(0), per_class=2, per_task=3, held_out=32)
    assert len(episodes.held_out) == 3
    assert len(episodes.rows) == 7


def test_questions_are_the_prompts_of_scoring() -> None:
    backbone, episodes = tiny_backbone("llama"), made("sst2", target="sst2")
    episode = episodes.episodes(1)[0]
    question = Questions(backbone).in_context([episode])[0]
    text = backbone.tokenizer.decode(list(question.prompt.tokens), skip_special_tokens=True)
    task, query = episode.query.task, episode.query.example
    shown = [row.task.demonstration(row.example) for row in episode.demonstrations]
    assert text == "\n".join([*shown, task.prompt(query)])
    assert backbone.tokenizer.decode([question.answer]) in (" ", task.answer(query)[0])
    assert question.label == query.label
    plain = Questions(backbone).zero_shot([episode.query])[0]
    assert plain.prompt.tokens != question.prompt.tokens
    assert plain.prompt.text == question.prompt.text


def test_minibatches_go_through_all_rows_before_any_comes_again() -> None:
    found = list(islice(minibatches(7, 3, random.Random(0)), 6))
    assert [len(rows) for rows in found] == [3, 3, 1] * 2
    first, second = ([row for rows in half for row in rows] for half in (found[:3], found[3:]))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


def test_tokens_of_a_draw() -> None:
    assert demonstration_tokens(5, 3, {"sst2": 40.0}, {"sst2": 2}) == 400
    assert demonstration_tokens(5, 3, {"sst2": 40.0, "trec": 10.0}, {"sst2": 2, "trec": 6}) == 150
