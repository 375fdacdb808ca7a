import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icrbench.method_spec import declared_names
from icrbench.report import page, write_report
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.page import examples
from icrbench.report.page.about import about
from icrbench.report.text.render import grids
from icrbench.store.store import Store
from icrbench.util.code import PACKAGE
from records import N, add, answers, fill, record, rows, store

__all__ = ["store"]  # a fixture

EVIL = "icr:domains=<script>alert(1)</script>\"&'"
CSS = page.stylesheet()


class Page(HTMLParser):
    """Elements and text of a page as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        """Text up to the next tag, by element."""
        self.current: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.setdefault(tag, []).append("")
        self.current = tag

    def handle_endtag(self, tag: str) -> None:
        self.current = None

    def handle_data(self, data: str) -> None:
        if self.current:
            self.inside[self.current][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self) -> Any:
        return json.loads(self.inside["script"][0])


def build(store: Store) -> tuple[list[Table], Page, str]:
    tables = leaderboards(store)
    text = page.html(tables, [], store)
    return tables, Page(text), text


def full(store: Store) -> tuple[list[Table], Page, str]:
    fill(store, "zero_shot", None, [20, 16, 22, 12])
    fill(store, "icr", 0, [32, 20, 30, 20])
    fill(store, "icr", 1, [32, 22, 30, 18])
    fill(store, EVIL, 0, [30, 20, 30])
    add(store, "cb", EVIL, 0, answers(1), error='</script><img src=x onerror="alert(1)"> & <!-- \u2028')
    fill(store, "zero_shot", None, [20, 16, 22, 12], kind="demo")
    return build(store)


def test_needs_nothing_but_itself(store: Store) -> None:
    _, seen, text = full(store)
    assert [link["href"] for link in seen.all("link")] == ["data:,"]
    assert all("src" not in attributes for _, attributes in seen.elements)
    assert all((link["href"] or "").startswith("#") for link in seen.all("a"))
    # Names of namespaces, and links to papers, are no addresses that anything is loaded from.
    addresses = {line["link"] for line in seen.data["methods"].values() if "link" in line} | {
        "http://www.w3.org/2000/svg"
    }
    assert set(re.findall(r"\b\w+://[^\s\"']+", text)) == addresses
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", text)


def test_policy_admits_its_own_style_and_script_alone(store: Store) -> None:
    _, seen, _ = full(store)
    (policy,) = [m["content"] for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    data, script = seen.inside["script"]
    for text in (seen.inside["style"][0], script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert json.loads(data)
    assert not [
        name for _, attributes in seen.elements for name in attributes if name.startswith("on") or name == "style"
    ]


def test_records_are_text_never_markup(store: Store) -> None:
    tables, seen, _ = full(store)
    assert len(seen.all("script")) == 2
    assert seen.all("img") == []
    data = seen.data
    labels = [row["label"] for row in data["tables"][0]["rows"]]
    assert labels == [row.label for row in tables[0].rows]
    assert EVIL in labels
    assert '</script><img src=x onerror="alert(1)"> & <!--' in data["tables"][0]["errors"][0]
    assert any(f"{EVIL} has missing or failed cells" in text for text in seen.inside["dd"])


def test_structure(store: Store) -> None:
    tables, seen, text = full(store)
    assert text.startswith("<!doctype html>")
    assert seen.all("html") == [{"lang": "en"}]
    assert [len(seen.all(tag)) for tag in ("title", "h1", "main", "header", "footer", "dialog")] == [1] * 6
    assert seen.all("a")[0] == {"class": "skip", "href": "#main"}
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(a.get("aria-labelledby")) for _, a in seen.elements} - {None, "detail-title"} <= set(ids)
    verdicts = seen.all("article")
    assert [verdict["data-table"] for verdict in verdicts] == [str(place) for place in range(len(tables))]
    assert len(seen.all("noscript")) == 1


def test_numbers_are_those_of_the_other_outputs(store: Store) -> None:
    tables, seen, _ = full(store)
    for table, shown in zip(tables, seen.data["tables"], strict=True):
        averages, by_task, intervals = grids(table)
        task_columns = [place for place, column in enumerate(table.columns) if not column.is_average]
        for row, line, texts, ends, summary in zip(
            table.rows, shown["rows"], by_task.rows, intervals.rows, averages.rows, strict=True
        ):
            assert line["label"] == row.label
            for place, entry, interval in zip(task_columns, texts[1:], ends[1:-1], strict=True):
                score = line["scores"][place]
                if "mean" not in score:
                    assert entry.text.startswith(("failed (", "—"))
                    continue
                spread = f" ±{score['std']:.1f}" if "std" in score else ""
                assert entry.text == f"{score['mean']:.1f}{spread}"
                assert interval.text == "–".join(f"{end:.1f}" for end in score["ci"])
                assert score.get("rank", 0) == entry.rank
            last = line["scores"][-1]
            if "d" in last:
                signs = [f"{'−' if value < 0 else '+'}{abs(value):.1f}" for value in (last["d"], *last["dci"])]
                assert summary[-1].text == f"{signs[0]} [{signs[1]}, {signs[2]}] {last['p']}"
            assert line["collapse"] == row.collapse


def test_gaps_are_shown_and_never_averaged(store: Store) -> None:
    _, seen, _ = full(store)
    (line,) = [row for row in seen.data["tables"][0]["rows"] if row["label"] == EVIL]
    scores = dict(zip((c["name"] for c in seen.data["tables"][0]["columns"]), line["scores"], strict=True))
    assert scores["cb"] == {"status": "failed", "errors": [1]}
    assert scores["average"] == scores["far_ood"] == {"status": "missing"}
    assert "mean" in scores["id"]


def test_what_does_not_compare_stands_apart(store: Store) -> None:
    _, seen, _ = full(store)
    assert [table["title"] for table in seen.data["tables"]] == [
        "tiny · protocol paper · real data, full test sets",
        "tiny · protocol paper · demo data (bundled, hand-written)",
    ]
    assert any("demonstration rows" in text for text in seen.inside["dd"])


def test_variants_are_measured_against_the_plain_method(store: Store) -> None:
    for label, right in (("zero_shot", 20), ("icv", 20), ("icr", 24), ("icr:rank=4", 34)):
        fill(store, label, None if label == "zero_shot" else 0, [right] * 4)
    _, seen, _ = build(store)
    methods, variants = seen.data["tables"]
    assert (methods["reference"], variants["reference"]) == ("zero-shot", "icr")
    assert [row["label"] for row in variants["rows"] if row["reference"]] == ["icr"]
    differences = {row["label"]: [score.get("d") for score in row["scores"]] for row in variants["rows"]}
    assert differences == {"zero_shot": [-10.0] * 8, "icr": [None] * 8, "icr:rank=4": [25.0] * 8}
    assert [row["scores"][-1].get("d") for row in methods["rows"] if row["label"] == "icr"] == [10.0]
    assert "Cost of plain icr" in seen.inside["dt"]


def test_details_name_what_sets_a_row_apart(store: Store) -> None:
    plain = {"identity": {"method": {"name": "icr", "hyperparameters": {"rank": 8, "basis": "pca"}}}}
    other = {"identity": {"method": {"name": "icr", "hyperparameters": {"rank": 4, "basis": "pca"}}}}
    fill(store, "icr", 0, [20, 16], **plain)
    fill(store, "icr:rank=4", 0, [20, 16], **other, environment={"commit": "def", "command": "icrbench run --x"})
    (table,) = build(store)[1].data["tables"]
    details = {row["label"]: row["detail"] for row in table["rows"]}
    assert details["icr:rank=4"]["hyperparameters"] == {"rank": "4", "basis": "pca"}
    assert (details["icr"]["changed"], details["icr:rank=4"]["changed"]) == ([], ["rank"])
    assert ["Seeds", "1 (seed 0)"] in details["icr"]["facts"]
    # The table names one command, which is not the plain row's.
    assert ["command", "icrbench run --x"] in table["provenance"]
    assert ["command", ""] in details["icr"]["provenance"]
    assert ["commit", "def"] in details["icr:rank=4"]["provenance"]


def test_the_winner_is_shown_with_its_cost(store: Store) -> None:
    fill(store, "zero_shot", None, [20, 16])
    assert "Cost" not in build(store)[1].inside["dt"]  # nobody's
    fill(store, "icr", 0, [30, 16])
    _, seen, _ = build(store)
    (cost,) = [text for name, text in zip(seen.inside["dt"], seen.inside["dd"], strict=True) if name == "Cost"]
    # 10 tokens over the 40 rows of a cell
    assert cost == "Time of one fit: nothing to fit\nCached parameters: 0\nPrompt tokens an example: 0 (zero-shot 0)"


def characters(text: str) -> list[int]:
    return [ord(character) - 35 for character in text]


def test_every_bundled_method_is_described(store: Store) -> None:
    found = about(declared_names())
    assert found.keys() == set(declared_names())
    assert all(line["words"].endswith(".") for line in found.values())
    assert {name for name, line in found.items() if "link" not in line} == {"zero_shot"}
    assert all(line.get("link", "https://").startswith("https://") for line in found.values())
    assert about(["a_method_of_ones_own"]) == {}
    fill(store, "icv", 0, [20])
    (row,) = build(store)[1].data["tables"][0]["rows"]
    assert row["method"] == "icv"


def test_sources_are_named_as_the_documentation_names_them() -> None:
    listed = (PACKAGE.parent / "docs" / "methods.md").read_text("utf-8")
    lines = {line.split("`")[1]: line for line in listed.splitlines() if line.startswith("| `")}
    for name, line in about(declared_names()).items():
        assert line.get("paper", "") in lines[name]


def test_examples_are_the_stores(store: Store) -> None:
    order = np.random.default_rng(0).permutation(N).tolist()
    options = {"identity": {"task": {"name": "sst2", "options": ["negative", "positive"]}}}
    add(store, "sst2", "zero_shot", None, answers(20), **options)
    made = record("sst2", "icr", 0, answers(30), **options)
    store.write(made, rows("sst2", answers(30), order))
    (entry,) = build(store)[1].data["examples"]
    start, rests = entry["ids"]
    assert [start + rest for rest in rests] == [f"sst2/test/{number}" for number in range(N)]
    assert (entry["total"], entry["options"], entry["task"]) == (2, ["negative", "positive"], "sst2")
    zero, icr = entry["cells"]
    assert (zero["seed"], icr["seed"], icr["key"]) == (None, 0, made["key"])
    assert characters(zero["predictions"]) == [int(right) for right in answers(20)]
    assert characters(icr["predictions"]) == [int(right) for right in answers(30)]  # in the order of the first
    assert characters(entry["gold"]) == [1] * N
    assert characters(icr["counts"]) == [2] * N
    logits = np.frombuffer(base64.b64decode(icr["logits"]), "<i2").reshape(N, 2)
    assert (logits == [0, 150]).all()


def test_the_page_stays_small_and_counts_what_it_leaves_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "zero_shot", None, [20, 16])
    for seed in range(3):
        fill(store, "icr", seed, [30, 16])
    monkeypatch.setattr(examples, "MOST_CELLS", 5)
    monkeypatch.setattr(examples, "MOST_LOGITS", 3 * 2 * N)
    sst2, trec = build(store)[1].data["examples"]
    held = [[cell["seed"] for cell in entry["cells"]] for entry in (sst2, trec)]
    assert held == [[None, 0, 1], [None, 0]]  # every row's first seed before any second
    assert (sst2["total"], trec["total"]) == (4, 4)
    with_logits = [cell["logits"] is not None for entry in (sst2, trec) for cell in entry["cells"]]
    assert with_logits.count(True) == 3
    monkeypatch.setattr(examples, "MOST_PREDICTIONS", 2 * N)
    assert sum(len(entry["cells"]) for entry in build(store)[1].data["examples"]) == 2


def test_report_writes_it_the_same_each_time(store: Store, tmp_path: Path) -> None:
    _, _, text = full(store)
    paths = write_report(store.folder, tmp_path / "out")
    written = next(path for path in paths if path.name == "leaderboard.html")
    assert written.read_text("utf-8") == text


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_can_be_read_in_both_themes(theme: int) -> None:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
    colours = {name: pair[theme] for name, *pair in found}
    pairs = [
        (text, ground)
        for text in ("text", "quiet")
        for ground in ("ground", "surface", "up-tint", "down-tint")  # cells lie between surface and a tint
    ]
    pairs += [(text, "surface") for text in ("accent", "up", "down", "sure", "unsure")]
    pairs += [("accent", "ground"), ("on-accent", "accent")]
    for text, ground in pairs:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in ("edge", "up", "down", "quiet"):  # what has to be seen, but not read
        assert contrast(colours[line], colours["surface"]) >= 3, line
    assert not re.search(r"color: *#|background: *#", CSS)  # no colour outside the list above
