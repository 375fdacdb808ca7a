"""The one reader of what an analysis left."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from icrbench.experiments import get_experiments
from icrbench.report.analyses import read_analyses
from icrbench.report.figures.sources import latencies, routings, theories
from icrbench.report.tables.iclness import iclness_sheets
from icrbench.util.errors import UserError


def test_files_of_a_kind_by_name(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    for name, kind, value in (("routing-b", "routing", 2), ("routing-a", "routing", 1), ("latency-a", "latency", 3)):
        content = {"schema": 1, "kind": kind, "value": value}
        (tmp_path / "analysis" / f"{name}.json").write_text(json.dumps(content))
    found = read_analyses(tmp_path, "routing", lambda content: content["value"])
    assert list(found.items()) == [("routing-a.json", 1), ("routing-b.json", 2)]
    assert read_analyses(tmp_path / "none", "routing", lambda content: content) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 2, "kind": "KIND"}', '{"schema": 1, "kind": "KIND"}'])
def test_every_reader_says_the_same_of_a_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "analysis").mkdir()
    (experiment,) = get_experiments("iclness")
    readers: dict[str, Callable[[Path], object]] = {
        "routing": routings,
        "latency": latencies,
        "theory": theories,
        "iclness": lambda folder: iclness_sheets(experiment, folder),
    }
    said = set()
    for kind, read in readers.items():
        (tmp_path / "analysis" / f"{kind}-x.json").write_text(content.replace("KIND", kind))
        with pytest.raises(UserError, match=rf"{kind}-x\.json") as error:
            read(tmp_path)
        said.add(str(error.value).replace(kind, "KIND"))
    assert len(said) == 1
