import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from icrbench.report import print_report, stats, write_report
from icrbench.report.leaderboard import Row, Table, leaderboards
from icrbench.report.notes import notes
from icrbench.report.page.data import table_data
from icrbench.report.text import render
from icrbench.report.text.latex import PREAMBLE
from icrbench.report.text.render import escape_markdown, grids, latex, markdown, terminal
from icrbench.store.rows import rows_file
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import N, add, answers, fill, record, rows, store

__all__ = ["store"]  # a fixture


def only(store: Store) -> Table:
    (table,) = leaderboards(store)
    return table


def row(table: Table, label: str) -> Row:
    return next(row for row in table.rows if row.label == label)


def full(store: Store) -> Table:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "few_shot", 0, [30, 18, 30, 10])
    fill(store, "few_shot", 1, [32, 18, 28, 10])
    fill(store, "icr", 0, [32, 20, 30, 20])
    fill(store, "icr", 1, [32, 22, 30, 18])
    return only(store)


def test_rows_columns_and_averages(store: Store) -> None:
    table = full(store)
    names = ["sst2", "trec", "id", "mr", "near_ood", "cb", "far_ood", "average"]
    assert [column.name for column in table.columns] == names
    assert [row.label for row in table.rows] == ["zero_shot", "few_shot", "icr"]
    few = row(table, "few_shot").scores
    assert few["sst2"].mean == pytest.approx(31 / 40)
    assert few["sst2"].std == pytest.approx(np.std([30 / 40, 32 / 40], ddof=1))
    assert few["id"].mean == pytest.approx((31 + 18) / 2 / 40)
    assert few["average"].mean == pytest.approx((31 + 18 + 29 + 10) / 4 / 40)
    assert few["average"].std == pytest.approx(0.0)
    assert [r.collapse for r in table.rows] == [None, 1, 0]
    zero = row(table, "zero_shot").scores
    assert (zero["sst2"].std, zero["sst2"].versus, zero["sst2"].interval) == (
        None,
        None,
        stats.wilson(20, 40),
    )
    assert [r.seeds for r in table.rows] == [1, 2, 2]


def test_comparison_is_paired_and_corrected(store: Store) -> None:
    table = full(store)
    versus = row(table, "icr").scores["average"].versus
    assert versus is not None
    differences = []
    for base, counts in zip([20, 16, 22, 12], [(32, 32), (20, 22), (30, 30), (20, 18)], strict=True):
        differences.append(np.array([answers(count) for count in counts], dtype=float) - np.array(answers(base)))
    assert versus.p == stats.compare(differences, [np.zeros(N)] * 4).p
    assert versus.difference == pytest.approx(np.mean([d.mean() for d in differences]))
    raw = [row(table, label).scores["average"].versus for label in ("few_shot", "icr")]
    corrected = [row(table, label).scores["average"].p_holm for label in ("few_shot", "icr")]
    assert corrected == stats.holm([versus.p for versus in raw if versus])


def test_one_task_one_seed_is_mcnemar(store: Store) -> None:
    add(store, "sst2", "zero_shot", None, answers(20))
    add(store, "sst2", "icr", 0, answers(30))
    table = only(store)
    versus = row(table, "icr").scores["average"].versus
    assert versus is not None
    assert (versus.test, versus.p) == ("McNemar", pytest.approx(2 / 2**10))
    assert [column.name for column in table.columns] == ["sst2", "average"]


def test_examples_are_paired_by_id_not_by_place(store: Store) -> None:
    shuffled = np.random.default_rng(0).permutation(N)
    add(store, "sst2", "zero_shot", None, answers(20))
    store.write(record("sst2", "icr", 0, answers(30)), rows("sst2", answers(30), shuffled.tolist()))
    versus = row(only(store), "icr").scores["sst2"].versus
    assert versus is not None
    assert versus.p == pytest.approx(2 / 2**10)


def test_other_examples_are_refused(store: Store) -> None:
    add(store, "sst2", "zero_shot", None, answers(20))
    store.write(record("sst2", "icr", 0, answers(20)), rows("mr", answers(20)))
    with pytest.raises(UserError, match="icr on sst2 and zero-shot scored different examples"):
        leaderboards(store)


def test_record_and_examples_that_disagree_are_refused(store: Store) -> None:
    made = record("sst2", "icr", 0, answers(20))
    with pytest.raises(ValueError, match="21 right, but n is 40, 20 right"):
        store.write(made, rows("sst2", answers(21)))
    store.write(made, rows("sst2", answers(20)))
    cell = store.folder / "cells" / f"{made['key']}.json"
    older = {name: value for name, value in json.loads(cell.read_text()).items() if name != "sha256"}
    older |= {"schema": 1, "examples_sha256": None}  # which had no hashes
    cell.write_text(json.dumps(older))
    (store.folder / "examples" / f"{made['key']}.parquet").write_bytes(rows_file(rows("sst2", answers(21))))
    with pytest.raises(UserError, match="disagree"):
        leaderboards(store)


def test_missing_cell_empties_its_averages(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [30, 20, 30])  # no cb
    table = only(store)
    scores = row(table, "icr").scores
    assert [scores[name].status for name in ("cb", "far_ood", "average")] == ["missing"] * 3
    assert scores["id"].mean == pytest.approx(25 / 40)
    assert row(table, "icr").collapse is None
    averages, by_task, _ = grids(table)
    assert [entry.text for entry in averages.rows[1]] == ["icr", "62.5", "75.0", "", "", "", ""]
    assert by_task.rows[1][-1].text == "—"
    assert any(note.startswith("—: not run") for note in notes(table))


def test_failed_cell_is_shown_with_its_error(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [30, 20, 30])
    add(store, "cb", "icr", 0, answers(1), error="CUDA out of memory | 50%_of it")
    table = only(store)
    assert grids(table)[1].rows[1][-1].text == "failed (1)"
    assert row(table, "icr").scores["average"].mean is None
    assert "failed (1): RuntimeError: CUDA out of memory | 50%_of it" in notes(table)
    assert r"CUDA out of memory $|$ 50\%\_of it" in latex([table])


def test_error_message_is_not_markup(store: Store) -> None:
    add(store, "cb", "icr", 0, answers(1), error="no <b>*x*</b>\n# at `y`")
    assert r"- failed (1): RuntimeError: no &lt;b>\*x\*&lt;/b> # at \`y\`" in markdown([only(store)])


def test_missing_seed_is_partial(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [30, 20, 30, 20])
    fill(store, "icr", 1, [32, 20, 30])
    table = only(store)
    scores = row(table, "icr").scores
    assert (scores["cb"].status, scores["cb"].seeds) == ("partial", 1)
    assert scores["average"].mean is None
    assert grids(table)[1].rows[1][-1].text == "50.0 (1/2)"


def test_record_without_a_seed_stands_for_every_seed(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16])
    add(store, "sst2", "icr", 0, answers(30))
    add(store, "sst2", "icr", 1, answers(34))
    add(store, "trec", "icr", None, answers(20))
    scores = row(only(store), "icr").scores
    assert scores["trec"].status == "ok"
    assert scores["average"].mean == pytest.approx((32 + 20) / 2 / 40)
    assert scores["average"].std == pytest.approx(np.std([25 / 40, 27 / 40], ddof=1))


def test_no_zero_shot_means_no_comparison(store: Store) -> None:
    fill(store, "icr", 0, [30, 20, 30, 20])
    table = only(store)
    assert row(table, "icr").scores["average"].versus is None
    assert row(table, "icr").collapse is None


def test_best_second_and_ties(store: Store) -> None:
    for label, counts in {"zero_shot": [20, 9], "a": [30, 9], "b": [30, 9], "c": [25, 9]}.items():
        fill(store, label, None, counts)
    table = only(store)
    ranks = {label: table.rank("sst2", row(table, label)) for label in ("zero_shot", "a", "b", "c")}
    assert ranks == {"zero_shot": 0, "a": 1, "b": 1, "c": 2}
    assert [table.rank("trec", r) for r in table.rows] == [0] * 4  # nothing to tell apart
    text = markdown([table])
    assert text.count("**75.0**") == 2
    assert text.count("<u>62.5</u>") == 1
    assert latex([table]).count(r"\textbf{75.0}") == 2
    assert r"\underline{62.5}" in latex([table])
    assert "\033[1m75.0\033[0m" in terminal([table])


def test_data_of_different_kinds_never_meet(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16], kind="demo")
    fill(store, "zero_shot", None, [20, 16], limit=200)
    fill(store, "zero_shot", None, [20, 16])
    fill(store, "zero_shot", None, [20, 16], limit=20)
    assert [table.group.data for table in leaderboards(store)] == [
        "real data, full test sets",
        "real data, 200 test rows a task",
        "real data, 20 test rows a task",
        "demo data (bundled, hand-written)",
    ]
    assert "say nothing about a method" in markdown(leaderboards(store)[-1:])
    assert "say nothing about a method" not in markdown(leaderboards(store)[:-1])


def test_newer_data_or_task_version_is_another_table(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16])
    fill(store, "icr", 0, [30, 20])
    later = "2026-12-01T10:00:00+00:00"
    add(store, "sst2", "zero_shot", None, answers(24), sha="bb", finished=later)
    add(store, "trec", "zero_shot", None, answers(24), version=2, finished=later)
    add(store, "trec", "icr", 0, answers(28), version=2, finished=later)
    new, old = leaderboards(store)
    assert (new.group.edition, old.group.edition) == (0, 1)
    assert row(new, "zero_shot").scores["average"].mean == pytest.approx(24 / 40)
    assert row(new, "icr").scores["sst2"].status == "missing"
    assert row(new, "icr").scores["trec"].mean == pytest.approx(28 / 40)
    assert row(old, "icr").scores["average"].mean == pytest.approx(25 / 40)
    assert "superseded" in old.group.title


def test_model_revisions_are_tables_of_their_own(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16], revision="r1")
    fill(store, "zero_shot", None, [24, 16], revision="r2", finished="2026-12-01T10:00:00+00:00")
    titles = [table.group.title for table in leaderboards(store)]
    assert [re.findall(r"revision \w+", title) for title in titles] == [["revision r2"], ["revision r1"]]


def test_changed_method_is_a_row_of_its_own(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16])
    fill(store, "icr", 0, [30, 20], identity={"method": {"rank": 4}})
    new = {"identity": {"method": {"rank": 8}}, "finished": "2026-12-01T10:00:00+00:00"}
    fill(store, "icr", 0, [34, 20], **new)
    table = only(store)
    assert row(table, "icr").scores["sst2"].mean == pytest.approx(34 / 40)
    assert [r.label for r in table.rows if "older" in r.label and r.label.startswith("icr (older, ")]


def test_variants_of_one_of_several_methods_are_a_leaderboard_of_their_own(store: Store) -> None:
    for label, right in (("zero_shot", 20), ("few_shot", 22), ("icr", 24), ("icr:rank=4", 26), ("icr:rank=2", 23)):
        fill(store, label, None if label == "zero_shot" else 0, [right] * 4)
    assert [r.label for r in only(store).rows][2] == "icr:rank=4"  # one method, and what was changed in it
    fill(store, "icv", 0, [25] * 4)
    fill(store, "icv:rank=1", 0, [25] * 4)
    methods, of_icr, of_icv = leaderboards(store)
    assert [r.label for r in methods.rows] == ["zero_shot", "few_shot", "icv", "icr"]
    assert [r.label for r in of_icr.rows] == ["zero_shot", "icr:rank=4", "icr", "icr:rank=2"]
    assert [r.label for r in of_icv.rows] == ["zero_shot", "icv", "icv:rank=1"]
    assert ["variants of icr" in table.group.title for table in (methods, of_icr, of_icv)] == [False, True, False]
    assert not [r for r in methods.rows if r.change]
    assert [r.label for r in of_icr.rows if r.change] == ["zero_shot", "icr:rank=4", "icr:rank=2"]

    lines = [line for line in csv.DictReader(io.StringIO(render.csv([methods, of_icr]))) if line["column"] == "average"]
    assert {line["variants_of"] for line in lines} == {"", "icr"}
    (line,) = (line for line in lines if line["method"] == "icr:rank=4")
    assert float(line["vs_plain"]) == pytest.approx(2 / 40)
    assert line["vs_plain_p_holm"]
    text = markdown([of_icr])
    assert "vs icr [95 %] p" in text
    assert "against plain icr, p corrected over the rows" in text
    assert "vs icr" not in markdown([methods])


def test_a_variant_without_its_plain_method_stays_among_the_methods(store: Store) -> None:
    for label in ("zero_shot", "icr:rank=4", "icv"):
        fill(store, label, 0, [20] * 4)
    assert len(only(store).rows) == 3


def test_what_a_variant_changes_is_corrected_over_rows_and_columns_of_a_kind(store: Store) -> None:
    fill(store, "zero_shot", None, [20] * 4)
    fill(store, "icv", 0, [20] * 4)
    fill(store, "icr", 0, [20, 21, 20, 20])
    for place, right in enumerate((26, 30, 15)):
        fill(store, f"icr:rank={place + 1}", 0, [right] * 4)
    fill(store, "icr:rank=4", 0, [30, 30])  # without the other tasks, so without an average
    table = leaderboards(store)[1]
    for names in (["sst2", "trec", "mr", "cb"], ["id", "near_ood", "far_ood"], ["average"]):
        changes = [r.changes[name] for r in table.rows for name in names if name in r.changes]
        assert [c.p_holm for c in changes] == pytest.approx(stats.holm([c.versus.p for c in changes]))
        assert max(c.p_holm / c.versus.p for c in changes) > 1
    assert row(table, "icr").changes == {}
    assert set(row(table, "icr:rank=4").changes) == {"sst2", "trec", "id"}
    assert row(table, "icr:rank=2").changes["trec"].versus.difference == pytest.approx(9 / 40)


def test_two_results_for_one_cell_are_an_error_naming_the_file(store: Store) -> None:
    old = add(store, "sst2", "icr", 0, answers(30), identity={"fit": "a"})
    later = "2026-12-01T10:00:00+00:00"
    add(store, "sst2", "icr", 0, answers(31), identity={"fit": "b"}, finished=later)
    with pytest.raises(UserError, match=rf"differ in fit: delete .*{old}\.json"):
        leaderboards(store)


def test_a_method_with_less_than_its_paper_gives_it_is_named_below_the_table(store: Store) -> None:
    fill(store, "zero_shot", None, [20], more={"below_published": {}, "fit_steps": 0, "fit_examples": 0})
    assert not [note for note in notes(only(store)) if "budget" in note]
    below = {"batch_size": [4, 8], "most_steps": [50, None]}
    fill(store, "live", 0, [22], more={"below_published": below, "fit_steps": 50, "fit_examples": 200})
    (note,) = [note for note in notes(only(store)) if "budget" in note]
    assert note.startswith("Less than the published budget")
    assert note.endswith(": live (batch_size 4 of 8, most_steps 50 of no limit).")
    text = markdown([only(store)])
    assert escape_markdown(note) in text
    assert "Fit, steps" in text
    details = {row["label"]: row["detail"] for row in table_data(only(store), metrics=False)["rows"]}
    assert ("Training", "50 steps on 200 examples") in details["live"]["facts"]
    assert ("Below the published budget", "batch_size 4 of 8, most_steps 50 of no limit") in details["live"]["facts"]
    assert not {"Training", "Below the published budget"} & {name for name, _ in details["zero_shot"]["facts"]}


def test_footnotes(store: Store) -> None:
    found = {"pairs": {"sst2->mr": 74, "trec->cb": 0}, "clean": False}
    add(store, "mr", "zero_shot", None, answers(20), contamination=found, truncated=3)
    text = "\n".join(notes(only(store)))
    assert "Training texts that are also test texts (left in the training data): 74 of sst2 in mr." in text
    assert "zero_shot on mr 3 of 40" in text
    assert "Test rows: mr 40." in text
    assert "Seeds: zero_shot 1." in text


def test_provenance(store: Store) -> None:
    base = {"python": "3.11.9", "packages": {"torch": "2.13", "icrbench": "0.1.0"}, "machine": "2 cores"}
    add(store, "sst2", "zero_shot", None, answers(20), environment={**base, "commit": "abc", "dirty": True})
    extra = {**base, "commit": "def", "command": "icrbench run --limit 9"}
    add(store, "mr", "zero_shot", None, answers(20), environment=extra)
    text = markdown(leaderboards(store))
    for words in ("abc with uncommitted changes", "def", "torch 2.13", "2 cores", "icrbench run --limit 9"):
        assert words in text


def test_files(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = full(store)
    paths = write_report(store.folder, tmp_path / "out")
    assert [path.name for path in paths] == [f"leaderboard.{kind}" for kind in ("md", "csv", "tex", "html")]
    assert paths[0].read_text() == markdown([table])
    lines = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    assert len(lines) == len(table.rows) * len(table.columns)
    (icr,) = [line for line in lines if (line["method"], line["column"]) == ("icr", "average")]
    score = row(table, "icr").scores["average"]
    assert score.interval is not None
    assert float(icr["accuracy"]) == pytest.approx(score.mean)
    assert float(icr["ci_low"]) == pytest.approx(score.interval.low)
    assert icr["collapse"] == "0"
    print_report(store.folder)
    assert capsys.readouterr().out.startswith("# Leaderboard")


def test_latex_is_balanced_and_escaped(store: Store) -> None:
    fill(store, "few_shot:shots=10", 0, [20, 16, 22, 12])
    text = latex(leaderboards(store)).removeprefix(PREAMBLE)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.count("{") - body.count(r"\{") == body.count("}") - body.count(r"\}")
    assert r"few\_shot:shots=10 $\ddagger$ & 45.0" in body
    assert not re.search(r"(?<!\\)[%_#]", body)
    assert all(word not in body for word in "—–−±·")
    columns = re.findall(r"\\begin\{tabular\}\{(\w+)\}", body)
    blocks = body.split(r"\toprule")[1:]
    for spec, block in zip(columns, blocks, strict=True):
        fields = [line.count("&") + 1 for line in block.split(r"\bottomrule")[0].splitlines() if "&" in line]
        assert set(fields) == {len(spec)}


def test_terminal_fits(store: Store) -> None:
    text = re.sub(r"\033\[\dm", "", terminal([full(store)]))
    assert max(len(line) for line in text.splitlines()) <= 120


def test_seventeen_methods_fit_a_terminal(store: Store) -> None:
    for number in range(17):
        for seed in range(2):
            fill(store, f"another_method_{number}" if number else "zero_shot", seed, [20 + seed, 16, 22, 12])
    text = re.sub(r"\033\[\dm", "", terminal([only(store)]))
    assert max(len(line) for line in text.splitlines()) <= 110
    assert len(re.findall("^another_method_16 ", text, re.MULTILINE)) == 2  # averages, tasks


def test_a_form_of_our_own_says_so_wherever_people_read(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [30, 20, 30, 20])
    words = "our own form after M2IV"
    tables = leaderboards(store)
    assert not [text for text in (markdown(tables), latex(tables), terminal(tables)) if words in text]
    fill(store, "m2iv:rank=4", 0, [30, 20, 30, 20], truncated=3)
    tables = leaderboards(store)
    for text in (markdown(tables), latex(tables), terminal(tables)):
        assert words in text
        assert "M2IV-style:rank=4" in text
        assert "m2iv" not in text
    labels = {line["method"] for line in csv.DictReader(io.StringIO(render.csv(tables)))}
    assert labels == {"zero_shot", "icr", "m2iv:rank=4"}


def test_markdown_labels_with_bars(store: Store) -> None:
    fill(store, "icr:a=x|y", 0, [20])
    assert r"`icr:a=x\|y`" in markdown(leaderboards(store))


def test_damaged_folder_is_named(store: Store) -> None:
    key = add(store, "sst2", "icr", 0, answers(20))
    (store.folder / "examples" / f"{key}.parquet").unlink()
    with pytest.raises(UserError, match=rf"{key}\.parquet is missing"):
        leaderboards(store)


def test_reports_load_no_model() -> None:
    code = "import sys, icrbench.report; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_methods_that_show_demonstrations_are_marked_from_their_records(store: Store) -> None:
    for label in ("zero_shot", "few_shot", "icr"):
        fill(store, label, None if label == "zero_shot" else 0, [20, 20])
    fill(store, "icr:rank=4", 0, [20, 20], explicit=True)  # whatever hyperparameter makes a method so
    table = only(store)
    assert [row.name for row in table.rows if row.explicit] == ["few_shot ‡", "icr:rank=4 ‡"]
    assert "‡: explicit, since demonstrations stand before every query." in notes(table)
    text = re.sub(" +", " ", markdown([table]))
    assert "| `few_shot ‡` |" in text
    assert "| `icr` |" in text
    lines = list(csv.DictReader(io.StringIO(render.csv([table]))))
    assert {line["method"] for line in lines if line["explicit"] == "True"} == {"few_shot", "icr:rank=4"}


def test_a_method_without_cells_out_of_domain_is_said_to_be_not_applicable(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 20, 20, 20])
    fill(store, "icr", 0, [20, 20, 20, 20])
    fill(store, "hidden_calibration", 0, [20, 20])
    table = only(store)
    (line,) = [line for line in notes(table) if line.startswith("Not applicable")]
    assert line.startswith("Not applicable to MR, CB: hidden_calibration.")
    scores = row(table, "hidden_calibration").scores
    assert [scores[name].status for name in ("sst2", "mr", "average")] == ["ok", "missing", "missing"]
    assert scores["id"].mean == 0.5
