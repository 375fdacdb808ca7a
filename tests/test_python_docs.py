"""docs/python.md: its code is run as it stands, on a tiny model in place of the real one."""

import re
from pathlib import Path

import pytest

from cli_setup import model_folder

DOC = Path(__file__).parents[1] / "docs" / "python.md"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace("gemma-270m", str(model_folder())).replace("limit=20", "limit=4"), names)
    printed = capsys.readouterr().out
    assert "accuracy" in printed
    assert "zero-shot" in printed
    whole, tail = names["tokens"], names["icv"]
    assert len(whole) == 2  # type: ignore[arg-type]
    assert type(tail).__name__ == "Fit"
