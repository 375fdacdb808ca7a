"""The table of tokens that ICR makes likelier across tasks (ICR paper, Table 16), from files that an analysis left."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from icrbench.experiments import Experiment
from icrbench.report.analyses import read_analyses
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.names import display_name, form_notes

TOP = 50
_NOTE = (
    "Gain of a token: log probability with ICR less that of zero-shot, mean over the examples of a task. Mean, std and"
    " share of tasks in which it is positive are over tasks; Borda adds up over tasks how many tokens gain less; score"
    f" = mean / std × share × log(1 + Borda). The best {TOP} tokens by score."
)
_COLUMNS = {"mean": "Mean", "std": "Std", "share": "Share > 0", "borda": "Borda", "score": "Score"}


def iclness_sheets(experiment: Experiment, folder: Path) -> list[Sheet]:
    """One block a model and method; none where no analysis was made.

    Raises:
        UserError: for a file that is cut or not ours (it is named).
    """
    found = read_analyses(folder, "iclness", partial(_sheet, experiment))
    return [replace(sheet, origin=(("analysis", name),)) for name, sheet in found.items()]


def _sheet(experiment: Experiment, content: dict[str, Any]) -> Sheet:
    model, label, seed = str(content["model"]), str(content["label"]), content.get("seed")
    tokens = sorted(content["tokens"], key=lambda token: -float(token["score"]))[:TOP]
    rows = tuple(
        (Entry(shown(token["token"])), Entry(str(rank)), *(Entry(_number(name, token)) for name in _COLUMNS))
        for rank, token in enumerate(tokens, 1)
    )
    where = {"model": model, "method": label, "seed": seed}
    lines = tuple(
        {**where, "rank": rank, **{name: token[name] for name in ("token", *_COLUMNS)}}
        for rank, token in enumerate(tokens, 1)
    )
    grid = Grid(experiment.title, ("token", "Rank", *_COLUMNS.values()), rows)
    title = " · ".join([model, display_name(label), *([] if seed is None else [f"seed {seed}"])])
    tasks = [f"Tasks: {', '.join(content['tasks'])}."] if "tasks" in content else []
    return Sheet(title, grid, (_NOTE, *tasks, "␣: a space.", *form_notes([label])), (), lines)


def shown(token: str) -> str:
    """Make the spaces of a token (as text, SentencePiece and byte-level BPE write them) and its controls visible."""
    return "".join("␣" if c in " ▁Ġ" else c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)


def _number(name: str, token: dict[str, Any]) -> str:
    value = float(token[name])
    return f"{value:,.0f}" if name == "borda" else f"{value:.2f}" if name == "share" else f"{value:.3f}"
