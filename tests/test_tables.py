"""Named tables: which records a row is, what stays visible as missing, the paper beside, and LaTeX that compiles."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from icrbench.cli import main
from icrbench.data.find_tasks import load_tasks
from icrbench.experiments import experiments
from icrbench.registry import make_method
from icrbench.report.leaderboard import PAPER, leaderboards
from icrbench.report.tables import write_tables
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.latex import escape_latex, floats
from icrbench.report.text.render import latex
from icrbench.runner.presets import preset
from icrbench.store.store import Store
from icrbench.util.cache import sealed
from icrbench.util.errors import UserError
from records import TASKS, add

N = 40
FLOAT = r"\scriptsize\setlength{\tabcolsep}{2.5pt}"
ICR = make_method("icr", preset("cpu").methods["icr"]).hyperparameters()


@pytest.fixture(autouse=True)
def twelve_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PAPER:
        task = load_tasks(None)[name]
        monkeypatch.setitem(TASKS, name, (task.title, task.role))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def fill(
    store: Store, label: str, correct: int, *, tasks: Sequence[str] = PAPER, seed: int | None = None, **more: Any
) -> None:
    """The same number of right answers of 40 on every task."""
    name = label.split(":")[0]
    hyperparameters = ICR | dict(pair.split("=") for pair in label.split(":")[1:]) if name == "icr" else {}
    identity = {"method": {"name": name, "hyperparameters": hyperparameters}, **more.pop("identity", {})}
    for task in tasks:
        add(store, task, label, seed, [n < correct for n in range(N)], identity=identity, **more)


def tables(store: Store, names: str, *, settings: Sequence[str] = (), compare: bool = False) -> dict[str, str]:
    """Contents by file name."""
    paths = write_tables(store.folder, store.folder, names, settings, compare=compare)
    return {path.name: path.read_text() for path in paths}


def grid(markdown: str) -> dict[str, list[str]]:
    """The first table of a file: entries by row name, without marks."""
    lines = [line for line in markdown.split("\n\n- ")[0].splitlines() if line.startswith("|")]
    rows = [[re.sub(r"\*\*|</?u>", "", entry).strip() for entry in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in [rows[0], *rows[2:]]}


def numbers(text: str) -> dict[tuple[str, str], dict[str, str]]:
    return {(line["row"], line["column"]): line for line in csv.DictReader(text.splitlines())}


def test_a_group_with_only_some_rows_of_another_is_named_below_it(store: Store) -> None:
    for label in ("icr", "icr:rank=4"):
        fill(store, label, 30)
    fill(store, "icr", 10, limit=20, sha="bb")
    text = tables(store, "pids")["pids.md"]
    assert text.count("\n## ") == 1
    assert "75.0" in text
    assert (
        "Only some of these rows are there, and are not shown, in: tiny · protocol paper · real data, 20 test rows"
        in text
    )
    fill(store, "icr:basis=random", 10, limit=20, sha="bb")
    assert tables(store, "pids")["pids.md"].count("\n## ") == 2


def test_rows_that_were_not_run_stay_visible_and_averages_that_lack_a_task_stay_empty(store: Store) -> None:
    fill(store, "zero_shot", 20)
    fill(store, "icr", 30, tasks=PAPER[:-1])
    made = grid(tables(store, "main")["main.md"])
    assert list(made) == ["method", "Zero-shot", "Few-shot", "I2CL", "LIVE", "M2IV-style", "ICR"]
    assert made["method"] == [*PAPER, "Average", "Collapse"]
    assert made["Zero-shot"] == ["50.0"] * 13 + [""]
    assert made["Few-shot"] == ["—"] * 12 + ["", ""]
    assert made["ICR"] == ["75.0"] * 11 + ["—", "", ""]


def test_averages_by_role_need_only_their_own_tasks(store: Store) -> None:
    fill(store, "icr", 30, tasks=PAPER[:-1])
    made = grid(tables(store, "pids")["pids.md"])
    assert made["method"] == ["ID", "Near OOD", "Far OOD", "Average", "Collapse"]
    assert made["rank 8"] == ["75.0", "75.0", "", "", ""]
    assert made["rank 4"] == ["—", "—", "—", "", ""]


def test_a_table_in_domain_averages_and_counts_collapse_over_its_five_tasks(store: Store) -> None:
    fill(store, "zero_shot", 20)
    fill(store, "icr", 30, tasks=PAPER[1:5])
    fill(store, "icr", 10, tasks=PAPER[:1])
    made = grid(tables(store, "training-free")["training-free.md"])
    assert made["ICR"] == ["25.0", "75.0", "75.0", "75.0", "75.0", "65.0", "1"]


def test_a_hyperparameter_that_is_the_runs_own_default_need_not_stand_in_the_label(store: Store) -> None:
    fill(store, "icr", 30)
    fill(store, "icr:domains=all", 10)
    made = grid(tables(store, "domains")["domains.md"])
    assert made["matched-3"][-2] == "75.0"  # what this run's plain ICR learns from
    assert made["matched-5"][-2] == "25.0"
    assert made["mismatched"][0] == "—"


def test_the_runs_settings_are_part_of_every_label(store: Store) -> None:
    fill(store, "icr:rank=4", 30)
    fill(store, "icr:rank=4:w_gate=0", 10)
    fill(store, "icr:w_gate=0", 20)
    made = grid(tables(store, "components", settings=["icr.rank=4"])["components.md"])
    assert (made["ICR"][-2], made["without L_gate"][-2]) == ("75.0", "25.0")
    made = grid(tables(store, "components")["components.md"])
    assert (made["ICR"][0], made["without L_gate"][-2]) == ("—", "50.0")


def test_what_does_not_compare_stands_in_blocks_of_its_own(store: Store) -> None:
    fill(store, "icr", 30)
    fill(store, "icr:basis=random", 10, limit=20, sha="bb")
    text = tables(store, "pids")["pids.md"]
    full, subset = text.split("\n## ")[1:]
    assert "full test sets" in full.splitlines()[0]
    assert "20 test rows" in subset.splitlines()[0]
    assert "75.0" in full
    assert "25.0" not in full
    assert "75.0" not in subset


def test_rows_are_named_and_the_command_for_missing_ones_given(store: Store) -> None:
    fill(store, "icr", 30)
    text = tables(store, "components")["components.md"]
    assert "without L_gate = icr:w_gate=0" in text
    assert "icrbench run --experiment components --models tiny" in text
    assert "Seeds: icr 1." in text
    fill(store, "icr:rank=4", 20)
    fill(store, "icr:rank=12", 20)
    fill(store, "icr:basis=random", 20)
    assert "--experiment" not in tables(store, "pids")["pids.md"].split("### Provenance")[0]


def test_failed_cells_show_their_error(store: Store) -> None:
    fill(store, "icr", 30, tasks=PAPER[1:])
    fill(store, "icr", 1, tasks=PAPER[:1], error="out of memory")
    text = tables(store, "encoder")["encoder.md"]
    assert grid(text)["all-MiniLM-L6-v2"][0] == "failed (1)"
    assert "failed (1): RuntimeError: out of memory" in text


def test_all_writes_what_has_a_cell_and_a_name_alone_writes_an_empty_table(store: Store) -> None:
    fill(store, "few_shot", 30)
    names = {name.removesuffix(".md") for name in tables(store, "all") if name.endswith(".md")}
    assert names == {"main", "scale", "parameters", "calibration"}
    made = grid(tables(store, "pids")["pids.md"])
    assert made["rank 8"] == ["—", "—", "—", "", ""]
    fill(store, "icr", 30)
    names = {name.removesuffix(".md") for name in tables(store, "all") if name.endswith(".md")}
    assert names == {name for name, own in experiments().items() if own.vary is None} - {"iclness"}


def test_csv_has_one_line_a_number(store: Store) -> None:
    fill(store, "icr", 30, seed=0)
    fill(store, "icr", 20, seed=1)
    found = numbers(tables(store, "main")["main.csv"])
    icr = found["ICR", "sst2"]
    assert (icr["method"], icr["accuracy"], icr["seeds"], icr["status"]) == ("icr", "0.625", "2", "ok")
    assert (found["M2IV-style", "sst2"]["method"], found["M2IV-style", "sst2"]["status"]) == ("m2iv", "missing")
    assert found["M2IV-style", "average"]["accuracy"] == ""


def test_the_papers_numbers_beside_ours(store: Store) -> None:
    fill(store, "zero_shot", 20)
    fill(store, "icr", 30)
    made = tables(store, "main", compare=True)
    assert made["main.md"].startswith("# Main results (the ICR paper's Tables 1 and 7)\n")
    text = made["main-vs-paper.md"]
    llama2, qwen, llama3 = text.split("\n## ")[1:]
    lines = [re.sub(" +", " ", line) for line in llama2.splitlines() if line.startswith("|")]
    icr = next(number for number, line in enumerate(lines) if line.startswith("| ICR "))
    assert lines[icr].startswith("| ICR | paper | 86.6 | 86.4 | 83.8 |")
    assert lines[icr].endswith("| 59.9 | 0 |")
    assert lines[icr + 1].startswith("| | ours | 75.0 | 75.0 | 75.0 |")
    assert lines[icr + 2].startswith("| | difference | −11.6 | −11.4 | −8.8 |")
    assert lines[icr + 2].endswith("| +15.1 | 0 |")
    assert "The models differ (ours tiny, the paper's Llama2-7B)" in llama2
    assert "†" not in llama2
    assert "†: Table 1 prints average 75.6 for i2cl on Qwen2.5-7B" in qwen
    assert "75.8 †" in qwen  # recomputed, and marked
    assert "62.2" in llama3
    line = next(
        line
        for line in csv.DictReader(made["main-vs-paper.csv"].splitlines())
        if (line["row"], line["paper_model"], line["column"]) == ("I2CL", "Qwen2.5-7B", "average")
    )
    assert (line["paper"], line["paper_printed"], line["ours"], line["difference"]) == ("75.75", "75.6", "", "")


def test_all_flagged_averages_are_shown_where_their_tables_are(store: Store) -> None:
    fill(store, "icr", 30)
    fill(store, "zero_shot", 20)
    flagged = {
        name: sorted(set(re.findall(r"†: Table (\d+) prints average ([\d.]+)", text)))
        for name, text in tables(store, "all", compare=True).items()
        if name.endswith(".md")
    }
    assert {name: flags for name, flags in flagged.items() if flags} == {
        "main-vs-paper.md": [("1", "75.6")],
        "training-free-vs-paper.md": [("2", "74.3"), ("2", "81.2")],
        "scale-vs-paper.md": [("9", "77.6")],
    }


def test_the_papers_own_model_is_compared_with_itself_alone(store: Store) -> None:
    model = {"model": {"name": "mine", "location": "Qwen/Qwen2.5-7B", "revision": "r1"}}
    fill(store, "icr", 30, identity=model)
    text = tables(store, "main", compare=True)["main-vs-paper.md"]
    assert text.count("\n## ") == 1
    assert "Both are Qwen2.5-7B" in text
    assert "The models differ" not in text


def test_every_block_with_a_form_of_our_own_says_so_once(store: Store) -> None:
    fill(store, "zero_shot", 20)
    fill(store, "icr", 30)
    for name, text in tables(store, "main,cost,parameters,pids", compare=True).items():
        if name.endswith(".md"):
            blocks = text.split("\n## ")[1:]
            assert [block.count("our own form after M2IV") for block in blocks] == [int("pids" not in name)] * len(
                blocks
            )


def test_a_table_that_the_paper_does_not_have_is_not_compared(store: Store) -> None:
    fill(store, "icr", 30)
    assert set(tables(store, "ranks", compare=True)) == {"ranks.md", "ranks.csv", "ranks.tex"}


def test_costs_come_from_the_records(store: Store) -> None:
    fill(store, "icr", 30, tasks=PAPER, identity={"target": None})
    for task in PAPER:
        fill(store, "i2cl", 30, tasks=[task], identity={"target": task})
    for path in (store.folder / "cells").glob("*.json"):
        record = json.loads(path.read_text())
        record["result"] |= {"seconds_fit": 36.0, "fit_tokens": 1000, "fit_peak_bytes": 3 * 2**20}
        record["result"] |= {"seconds_score": 2.0, "cached_parameters": 7, "cached_formula": "2dL"}
        path.write_bytes(sealed({name: value for name, value in record.items() if name != "sha256"}))
    made = tables(store, "cost,parameters", compare=True)
    costs = grid(made["cost.md"])
    assert costs["method"] == ["Fit, s", "All fits, s", "Fit, tokens", "Scoring, ms a row", "Fit peak, MiB"]
    assert costs["ICR"] == ["36.0", "36.0", "1,000", "50.0", "3"]
    assert costs["I2CL"] == ["36.0", "432", "1,000", "50.0", "3"]  # fitted once for each of twelve tasks
    assert costs["LIVE"] == ["—"] * 5
    assert grid(made["cost-vs-paper.md"])["I2CL"] == ["1.2", "0.0100", "−1.2", "0.12", "1.00"]
    assert grid(made["parameters.md"])["ICR"] == ["7", "2dL"]
    assert grid(made["parameters-vs-paper.md"])["ICR"] == ["2rdL", "2dL", "7"]
    assert numbers(made["cost.csv"])["ICR", "fit_seconds"]["value"] == "36.0"


def test_costs_that_old_records_lack_are_missing(store: Store) -> None:
    fill(store, "icr", 30, tasks=PAPER[:3])
    assert grid(tables(store, "cost")["cost.md"])["ICR"] == ["0.0", "—", "—", "25.0", "—"]


def analysis(folder: Path, tokens: Sequence[str]) -> None:
    (folder / "analysis").mkdir(exist_ok=True)
    rows = [
        {"token": token, "mean": 0.5, "std": 0.25, "share": 0.75, "borda": 1234, "score": float(place)}
        for place, token in enumerate(tokens)
    ]
    content = {"schema": 1, "kind": "iclness", "model": "tiny", "label": "icr", "tokens": rows}
    (folder / "analysis" / "iclness-tiny.json").write_text(json.dumps(content))


def test_tokens_come_from_the_analysis(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "icr", 30)
    with pytest.raises(UserError, match="no analysis of tokens in"):
        tables(store, "iclness")
    assert main(["report", str(store.folder), "--table", "all"]) == 0
    assert "`icrbench analyse --experiment iclness" in capsys.readouterr().err
    analysis(store.folder, [f"t{number}" for number in range(60)] + [" the", "|\n"])
    text = tables(store, "iclness")["iclness.md"]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(lines) == 50
    assert lines[0].split(" | ")[1].strip() == "1"
    assert r"\|" in lines[0]
    assert r"\n" in lines[0]
    assert lines[1].startswith("| ␣the ")
    (store.folder / "analysis" / "iclness-tiny.json").write_text('{"schema": 1}')
    with pytest.raises(UserError, match="not a whole analysis"):
        tables(store, "iclness")


def test_mistakes_are_one_sentence(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "ltv", 30)
    for arguments, words in [
        (["--table", "pid"], "unknown experiment 'pid': did you mean pids"),
        (["--table", "pids", "--set", "rank"], "cannot read 'rank'"),
        (["--table", "all"], "no cell in"),
        (["--compare-paper"], "no cell in"),
    ]:
        assert main(["report", str(store.folder), *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert words in error


def test_no_table_loads_a_model(store: Store) -> None:
    fill(store, "icr", 30)
    program = (
        "import sys; from icrbench.cli import main;"
        f"main(['report', {str(store.folder)!r}, '--table', 'all', '--compare-paper']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (store.folder / "tables" / "main-vs-paper.tex").exists()


def compiled(folder: Path, files: Sequence[Path], packages: str) -> str:
    """The log of a document with these files; fails if LaTeX has an error."""
    inputs = "\n".join(f"\\input{{{path}}}" for path in files)
    document = (
        f"\\documentclass{{article}}\n\\usepackage{{{packages}}}\n\\begin{{document}}\n{inputs}\n\\end{{document}}\n"
    )
    (folder / "all.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (Debian: texlive-latex-recommended)")
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,graphicx"])
def test_latex_compiles(store: Store, tmp_path: Path, packages: str) -> None:
    fill(store, "zero_shot", 20)
    fill(store, "icr", 30, seed=0)
    fill(store, "icr", 31, seed=1)
    awkward = r"50% of $x_1^2$ & #3 \foo {} ~ <|[]*--> — “é” 你 ☃ ɣ"
    fill(store, "few_shot", 1, seed=0, error=awkward)
    analysis(store.folder, [*"[*\\%&#$_{}~^<>|\"'`", "[", "é", "ß", "你", "\u0001", "--", " x", "\u202e", "\U0001f600"])
    paths = write_tables(store.folder, store.folder, "all", [], compare=True)
    (tmp_path / "leaderboard.tex").write_text(latex(leaderboards(store)))
    files = [path for path in paths if path.suffix == ".tex"]
    plain = [own for own in experiments().values() if own.vary is None]
    assert len(files) == len(plain) + 13  # with what stands beside the paper
    log = compiled(tmp_path, [*files, tmp_path / "leaderboard.tex"], packages)
    assert "Float too large" not in log
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\) in paragraph", log)]
    assert not [points for points in wide if points > 20]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (Debian: texlive-latex-recommended)")
def test_seventeen_methods_fit_the_page(store: Store, tmp_path: Path) -> None:
    labels = ["zero_shot", "few_shot", "icr", "i2cl", "m2iv", "live", *(f"another_method_{n}" for n in range(11))]
    for place, label in enumerate(labels):
        for seed in range(2):
            fill(store, label, 20 + (place + seed) % 9, seed=seed)
    files = [
        path for path in write_tables(store.folder, store.folder, "main", [], compare=True) if path.suffix == ".tex"
    ]
    (tmp_path / "leaderboard.tex").write_text(latex(leaderboards(store)))
    log = compiled(tmp_path, [*files, tmp_path / "leaderboard.tex"], "booktabs")
    assert "Overfull" not in log
    assert "Float too large" not in log
    made = "\n".join(path.read_text() for path in (*files, tmp_path / "leaderboard.tex"))
    tabulars = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", made, re.DOTALL)
    measured = "\n".join(rf"\sbox0{{{FLOAT}{tabular}}}\typeout{{WIDTH \the\wd0}}" for tabular in tabulars)
    (tmp_path / "measured.tex").write_text(measured)
    widths = re.findall(r"WIDTH ([\d.]+)pt", compiled(tmp_path, [tmp_path / "measured.tex"], "booktabs"))
    assert len(widths) == len(tabulars)
    assert max(map(float, widths)) <= 345  # as they are, without being scaled


def test_no_text_escapes_escaping() -> None:
    assert escape_latex("a_b 50% --x [y] 你 é\n") == r"a\_b 50\% -{}-x {[}y{]} \texttt{U+4F60} \'{e} "
    assert escape_latex("---") == "-{}-{}-"


def test_latex_notes_stand_outside_the_caption() -> None:
    text = "\n".join(floats(Grid("", ("method", "a"), ((Entry("icr"), Entry("1")),)), "Title", "A note."))
    assert text.startswith(r"\begin{table*}[tp]")
    assert r"\caption{Title.}" in text
    assert text.index(r"\caption{Title.}") < text.index("A note.") < text.index(r"\end{table*}")
