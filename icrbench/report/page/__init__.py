"""The leaderboard as one HTML file that needs no network, no server and no other file.

``index.html`` is the frame (Jinja, everything escaped), filled with rankings and verdicts; ``style/`` and ``script/``,
one file an idea, are joined and put into it. Numbers travel as one block of json, from which the script makes tables,
plots and the browser of single predictions. The content security policy admits these two texts by their hash, and
nothing else.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from icrbench import __version__
from icrbench.report import lm_eval_results
from icrbench.report.leaderboard import Table
from icrbench.report.lm_eval_results import Value
from icrbench.report.metrics import METRICS
from icrbench.report.page.about import about
from icrbench.report.page.costs import COSTS
from icrbench.report.page.data import cost, role_titles, table_data
from icrbench.report.page.examples import packed
from icrbench.report.page.ranking import ranking
from icrbench.report.verdict import WORDS, verdict
from icrbench.scoring.prior import KINDS, NAMES
from icrbench.store.store import Store

MOST_CELLS = 2_000
"""Up to so many cells the page has every metric, for which all their examples are read."""
_FOLDER = Path(__file__).parent
_STYLES = ("base", "ranking", "filters", "forest", "scatter", "scores", "detail", "examples", "narrow")
_SCRIPTS = (
    "elements",
    "numbers",
    "view",
    "address",
    "forest",
    "scatter",
    "scores",
    "models",
    "section",
    "detail",
    "ranking",
    "filters",
    "downloads",
    "theme",
    "examples",
    "start",
)
"""In this order; they share one scope."""


def html(tables: Sequence[Table], values: Sequence[Value], store: Store) -> str:
    """Return the page for the tables of a results folder and the numbers of lm-evaluation-harness found in it.

    Raises:
        UserError: if an examples file of the store is damaged.
    """
    style, script = Markup(stylesheet()), Markup(_script())
    few = sum(len(table.group.records) for table in tables) <= MOST_CELLS
    shown = [table_data(table, metrics=few and not table.group.written) for table in tables]
    verdicts = [verdict(table) for table in tables]
    costs = [
        cost(numbers, words.leader) if words.leader else "" for numbers, words in zip(shown, verdicts, strict=True)
    ]
    metrics = {name: [metric.title, metric.lower_is_better] for name, metric in METRICS.items()}
    data = {"tables": shown, "examples": packed(tables, store), "words": WORDS, "metrics": metrics, "costs": COSTS}
    data["methods"] = about(row.method for table in tables for row in table.rows)
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("index.html").render(
        version=__version__,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_json(data),
        tables=list(zip((table.group for table in tables), verdicts, map(ranking, tables), costs, strict=True)),
        words=WORDS,
        lm_eval=lm_eval_results.tables(values),
        models=sorted({table["model"] for table in shown}),
        protocols=sorted({table["protocol"] for table in shown}),
        roles=role_titles({table["protocol"] for table in shown}),
        metrics={name: metric.title for name, metric in METRICS.items() if few or name == "accuracy"},
        calibrations={kind: NAMES[kind] for kind in KINDS if any(kind in table.calibrated for table in tables)},
    )


def stylesheet() -> str:
    """Return the style of the page."""
    return "\n".join((_FOLDER / "style" / f"{name}.css").read_text("utf-8") for name in _STYLES)


def _script() -> str:
    files = "\n".join((_FOLDER / "script" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{files}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> Markup:
    """Json that stays data inside a script element: without "<" no tag or comment can start there."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
