from collections.abc import Sequence
from pathlib import Path

import pytest

from icrbench.report import stats
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.notes import notes
from icrbench.report.text.names import display_name
from icrbench.report.text.render import grids
from icrbench.report.verdict import Verdict, certainty, significance, verdict
from icrbench.store.store import Store
from records import TASKS, add

N = 100


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def fill(store: Store, label: str, seed: int | None, counts: Sequence[int], **more: object) -> None:
    for task, count in zip(TASKS, counts, strict=False):
        add(store, task, label, seed, [number < count for number in range(N)], **more)


def only(store: Store) -> tuple[Table, Verdict, dict[str, str]]:
    (table,) = leaderboards(store)
    words = verdict(table)
    return table, words, dict(words.facts)


def test_a_clear_winner(store: Store) -> None:
    fill(store, "zero_shot", None, [50, 40, 50, 50])
    fill(store, "icr", 0, [80, 70, 80, 45])
    table, words, facts = only(store)
    assert (words.headline, words.certainty) == (
        "icr wins, 21.2 points ahead of zero-shot; this is not noise.",
        "clear",
    )
    versus = table.rows[1].scores["average"].versus
    assert versus is not None
    low, high = (f"{abs(100 * end):.1f}" for end in (versus.interval.low, versus.interval.high))
    assert facts["By how much"].startswith(f"+21.2 points [+{low}, +{high}] against zero-shot: 68.8 % against 47.5 %")
    assert facts["Is it noise?"].startswith("No: significant (p <0.001), and the interval leaves out 0.")
    assert "Only one seed was run" in facts["Is it noise?"]
    assert facts["Gains"].startswith("on 3 of 4 tasks\nnot noise: ")
    assert "CB −5.0 [" in facts["Falls"]
    assert "far out-of-domain −5.0 [" in facts["By task group"]


def test_a_small_lead_is_not_called_a_win(store: Store) -> None:
    fill(store, "zero_shot", None, [50, 50, 50, 50])
    fill(store, "icr", 0, [52, 49, 51, 50])
    _, words, facts = only(store)
    assert words.certainty == "noise"
    assert words.headline == "No clear winner: icr is 0.5 points ahead of zero-shot, which may be noise."
    assert facts["Is it noise?"].startswith("It may be: not significant (p = ")


def test_a_close_second_is_named(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    fill(store, "icr", 0, [80, 70, 80, 81])
    fill(store, "icr:rank=4", 0, [80, 70, 80, 80])
    _, words, facts = only(store)
    assert words.headline == "icr beats zero-shot by 37.8 points, but its lead over icr:rank=4 is not certain."
    assert words.leader == "icr"
    assert facts["By how much"].endswith("the average over 4 tasks. The best of 2 methods.")
    assert facts["Next best"].startswith("icr:rank=4 at 77.5 %; the lead over it is +0.2 points [")
    assert "], not significant (p = " in facts["Next best"]  # one pair, so nothing to correct over
    assert facts["Next best"].endswith(", and the interval reaches 0.")


def test_all_rivals_of_a_close_race_are_counted(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    for place, label in enumerate(("icr", "ltv", "icv", "i2cl")):
        fill(store, label, 0, [80, 70, 80, 81 - place])
    assert only(store)[1].headline.endswith("but its lead over linear task vector and 2 others is not certain.")


def test_variants_are_judged_by_their_plain_method(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    fill(store, "icv", 0, [50, 50, 50, 50])
    fill(store, "icr", 0, [70, 70, 70, 70])
    for label, right in (("icr:rank=12", 90), ("icr:basis=random", 45)):
        fill(store, label, 0, [right] * 4)
    fill(store, "icr:rank=4", 0, [71, 69, 70, 74])
    methods, variants = leaderboards(store)
    assert verdict(methods).headline.startswith("icr wins, 30.0 points ahead of zero-shot")
    words = verdict(variants)
    assert (words.headline, words.certainty, words.leader) == (
        "Of 3 variants of icr, 1 is better and 1 is worse beyond noise.",
        "clear",
        "icr",
    )
    facts = dict(words.facts)
    assert facts["Plain icr"].startswith("70.0 %. +30.0 [")
    assert "Only one seed was run" in facts["Plain icr"]
    better, worse = facts["Not noise"].split("\n")
    assert better.startswith("icr:rank=12 +20.0 points [")
    assert worse.startswith("icr:basis=random −25.0 points [")
    assert facts["May be noise"] == "icr:rank=4 +1.0"


def test_variants_that_change_nothing(store: Store) -> None:
    for label in ("zero_shot", "icr", "icv", "icr:rank=4"):
        fill(store, label, None if label == "zero_shot" else 0, [50, 50, 50, 50])
    words = verdict(leaderboards(store)[1])
    assert words.headline == "No difference between icr and its one variant is beyond noise."
    assert words.certainty == "noise"


def test_few_shot_wins_with_its_examples_in_the_prompt(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    fill(store, "few_shot", 0, [80, 80, 80, 80])
    assert "Best implicit" not in only(store)[2]
    fill(store, "icr", 0, [70, 70, 70, 70])
    fill(store, "icv", 0, [60, 60, 60, 60])
    _, words, facts = only(store)
    assert words.leader == "few_shot"
    assert facts["Best implicit"].startswith(
        "few_shot reads its examples in every prompt. The best that does not is icr at 70.0 %, +30.0 ["
    )
    assert facts["Best implicit"].endswith("] against zero-shot: not noise.")


def test_nobody_beats_zero_shot(store: Store) -> None:
    fill(store, "zero_shot", None, [60, 60, 60, 60])
    fill(store, "icr", 0, [40, 40, 50, 58])
    _, words, facts = only(store)
    assert (words.headline, words.certainty, words.leader) == ("No method beats zero-shot.", None, "icr")
    assert facts["Closest"].startswith("icr. −13.0 points [")
    assert facts["Gains"] == "on no task"


def test_without_a_full_row_nobody_wins(store: Store) -> None:
    fill(store, "zero_shot", None, [60, 60, 60])
    fill(store, "icr", 0, [40, 40, 50, 90])
    add(store, "cb", "zero_shot", None, [True], error="out of memory")
    _, words, facts = only(store)
    assert words.headline == "icr has the best average, 55.0 %."
    assert facts["Is it noise?"] == "There is no complete zero-shot row to compare with."
    assert facts["Beware"] == "zero_shot has missing or failed cells, so no average, and no place in this ranking."


def test_nothing_complete(store: Store) -> None:
    fill(store, "zero_shot", None, [60, 60, 60])
    add(store, "cb", "icr", 0, [True] * N)
    _, words, _ = only(store)
    assert words.headline == "No winner can be named: no method has a result on every task."
    assert words.leader is None


def test_cautions(store: Store) -> None:
    found = {"pairs": {"sst2->mr": 74}, "clean": False}
    fill(store, "zero_shot", None, [50, 50, 50, 50], kind="demo", contamination=found)
    cautions = [text for question, text in only(store)[1].facts if question == "Beware"]
    assert cautions[0].startswith("These are bundled demonstration rows")
    assert "74 of sst2 in mr" in cautions[1]


@pytest.mark.parametrize(
    ("low", "p", "expected"),
    [(0.01, 0.01, "clear"), (0.01, 0.2, "weak"), (-0.01, 0.01, "weak"), (-0.01, 0.2, "noise"), (0.0004, 0.01, "weak")],
)
def test_certainty_needs_test_and_printed_interval(low: float, p: float, expected: str) -> None:
    versus = stats.Comparison(0.02, stats.Interval(low, 0.05), p, "t")
    assert certainty(versus, p) == expected


def test_our_form_of_a_method_is_not_given_its_name() -> None:
    assert display_name("m2iv") == "M2IV-style"
    assert display_name("m2iv:rank=4") == "M2IV-style:rank=4"
    assert display_name("m2iv (older, 1a2b)") == "M2IV-style (older, 1a2b)"
    assert display_name("m2iv_other") == "m2iv_other"


@pytest.mark.parametrize(
    ("low", "p", "expected"),
    [
        (0.01, 0.01, "significant after correction over all (p = 0.010), and the interval leaves out 0"),
        (0.01, 1.0, "not significant after correction over all (p = 1.000), but the interval, which is not corrected, "
         "leaves out 0"),
        (-0.01, 0.01, "significant after correction over all (p = 0.010), but the interval reaches 0"),
        (-0.01, 0.2, "not significant after correction over all (p = 0.200), and the interval reaches 0"),
    ],
)  # fmt: skip
def test_significance_says_what_was_corrected(low: float, p: float, expected: str) -> None:
    assert significance(stats.Comparison(0.02, stats.Interval(low, 0.05), p, "t"), p, " over all") == expected


def test_a_lead_is_corrected_over_all_pairs(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    for place, label in enumerate(("icr", "ltv", "icv")):
        fill(store, label, 0, [80, 70, 80, 81 - place])
    facts = only(store)[2]
    assert "not significant after correction over all pairs of 3 methods (p = " in facts["Next best"]
    assert "significant after correction over 3 methods (p <0.001)" in facts["Is it noise?"]


def beware(store: Store) -> list[str]:
    return [text for question, text in only(store)[1].facts if question == "Beware"]


def test_the_best_of_many_is_flattered(store: Store) -> None:
    fill(store, "zero_shot", None, [40, 40, 40, 40])
    for label in ("icr", "ltv", "icv", "i2cl"):
        fill(store, label, 0, [80, 70, 80, 81])
    assert beware(store) == []
    fill(store, "few_shot", 0, [80, 70, 80, 79])
    table, _, _ = only(store)
    (text,) = beware(store)
    assert text.startswith("The best of 5 methods is flattered")
    assert text in notes(table)


def test_a_small_task_that_moves_the_average_is_named(store: Store) -> None:
    fill(store, "zero_shot", None, [50, 50, 50])
    fill(store, "icr", 0, [52, 52, 52])
    fill(store, "icv", 0, [54, 54, 54])
    for label, right in (("zero_shot", 5), ("icr", 9), ("icv", 5)):
        add(store, "cb", label, None if label == "zero_shot" else 0, [number < right for number in range(10)])
    table, _, _ = only(store)
    (text,) = beware(store)
    assert text == (
        "CB has 10 test rows, so one of them is 10.0 points there, and it moves averages: icr gains +11.5 points over "
        "zero-shot with it and +2.0 without, where icv is best with +4.0."
    )
    assert text in notes(table)


def test_a_small_task_that_moves_nothing_is_not_named(store: Store) -> None:
    fill(store, "zero_shot", None, [50, 50, 50])
    fill(store, "icr", 0, [60, 60, 60])
    for label, right in (("zero_shot", 5), ("icr", 6)):
        add(store, "cb", label, None if label == "zero_shot" else 0, [number < right for number in range(10)])
    assert beware(store) == []


def test_a_smaller_budget_than_the_papers_is_a_warning(store: Store) -> None:
    fill(store, "zero_shot", None, [50, 50, 50, 50])
    fill(store, "icv", 0, [60, 60, 60, 60])
    fill(store, "icr", 0, [60, 60, 60, 60], more={"below_published": {"steps": [10, 100]}})
    assert beware(store) == ["Less than the published budget: icr. No verdict on them at their own."]


def test_no_heading_says_ood_where_tasks_give_their_own_rows(store: Store) -> None:
    for label in ("zero_shot", "icr"):
        fill(store, label, None if label == "zero_shot" else 0, [50, 60, 70, 80], protocol="in_task")
    table, _, facts = only(store)
    headings = " ".join(name for grid in grids(table) for name in grid.header)
    assert "OOD" not in headings
    assert all(name in grids(table)[0].header for name in ("Main", "Near", "Far"))
    assert "domain" not in facts["By task group"]
