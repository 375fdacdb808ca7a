"""The paper's numbers: read whole, and checked against themselves."""

import csv
from collections import Counter
from decimal import Decimal
from importlib.resources import files

from icrbench.model_names import known_models
from icrbench.report.leaderboard import PAPER
from icrbench.report.published import (
    MODELS,
    SOURCE,
    PublishedRow,
    disagreements,
    find,
    published,
    published_model,
    tenth,
)


def row(table: int, model: str, method: str, setting: str = "") -> PublishedRow:
    found = find([table], model, method, setting)
    assert found is not None
    return found


def test_every_published_number_is_there() -> None:
    tables: Counter[int] = Counter()
    for entry in published():
        tables[entry.table] += len(entry.printed)
    assert sum(tables.values()) == 712
    assert sorted(tables) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert row(1, "Qwen2.5-7B", "icr").printed["mr"] == "89.4"
    assert row(3, "Llama2-7B", "icr", "rank=8,basis=random_orthogonal").printed["near_ood"] == "48.1"


def test_every_published_number_names_the_version_of_the_paper() -> None:
    with files("icrbench.report").joinpath("published.csv").open(encoding="utf-8") as file:
        assert {line["version"] for line in csv.DictReader(file)} == {"anonymous v2"}
    assert "anonymous v2" in SOURCE


def test_exactly_the_averages_that_do_not_follow_from_their_rows_are_flagged() -> None:
    found = {(flag.row.table, flag.row.model, flag.row.method): flag for flag in disagreements()}
    words = {place: (flag.column, flag.printed, flag.recomputed) for place, flag in found.items()}
    assert words == {
        # of the averages over twelve tasks, two
        (1, "Qwen2.5-7B", "i2cl"): ("average", "75.6", "75.8"),
        (9, "Llama3.1-70B", "zero_shot"): ("average", "77.6", "75.1"),
        # of those over the five in-domain tasks, two more
        (2, "Qwen2.5-7B", "elicit"): ("average", "74.3", "73.9"),
        (2, "Qwen2.5-7B", "icr"): ("average", "81.2", "81.3"),
    }


def test_what_rounding_can_do_is_not_flagged() -> None:
    # Five accuracies rounded to tenths average 63.56; unrounded they may well have averaged 63.54, printed as 63.5.
    assert row(2, "Llama2-7B", "icv").average(PAPER[:5]) == Decimal("63.56")
    assert row(2, "Llama2-7B", "icv").printed["average"] == "63.5"


def test_collapse_counts_are_recomputed_against_the_models_own_zero_shot() -> None:
    assert row(7, "Llama3.1-8B", "i2cl").collapse(PAPER) == 8
    assert row(1, "Llama2-7B", "i2cl").collapse(PAPER) == 2
    assert row(1, "Llama2-7B", "zero_shot").collapse(PAPER) is None
    assert row(5, "Llama2-7B", "icr", "mismatched").collapse(PAPER) == 3  # not printed; zero-shot is in another table
    assert row(3, "Llama2-7B", "icr", "rank=8").collapse(PAPER) is None  # averages alone say nothing of tasks


def test_an_average_needs_every_task() -> None:
    assert row(2, "Llama2-7B", "icr").average(PAPER) is None
    assert row(2, "Llama2-7B", "icr").average(PAPER[:5]) == Decimal("67.4")


def test_halves_round_up_as_in_the_paper() -> None:
    average = row(7, "Llama3.1-8B", "i2cl").average(PAPER)
    assert average == Decimal("62.15")
    assert str(tenth(average)) == row(7, "Llama3.1-8B", "i2cl").printed["average"] == "62.2"


def test_the_papers_models_are_known_by_name_and_by_hub_id() -> None:
    assert published_model("llama2", "") == "Llama2-7B"
    assert published_model("mine", "Qwen/Qwen2.5-7B@main") == "Qwen2.5-7B"
    assert published_model("gemma-270m", "gemma-270m.gguf") is None
    for name, hub in MODELS.values():
        assert known_models()[name]["hub"] == hub
