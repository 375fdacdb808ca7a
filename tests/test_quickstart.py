"""examples/quickstart.ipynb runs from its first cell to its last, on a tiny model in place of the real one."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cli_setup import model_folder

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # zmq's and tornado's own, with Python 3.11's event loops
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    text = NOTEBOOK.read_text("utf-8")
    assert '"outputs": []' in text  # nothing is committed that was not computed here
    notebook: Any = nbformat.reads(text.replace("gemma-270m", str(model_folder())).replace("limit=20", "limit=4"), 4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    run, board, rows, fit = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert any(WIDGET in output.get("data", {}) for output in run)  # a notebook's own bars
    assert "accuracy" in run[-1].data["text/html"]
    assert "<table>" in board[-1].data["text/html"]
    assert "zero_shot" in rows[-1].data["text/plain"]
    assert fit[-1].output_type == "execute_result"
    assert not [output for outputs in (run, board, rows, fit) for output in outputs if output.get("name") == "stderr"]
