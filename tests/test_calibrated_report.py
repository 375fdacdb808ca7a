"""Reports of corrected answers and of other metrics, from stored logits and priors alone."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibration_setup import answers, cell, fill, priors_of
from icrbench.report import report, write_report
from icrbench.report.by_metric import by_metric
from icrbench.report.comparison import compare_methods, print_comparison
from icrbench.report.figures import write_figures
from icrbench.report.figures.calibration import calibration, gains
from icrbench.report.leaderboard import AVERAGE, Table, leaderboards
from icrbench.report.metrics import METRICS
from icrbench.report.notes import notes
from icrbench.report.outcomes import Outcomes
from icrbench.report.tables import write_tables
from icrbench.report.text.render import grids, markdown
from icrbench.report.verdict import verdict
from icrbench.store.priors import read_priors, write_priors
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import store

__all__ = ["store"]  # a fixture


def filled(store: Store) -> Table:
    """Zero-shot leans to one option; a method leans to none, and knows no more."""
    fill(store, "zero_shot", None, bias=3.0, signal=1.5)
    fill(store, "icr", 0, bias=0.0, signal=1.5)
    (table,) = leaderboards(store)
    return table


def test_raw_and_calibrated_stand_side_by_side(store: Store) -> None:
    table = filled(store)
    zero, icr = table.row("zero_shot"), table.row("icr")
    assert icr.scores[AVERAGE].versus.difference > 0.1  # the gain that raw accuracies show
    corrected = table.calibrated["bc"]
    assert corrected.row("zero_shot").scores[AVERAGE].mean == icr.scores[AVERAGE].mean  # it was the bias alone
    assert corrected.row("icr").scores[AVERAGE].versus.difference == 0
    assert icr.controls["bc"][AVERAGE].versus.difference == 0
    assert zero.controls["bc"][AVERAGE].versus.difference < -0.1
    averages = grids(table)[0]
    assert averages.header[4:9] == ("Average", "Average, cc", "Average, dc", "Average, bc", "Collapse")
    text = dict(verdict(table).facts)["Beside calibration"]
    assert "against calibrated zero-shot +0.0 [+0.0, +0.0]; both calibrated +0.0" in text
    assert "raw − cc" in markdown([table])
    assert any(note.startswith("bc: corrected by") for note in notes(table))


def test_the_csv_has_what_is_left(store: Store) -> None:
    table = filled(store)
    write_report(store.folder, store.folder)
    lines = list(csv.DictReader(io.StringIO((store.folder / "leaderboard.csv").read_text())))
    (line,) = [line for line in lines if line["method"] == "icr" and line["column"] == AVERAGE]
    assert float(line["accuracy_bc"]) == pytest.approx(table.calibrated["bc"].row("icr").scores[AVERAGE].mean)
    assert float(line["vs_bc_zero_shot"]) == 0
    assert float(line["both_bc"]) == 0
    assert float(line["vs_zero_shot"]) > 0.1


def test_a_whole_table_calibrated(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    paths = report(store.folder, store.folder, calibrate="bc")
    assert [path.name for path in paths] == ["leaderboard-bc.md", "leaderboard-bc.csv", "leaderboard-bc.tex"]
    assert "calibrated by bc" in capsys.readouterr().out
    lines = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    assert {line["calibrate"] for line in lines} == {"bc"}
    with pytest.raises(UserError, match="unknown metric"):
        report(store.folder, store.folder, metric="f1")


def test_another_metric(store: Store) -> None:
    table = filled(store)
    made = by_metric(table, "label_bias")
    line = table.lines["zero_shot"]
    expected = np.mean([line.metric("label_bias", task)[0] for task in table.columns[-1].tasks])
    assert made.row("zero_shot").scores[AVERAGE].mean == pytest.approx(expected)
    assert made.rank(AVERAGE, made.row("icr")) == 1  # lower is better
    assert made.row("icr").scores[AVERAGE].versus is None
    (path, *_) = report(store.folder, store.folder, metric="macro_f1")
    assert path.name == "leaderboard-macro_f1.md"
    assert "no interval and no test" in path.read_text()
    calibrated = by_metric(table.calibrated["bc"], "label_bias")
    assert calibrated.row("zero_shot").scores[AVERAGE].mean < 0.1 < made.row("zero_shot").scores[AVERAGE].mean


def test_classes_that_are_letters_are_noted(store: Store) -> None:
    gold, logits = answers(0, 20, 0.0, 1.0)
    identity = {"task": {"name": "cb", "version": 1, "choices": "choices.text"}}
    cell(store, "cb", "zero_shot", None, gold, logits, identity=identity)
    (table,) = leaderboards(store)
    assert any(note.startswith("cb: the options are letters") for note in notes(by_metric(table, "macro_f1")))
    assert not any(note.startswith("cb: the options") for note in notes(by_metric(table, "brier")))


def test_no_prior_is_blank_and_never_the_raw_answer(store: Store) -> None:
    gold, logits = answers(0, 40, 1.0, 1.0)
    both = {"cc": [[1.0, 0.0]], "bc": [[1.0, 0.0]]}
    for task in ("sst2", "cb"):  # cb is out of domain: what another protocol allowed it does not count here
        cell(store, task, "zero_shot", None, gold, logits, both, protocol="paper")
    (table,) = leaderboards(store)
    assert table.calibrated["cc"].rows[0].scores[AVERAGE].mean is not None
    scores = table.calibrated["bc"].rows[0].scores
    assert scores["sst2"].mean is not None
    assert (scores["cb"].status, scores["cb"].mean, scores[AVERAGE].mean) == ("missing", None, None)
    assert "Average, cc" in grids(table)[0].header
    assert "Average, bc" not in grids(table)[0].header
    assert any("they are blank there" in note for note in notes(table))


def test_rows_with_other_options_have_priors_of_their_own(store: Store) -> None:
    gold, logits = [0, 2, 2], [[2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
    key = cell(store, "cb", "zero_shot", None, gold, logits)
    outcomes = Outcomes(store)
    (made,) = store.records()
    assert not outcomes.has(made, "cc")
    two, three = (
        {"options": list("abc"[:n]), "ids": [], "logits": [row]} for n, row in ((2, [0.0, 0.0]), (3, [2.5, 0.0, -1.0]))
    )
    write_priors(store.folder, key, {**priors_of({}), "prompts": {"cc": [two, three], "bc": [two]}})
    outcomes = Outcomes(store)
    assert outcomes.answers(made, "cc").correct.tolist() == [True, True, False]
    assert not outcomes.has(made, "bc")  # nothing for the rows with three options
    assert outcomes.outcome(made, "cc").probabilities[0, 2] == 0
    with pytest.raises(ValueError, match="no prior of kind bc"):
        outcomes.answers(made, "bc")


def test_dropping_test_rows_changes_no_other(store: Store, tmp_path: Path) -> None:
    gold, logits = answers(3, 50, 1.0, 1.0)
    priors = {"cc": [[1.0, 0.0]], "bc": [[1.2, 0.0], [0.7, 0.1]]}
    fewer = Store(tmp_path / "fewer")
    found = {}
    for kept, of in ((50, store), (20, fewer)):
        cell(of, "sst2", "zero_shot", None, gold[:kept], logits[:kept], priors)
        (made,) = of.records()
        outcomes = Outcomes(of)
        found[kept] = [outcomes.outcome(made, kind).probabilities for kind in ("cc", "bc", "transductive")]
    assert np.array_equal(found[50][0][:20], found[20][0])
    assert np.array_equal(found[50][1][:20], found[20][1])
    assert not np.allclose(found[50][2][:20], found[20][2])  # which is why no leaderboard has this one


def test_the_control_table_and_its_transductive_analysis(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    write_tables(store.folder, store.folder, "calibration", [], compare=False)
    text = (store.folder / "tables" / "calibration.md").read_text()
    assert [line.split(" · ")[-1] for line in text.splitlines() if line.startswith("## ")] == [
        "cc",
        "dc",
        "bc",
        "transductive",
    ]
    assert "An analysis, no result" in text.split("\n## ")[-1]
    assert "An analysis, no result" not in text.split("\n## ")[-2]
    numbers = list(csv.DictReader(io.StringIO((store.folder / "tables" / "calibration.csv").read_text())))
    assert {line["calibrate"] for line in numbers} == {"cc", "dc", "bc", "transductive"}
    write_tables(store.folder, store.folder, "main", [], "cc", compare=False)
    assert "calibrated by cc" in (store.folder / "tables" / "main-cc.md").read_text()
    write_tables(store.folder, store.folder, "main", [], compare=False)
    assert "Average, bc" not in (store.folder / "tables" / "main.md").read_text()  # twelve tasks, of which four ran


def test_two_methods_in_every_metric_and_calibration(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    (raw,) = compare_methods(store, "icr", "zero_shot", None)
    assert set(raw.metrics) == set(METRICS)
    assert raw.calibrated["bc"][2].difference == 0
    (corrected,) = compare_methods(store, "icr", "zero_shot", None, "bc")
    assert corrected.average.difference == 0 < raw.average.difference
    print_comparison(store.folder, "icr", "zero_shot", None, terminal=False)
    assert "Accuracy, both calibrated by bc" in capsys.readouterr().out


def test_priors_that_were_changed_are_refused(store: Store) -> None:
    gold, logits = answers(0, 10, 1.0, 1.0)
    key = cell(store, "sst2", "zero_shot", None, gold, logits, {"cc": [[1.0, 0.0]]})
    path = store.folder / "priors" / f"{key}.json"
    content = json.loads(path.read_text())
    assert read_priors(store.folder, key) is not None
    assert read_priors(store.folder, "0" * 16) is None
    content["priors"]["prompts"]["cc"][0]["logits"] = [[0.0, 1.0]]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="delete it and run again"):
        leaderboards(store)
    path.write_text("{")
    with pytest.raises(UserError, match="delete it and run again"):
        leaderboards(store)


def test_reports_of_priors_need_no_torch(store: Store) -> None:
    filled(store)
    code = (
        "import sys; from pathlib import Path; from icrbench.report import write_report; "
        f"write_report(Path({str(store.folder)!r}), Path({str(store.folder)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_figure_has_a_dot_a_method_and_task(store: Store) -> None:
    table = filled(store)
    found = gains(table, table.calibrated["bc"])
    assert len(found) == 4
    for label, raw, corrected in found:
        assert label == "icr"
        assert corrected == 0 < raw
    figure = calibration(table)
    assert figure is not None
    assert [axes.get_title(loc="left")[:2] for axes in figure.axes] == ["cc", "dc", "bc"]
    assert all(len(axes.collections) == 4 for axes in figure.axes)
    drawn = write_figures(store.folder, store.folder)
    assert {"calibration.pdf", "calibration.png"} <= {path.name for path in drawn.paths}
