"""Fits on a model hub: what is sent, the card that says what it is, and how it comes back."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from icrbench.report.stats import wilson
from icrbench.store.artefact import DESCRIPTION, WEIGHTS, Artefact
from icrbench.store.records import CellRecord
from icrbench.store.store import Store
from icrbench.util.errors import UserError, said

FILES = (DESCRIPTION, WEIGHTS)


def push(fit: Path, repository: str, *, private: bool = False) -> str:
    """Send a fit to the hub with a model card; returns its address.

    Args:
        fit: its folder, ``OUT/fitted/METHOD-KEY``; results of ``OUT`` scored with it go into the card.
        repository: ``org/name``, made if it is not there.
        private: make it visible to its owner alone.

    Raises:
        UserError: if the folder holds no fit, or the hub refuses.
    """
    artefact = Artefact.read(fit)
    api = HfApi()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in FILES:
            shutil.copyfile(fit / name, folder / name)
        (folder / "README.md").write_text(card(artefact, _records(fit), repository), "utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Fit of {artefact.method.name}")
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise UserError(
                f"cannot push to '{repository}' ({said(error)}): check the name and `hf auth login`."
            ) from error
    return f"https://huggingface.co/{repository}"


def fetch(repository: str) -> Path:
    """Bring a fit from the hub, ``org/name`` or ``org/name@revision``; returns its folder.

    Raises:
        UserError: if it is not there, or the hub cannot be reached.
    """
    name, _, revision = repository.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UserError(
            f"no fit '{repository}': neither a folder, nor to be had from the hub ({said(error)})."
        ) from error


def card(artefact: Artefact, records: Sequence[CellRecord], repository: str) -> str:
    """Write the model card of a fit: method, model, data, scores with intervals, and how to load it.

    Args:
        artefact: the fit.
        records: results that were scored with it; none are needed.
        repository: what loads it.
    """
    method, model = artefact.method, artefact.model
    settings = ", ".join(f"{name}={value}" for name, value in method.hyperparameters().items()) or "none"
    parts = [
        "---\nlibrary_name: icrbench\ntags: [implicit-in-context-learning, icrbench]\n---",
        f"# {method.name} for {model.get('name')}",
        f"A fit of `{method.name}`, made with icrbench. It holds {artefact.fitted.cached_parameters} numbers.",
        f"- model: `{model.get('location')}` at `{model.get('revision')}`, weights `{model.get('weights')}`\n"
        f"- hyperparameters: {settings}",
        "## How to load it",
        "```python\nimport icrbench\n\n"
        f'fit = icrbench.load_fit("{repository}", "{model.get("name")}")\n'
        'print(fit.generate(["Review: a gripping film\\nSentiment:"], max_new_tokens=3))\n```',
    ]
    if records:
        rows = ["| task | seed | data | rows | accuracy [95 %] |", "|---|---|---|---|---|"]
        rows += [_row(record) for record in records]
        parts += ["## Scores", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _row(record: CellRecord) -> str:
    result, cell = record["result"], record["cell"]
    assert result is not None, "failed cells are left out"
    low, high = wilson(result["correct"], result["n"])
    seed = "" if cell["seed"] is None else cell["seed"]
    score = f"{100 * result['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return f"| {cell['task']} | {seed} | {record['data']['kind']} | {result['n']} | {score} |"


def _records(fit: Path) -> list[CellRecord]:
    """Find the results of the folder a fit lies in that were scored with it."""
    store = Store(fit.resolve().parent.parent)
    if store.empty:
        return []
    found = [record for record in store.records() if record["status"] == "ok"]
    return [record for record in found if store.fit_folder(record["identity"]).name == fit.resolve().name]
