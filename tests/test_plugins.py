import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cli_setup import Commands, icrbench
from icr_setup import pools
from icrbench.method import FitData, Fitted
from icrbench.randomness import Randomness
from icrbench.registry import import_folder, make_method, methods
from icrbench.runner.identity import code_identity
from test_contract import fingerprint, logits_of
from tiny import tiny_backbone

__all__ = ["icrbench"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_registry")

DOC = Path(__file__).parents[1] / "docs" / "add_a_method.md"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The documented example, saved as the document says."""
    code = re.findall(r"```python\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    assert len(code) == 1
    folder = tmp_path / "my_methods"
    folder.mkdir()
    (folder / "mean_shift.py").write_text(code[0], "utf-8")
    return folder


def test_the_documented_example_runs_from_one_file(icrbench: Commands, mine: Path) -> None:
    assert "mean_shift" in icrbench("list", "methods", "--methods-dir", mine).out
    done = icrbench.run("--methods-dir", mine, methods="zero_shot,mean_shift,mean_shift:strength=0", tasks="sst2,mr")
    assert (done.code, done.counts) == (0, (6, 0, 0))
    found = {(r["cell"]["label"], r["cell"]["task"]): r for r in icrbench.records()}
    sweep = next((icrbench.folder / "out" / "fitted").glob("mean_shift-*/fitted.json")).read_text()
    assert '"sweep": [' in sweep
    for task in ("sst2", "mr"):
        zero = found["mean_shift:strength=0", task]["result"]
        assert zero is not None
        assert zero["correct"] == found["zero_shot", task]["result"]["correct"]  # type: ignore[index]
        assert zero["cached_parameters"] == 48
        assert zero["cached_formula"] == "d"
        assert zero["fit_sequences"] > 0
    again = icrbench.run("--methods-dir", mine, methods="mean_shift", tasks="sst2,mr")
    assert again.counts == (0, 2, 0)


def test_an_edited_file_is_another_identity(icrbench: Commands, mine: Path) -> None:
    assert icrbench.run("--methods-dir", mine, methods="mean_shift").counts == (1, 0, 0)
    source = (mine / "mean_shift.py").read_text()
    (mine / "mean_shift.py").write_text(source + "\n# edited\n")
    code_identity.cache_clear()  # as in a new process
    assert icrbench.run("--methods-dir", mine, methods="mean_shift").counts == (1, 0, 0)


def test_the_example_keeps_the_contract(mine: Path) -> None:
    import_folder(mine)
    backbone = tiny_backbone("gemma3")
    before, plain = fingerprint(backbone), logits_of(backbone, Fitted({}, {}))
    made = make_method("mean_shift", {"per_class": 1, "held_out": 4})
    fitted = made.fit(backbone, FitData(pools("sst2"), "sst2", Path("unused")), Randomness(0))
    assert (logits_of(backbone, fitted) != plain).any()
    assert fingerprint(backbone) == before


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_thing", "ModuleNotFoundError at FILE:1: No module named 'no_such_thing'"),
        ("x = 1\ny = = 2", "SyntaxError at FILE:2: invalid syntax"),
        ("\n\n1 / 0", "ZeroDivisionError at FILE:3: division by zero"),
    ],
)
def test_files_that_cannot_be_imported(icrbench: Commands, mine: Path, code: str, problem: str) -> None:
    (mine / "broken.py").write_text(code)
    done = icrbench("list", "methods", "--methods-dir", mine)
    assert done.code == 2
    assert problem.replace("FILE", str(mine / "broken.py")) in done.err
    assert len(done.err.splitlines()) == 1


def test_a_name_that_is_taken_and_a_folder_that_is_not_there(icrbench: Commands, mine: Path) -> None:
    source = (mine / "mean_shift.py").read_text()
    (mine / "mean_shift.py").write_text(source.replace('register("mean_shift")', 'register("icr")'))
    assert "two methods are named 'icr'" in icrbench("list", "methods", "--methods-dir", mine).err
    done = icrbench("list", "methods", "--methods-dir", mine / "nowhere")
    assert (done.code, "give --methods-dir the folder" in done.err) == (2, True)


def test_files_of_a_folder_may_import_each_other(mine: Path) -> None:
    (mine / "another.py").write_text(
        "from icrbench.method import register\nfrom .mean_shift import MeanShift\n\n\n"
        '@register("another")\nclass Another(MeanShift):\n    """One more."""\n'
    )
    import_folder(mine)
    assert {"another", "mean_shift"} <= set(methods())


def test_methods_of_installed_packages(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine))

    def entry_points(**chosen: Any) -> Any:
        assert chosen == {"group": "icrbench.methods"}
        return metadata.EntryPoints([metadata.EntryPoint("mine", "mean_shift", "icrbench.methods")])

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert "mean_shift" in methods()
    del sys.modules["mean_shift"]
