"""The rankings at the head of the page, as they stand in the file."""

from calibration_setup import cell
from icrbench.report import page
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.page.data import table_data
from icrbench.report.page.ranking import MOST_PLACES, Place, ranking
from icrbench.store.store import Store
from records import N, fill, store

__all__ = ["store"]  # a fixture


def places(store: Store, number: int = 0) -> list[Place]:
    return ranking(leaderboards(store)[number])


def test_the_best_come_first_and_zero_shot_stands_where_it_belongs(store: Store) -> None:
    for label, right in (("zero_shot", 26), ("icr", 30), ("icv", 28), ("lora", 22), ("i2cl", 20)):
        fill(store, label, None if label == "zero_shot" else 0, [right] * 4)
    found = places(store)
    assert [place.label for place in found] == ["icr", "icv", "zero_shot", "lora", "i2cl"]
    assert [place.number for place in found] == [1, 2, None, 3, 4]
    assert [place.gain for place in found] == ["+10.0", "+5.0", "—", "−10.0", "−15.0"]
    assert [place.below for place in found] == [False, False, False, True, True]


def test_numbers_are_those_of_the_table(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [32, 20, 30, 20], more={"seconds_fit": 12.34, "prompt_tokens": 41 * N})
    (table,) = leaderboards(store)
    score = table.row("icr").scores["average"]
    best = ranking(table)[0]
    assert score.interval is not None
    assert best.mean == f"{100 * (score.mean or 0):.1f}"
    assert best.interval == f"{100 * score.interval.low:.1f}–{100 * score.interval.high:.1f}"
    assert (best.fit, best.prompt) == ("12.3 s", "41 tokens")
    assert ranking(table)[-1].fit == "0 s"


def test_only_the_best_are_listed(store: Store) -> None:
    labels = ("icr", "icv", "lora", "i2cl", "elicit", "mimic", "ttt")
    for place, label in enumerate(labels):
        fill(store, label, 0, [34 - place] * 4)
    fill(store, "zero_shot", None, [10] * 4)
    assert [place.label for place in places(store)] == [*labels[:MOST_PLACES], "zero_shot"]


def test_calibrated_zero_shot_stands_among_them(store: Store) -> None:
    gold = [1, 0, 1, 0]
    biased = [[1.0, 1.5], [1.2, 1.5], [1.0, 1.5], [1.2, 1.5]]  # always the second, and right once the prior is out
    cell(store, "sst2", "zero_shot", None, gold, biased, {"cc": [[0.9, 1.3]], "bc": [[0.0, 0.0]]})
    cell(store, "sst2", "icr", 0, gold, [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = places(store)
    assert [(place.name, place.mean) for place in found] == [
        ("zero-shot, calibrated (cc)", "100.0"),  # not bc, which changes nothing
        ("icr", "75.0"),
        ("zero_shot", "50.0"),
    ]
    assert found[0].label is None  # no row of the table


def test_variants_are_ranked_against_the_plain_method(store: Store) -> None:
    for label, right in (("zero_shot", 20), ("icv", 20), ("icr", 24), ("icr:rank=4", 34)):
        fill(store, label, None if label == "zero_shot" else 0, [right] * 4)
    found = {place.label: (place.number, place.gain) for place in places(store, 1)}
    assert found == {"icr:rank=4": (1, "+25.0"), "icr": (None, "—"), "zero_shot": (2, "−10.0")}


def test_without_an_average_nothing_is_ranked(store: Store) -> None:
    fill(store, "zero_shot", None, [20])
    fill(store, "icr", 0, [30, 20])
    assert [place.label for place in places(store)] == ["icr"]


def test_it_stands_in_the_file_before_any_words(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16])
    fill(store, "icr", 0, [30, 16])
    tables: list[Table] = leaderboards(store)
    text = page.html(tables, [], store)
    assert text.index('data-label="icr"') < text.index("<details>") < text.index("By how much")


def test_under_protocol_in_task_no_task_is_out_of_domain(store: Store) -> None:
    for label in ("zero_shot", "icr"):
        fill(store, label, None if label == "zero_shot" else 0, [20, 16, 22, 12], protocol="in_task")
    tables = leaderboards(store)
    choices = page.html(tables, [], store).split('name="role"')[1].split("</select>")[0]
    assert "Near tasks" in choices
    assert "domain" not in choices
    assert "domain" not in "".join(table_data(tables[0], metrics=False)["roles"].values())
