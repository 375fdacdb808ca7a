"""The table of tokens that ICR makes likelier across tasks (ICR paper, Table 16), from files that an analysis left."""

import json
from pathlib import Path
from typing import Any

from icrbench.errors import UserError
from icrbench.experiments import Experiment
from icrbench.report.render import Entry, Grid
from icrbench.report.tables.sheet import Sheet

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
    return [_sheet(experiment, path) for path in sorted((folder / "analysis").glob("iclness-*.json"))]


def _sheet(experiment: Experiment, path: Path) -> Sheet:
    try:
        content = json.loads(path.read_text("utf-8"))
        if (content["schema"], content["kind"]) != (1, "iclness"):
            raise ValueError
        model, label = str(content["model"]), str(content["label"])
        tokens = sorted(content["tokens"], key=lambda token: -float(token["score"]))[:TOP]
        rows = tuple(
            (Entry(shown(token["token"])), Entry(str(rank)), *(Entry(_number(name, token)) for name in _COLUMNS))
            for rank, token in enumerate(tokens, 1)
        )
        lines = tuple(
            {
                "model": model,
                "method": label,
                "seed": content.get("seed"),
                "rank": rank,
                **{name: token[name] for name in ("token", *_COLUMNS)},
            }
            for rank, token in enumerate(tokens, 1)
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is not a whole analysis of tokens: delete it and run the analysis again.") from error
    grid = Grid(experiment.title, ("token", "Rank", *_COLUMNS.values()), rows)
    seed = content.get("seed")
    title = " · ".join([model, label, *([] if seed is None else [f"seed {seed}"])])
    tasks = [f"Tasks: {', '.join(content['tasks'])}."] if "tasks" in content else []
    return Sheet(title, grid, (_NOTE, *tasks, "␣: a space."), (("analysis", path.name),), lines)


def shown(token: str) -> str:
    """A token with its spaces (as text, SentencePiece and byte-level BPE write them) and control characters visible."""
    return "".join("␣" if c in " ▁Ġ" else c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)


def _number(name: str, token: dict[str, Any]) -> str:
    value = float(token[name])
    return f"{value:,.0f}" if name == "borda" else f"{value:.2f}" if name == "share" else f"{value:.3f}"
