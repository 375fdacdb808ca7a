"""The command line: what it prints, and that every mistake is one sentence with exit code 2."""

import json
import os
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cli_setup import Commands, icrbench, lines, model_folder, task_folder
from icrbench import __version__
from icrbench.cli import main
from icrbench.cli.describe_method import meanings
from icrbench.method_spec import declared_names
from icrbench.registry import methods

__all__ = ["icrbench"]  # a fixture


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "zeroshot"}, ("unknown method 'zeroshot'", "zero_shot")),
        ({"methods": "zero_shot,fewshot"}, ("unknown method 'fewshot'", "few_shot")),
        ({"methods": ""}, ("no method asked for",)),
        ({"methods": " , "}, ("no method asked for",)),
        ({"methods": "a\nb"}, ("unknown method 'a b'",)),
        ({"methods": "icr:rnk=4"}, ("unknown hyperparameter of icr 'rnk'", "rank")),
        ({"methods": "icr:rank"}, ("cannot read 'rank'",)),
        ({"methods": "icr:rank=four"}, ("icr.rank must be a whole number, not 'four'",)),
        ({"methods": "icr:rank=4.5"}, ("icr.rank must be a whole number",)),
        ({"methods": "icr:clip=nan"}, ("icr.clip must be a number",)),
        ({"methods": "icr:center=perhaps"}, ("icr.center must be true or false",)),
        ({"methods": "icr:basis=pac"}, ("unknown value of icr.basis 'pac'", "pca")),
        ({"methods": "few_shot:per_class=-1"}, ("few_shot.per_class must be at least 1",)),
        ({"set": "icr.rank=4"}, ("--set icr", "add it to --methods")),
        ({"set": "zeroshot.rank=4"}, ("unknown method in --set 'zeroshot'", "zero_shot")),
        ({"set": "zero_shot.rank=4"}, ("unknown hyperparameter of zero_shot 'rank'", "none")),
        ({"set": "rank=4"}, ("write method.hyperparameter=value",)),
        ({"models": "gema-270m"}, ("unknown model 'gema-270m'", "gemma-270m")),
        ({"models": ""}, ("no model asked for",)),
        ({"models": "/no/such/model"}, ("no file or folder /no/such/model",)),
        ({"tasks": "ss2"}, ("unknown task 'ss2'", "sst2")),
        ({"tasks": ""}, ("no task in ''",)),
        ({"preset": "papr"}, ("unknown preset 'papr'", "paper")),
        ({"protocol": "in-task"}, ("unknown protocol 'in-task'", "in_task")),
        ({"seeds": "0,x"}, ("--seeds", "0,x")),
        ({"seeds": "0,,1"}, ("--seeds",)),
        ({"seeds": ""}, ("--seeds",)),
        ({"limit": "0"}, ("--limit", "at least 1")),
        ({"limit": "-3"}, ("--limit", "at least 1")),
        ({"limit": "some"}, ("--limit", "'some'")),
        ({"batch_size": "0"}, ("--batch-size", "at least 1")),
        ({"dtype": "float8"}, ("unknown dtype 'float8'", "float16")),
        ({"device": "gpu"}, ("device 'gpu'",)),
        ({"out": ""}, ("--out", "empty")),
        ({"out": "/proc/results"}, ("cannot write in /proc/results",)),
        ({"out": "bytes-\udcff"}, ("not UTF-8",)),
        ({"data_dir": "/no/such/folder"}, ("no folder /no/such/folder",)),
        ({"tasks_dir": "/no/such/folder"}, ("/no/such/folder does not exist",)),
    ],
)
def test_wrong_arguments(icrbench: Commands, options: dict[str, Any], words: tuple[str, ...]) -> None:
    icrbench.refused(icrbench.run(**options), *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["run"], "--models"),
        (["run", "--models", "llama"], "name methods with --methods"),
        (["run", "--methods", "all", "--models", "llama", "--frob"], "--frob"),
        (["run", "--methods", "all", "--models", "llama", "--demo", "--data-dir", "."], "not allowed with"),
        (["list", "tables"], "tables"),
        (["report"], "folder"),
        (["report", "/no/such/folder"], "no results in /no/such/folder"),
        (["list", "tasks", "--tasks-dir", ""], "empty"),
    ],
)
def test_wrong_commands(icrbench: Commands, arguments: list[str], word: str) -> None:
    icrbench.refused(icrbench(*arguments), word)


def test_results_cannot_go_below_a_file(icrbench: Commands) -> None:
    (icrbench.folder / "file").write_text("mine")
    icrbench.refused(icrbench.run(out="file"), "cannot write in", "file")
    icrbench.refused(icrbench.run(out="file/below"), "cannot write in", "file")
    icrbench.refused(icrbench.run(data_dir=icrbench.folder / "file"), "no folder")
    assert (icrbench.folder / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, ("cannot load model", "model_type")),
        ({"model_type": "mamba", "hidden_size": 32}, ("'mamba' is not supported", "ANATOMIES", "llama")),
        ({"model_type": "bert"}, ("'bert' is not supported",)),
    ],
)
def test_folders_that_are_no_supported_model(
    icrbench: Commands, config: dict[str, object] | None, words: tuple[str, ...]
) -> None:
    folder = icrbench.folder / "model"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
        icrbench.refused(icrbench.run("--dry-run", models=folder), *words)
    icrbench.refused(icrbench.run(models=folder), *words)


def test_a_hub_model_without_network(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = icrbench.run(models="nobody/nothing-at-all")
    icrbench.refused(done, "nobody/nothing-at-all", "hf download")


def test_a_cut_model_file(icrbench: Commands) -> None:
    folder = icrbench.folder / "model"
    folder.mkdir()
    for path in model_folder().iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(content[: len(content) // 2] if path.suffix == ".safetensors" else content)
    icrbench.refused(icrbench.run(models=folder), "cannot load model", str(folder))


GOOD = {"sentence": "a warm film", "label": 1}
OTHER = {"sentence": "a cold film", "label": 0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("no data for 'sst2'", "test.jsonl")),
        (b"", ("test.jsonl has no rows",)),
        (json.dumps(GOOD).encode()[:-9], ("test.jsonl, line 1", "not a whole JSON object")),
        (json.dumps(GOOD).encode() + b"\n[1]\n", ("test.jsonl, line 2", "must be a JSON object")),
        (b'{"sentence": "caf\xe9", "label": 1}\n', ("test.jsonl, line 1", "not UTF-8")),
        (b'{"text": "a", "label": 1}\n', ("test.jsonl, line 1", "'sentence' is missing", "text, label")),
        (b'{"sentence": "a"}\n', ("test.jsonl, line 1", "'label' is missing")),
        (b'{"sentence": "a", "label": 2}\n', ("test.jsonl, line 1", "label 2 is not among 0, 1")),
        (b'{"sentence": null, "label": 1}\n', ("test.jsonl, line 1", "'sentence'", "must be text")),
    ],
)
def test_broken_data(icrbench: Commands, content: bytes | None, words: tuple[str, ...]) -> None:
    lines(icrbench.folder / "data" / "sst2" / "train.jsonl", [GOOD, OTHER])
    if content is not None:
        (icrbench.folder / "data" / "sst2" / "test.jsonl").write_bytes(content)
    icrbench.refused(icrbench.run(data_dir=icrbench.folder / "data"), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [x", ("mine.yaml, line", "not valid YAML")),
        ("- name", ("mine.yaml, line 1",)),
        ("name: Mine!\n", ("mine.yaml, line 1",)),
        ("", ("mine.yaml",)),
    ],
)
def test_broken_task_files(icrbench: Commands, text: str, words: tuple[str, ...]) -> None:
    folder = icrbench.folder / "tasks"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text)
    icrbench.refused(icrbench.run(tasks_dir=folder, tasks="mine"), *words)
    icrbench.refused(icrbench("list", "tasks", "--tasks-dir", folder), *words)


def test_two_options_that_start_with_one_token(icrbench: Commands) -> None:
    folder = task_folder(icrbench.folder / "tasks", options=["negative", "neutral"])
    done = icrbench.run(tasks_dir=folder, tasks="sst2,mine", methods="zero_shot,few_shot")
    icrbench.refused(done, "'negative' and 'neutral' start with one token", "'mine'")
    assert not list((icrbench.folder / "out" / "cells").iterdir())  # found before any work


def test_a_users_own_dataset(icrbench: Commands) -> None:
    rows = [{"text": f"number {number} \u2028 of them", "label": number % 2} for number in range(6)]
    folder = task_folder(icrbench.folder / "täsks und so", rows)
    listed = icrbench("list", "tasks", "--tasks-dir", folder)
    assert (listed.code, "mine" in listed.out) == (0, True)
    done = icrbench.run(tasks_dir=folder, tasks="mine", limit=None, out="aus gabe", demo=None)
    assert (done.code, done.counts, done.err) == (0, (1, 0, 0), "")
    (record,) = icrbench.records("aus gabe")
    assert record["data"]["kind"] == "local"
    assert record["data"]["location"] == str(folder)
    assert record["result"] is not None
    assert record["result"]["n"] == 6
    report = icrbench("report", icrbench.folder / "aus gabe")
    assert report.code == 0
    assert "- sha256 of the test data: mine" in report.out
    assert "real data" in report.out
    assert sorted(path.name for path in (icrbench.folder / "aus gabe").glob("leaderboard.*")) == [
        "leaderboard.csv",
        "leaderboard.html",
        "leaderboard.md",
        "leaderboard.tex",
    ]


def test_reports_of_no_cut_or_foreign_results(icrbench: Commands) -> None:
    empty = icrbench.folder / "empty"
    empty.mkdir()
    icrbench.refused(icrbench("report", empty), "no results in", str(empty))
    icrbench.run()
    (cell,) = (icrbench.folder / "out" / "cells").iterdir()
    whole = cell.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b'{"results": {"mmlu": 0.5}}'):
        cell.write_bytes(content)
        icrbench.refused(icrbench("report", icrbench.folder / "out"), cell.name)
        assert cell.read_bytes() == content
    cell.write_bytes(whole)
    icrbench.refused(icrbench("report", icrbench.folder / "out", "--out", cell), "cannot write in", cell.name)
    assert icrbench("report", icrbench.folder / "out", "--out", icrbench.folder / "elsewhere").code == 0
    assert (icrbench.folder / "elsewhere" / "leaderboard.md").exists()


def test_a_results_folder_that_holds_other_things(icrbench: Commands) -> None:
    mine = lines(icrbench.folder / "out" / "cells" / "probe", ["mine"])
    other = lines(icrbench.folder / "out" / "cells" / "notes.json", ["mine"])
    assert icrbench.run().code == 0
    assert mine.read_text() == other.read_text() == '"mine"\n'
    icrbench.refused(icrbench("report", icrbench.folder / "out"), "notes.json is not a record")


def test_a_full_disk(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    icrbench.refused(icrbench.run(), "No space left on device", "make room")


def test_dry_run_prints_cells_and_cost_and_loads_no_model(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icrbench.runner.request.load_backbone", None)
    done = icrbench.run(
        "--dry-run", methods="zero_shot,few_shot:per_class=2", tasks="sst2,cb", seeds="0,1", models=model_folder("gpt2")
    )
    assert (done.code, done.err) == (0, "")
    name = model_folder("gpt2")
    assert done.out.splitlines()[:-1] == [
        f"{name}  zero_shot sst2  (4 rows)",
        f"{name}  zero_shot cb  (4 rows)",
        f"{name}  few_shot:per_class=2 sst2 seed 0  (4 rows)",
        f"{name}  few_shot:per_class=2 cb seed 0  (4 rows)",
        f"{name}  few_shot:per_class=2 sst2 seed 1  (4 rows)",
        f"{name}  few_shot:per_class=2 cb seed 1  (4 rows)",
    ]
    assert "6 cells, about 0.00 million tokens, about 0 s on this machine" in done.out
    assert not (icrbench.folder / "out").exists()


def test_lists_and_version(icrbench: Commands) -> None:
    for what, names in {
        "methods": ("zero_shot", "few_shot", "icr", "universal"),
        "models": ("gemma-270m", "meta-llama/Llama-3.1-8B"),
        "tasks": ("sst2", "far_ood"),
    }.items():
        done = icrbench("list", what)
        assert (done.code, done.err) == (0, "")
        assert all(name in done.out for name in names)
    everything = icrbench("list").out
    assert all(name in everything for name in ("zero_shot", "gemma-270m", "far_ood", "pids"))
    assert icrbench("--version").out == f"icrbench {__version__}\n"
    assert "--methods" in icrbench("run", "--help").out


def test_run_bench_is_icrbench_run(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).resolve().parent.parent / "run_bench.py"
    arguments = ["--methods", "zero_shot", "--models", str(model_folder()), "--tasks", "sst2", "--demo", "--limit", "3"]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments, "--out", str(icrbench.folder / "out")])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == 0
    (record,) = icrbench.records()
    command = record["environment"]["command"]
    assert command.startswith("icrbench run --methods zero_shot --models")
    assert icrbench(*command.split()[1:]).counts == (0, 1, 0)


def test_repeated_names_are_one(icrbench: Commands) -> None:
    twice = f"{model_folder()},{model_folder()}"
    done = icrbench.run(methods="zero_shot, zero_shot,few_shot", tasks="sst2,sst2", seeds="3,3", models=twice)
    assert done.counts == (2, 0, 0)
    assert done.out.count("cells run") == 1


@pytest.mark.parametrize(("limit", "rows"), [("all", 40), (10**9, 40), (3, 3)])
def test_limits(icrbench: Commands, limit: object, rows: int) -> None:
    assert icrbench.run(limit=limit).code == 0
    (record,) = icrbench.records()
    assert record["result"] is not None
    assert record["result"]["n"] == rows
    assert record["data"]["limit"] == (None if limit == "all" else limit)


def test_a_reader_that_goes_away(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    icrbench.run()
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        assert main(["list", "tasks"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "zeroshot"], "unknown method 'zeroshot': did you mean zero_shot"),
        (["--methods", "icr:rank=4,icrr"], "unknown method 'icrr': did you mean icr"),
        (["--methods", "icr", "--tasks", "ss2"], "unknown task 'ss2'"),
        (["--methods", "icr", "--preset", "papr"], "unknown preset 'papr'"),
        (["--methods", "icr", "--protocol", "in-task"], "unknown protocol 'in-task'"),
        (["--experiment", "pid"], "unknown experiment 'pid'"),
        (["--methods", "icr", "--models", "lama"], "unknown model 'lama'"),
    ],
)
def test_a_typo_in_a_name_is_answered_before_torch_is_imported(arguments: list[str], words: str) -> None:
    code = (
        "import sys\nfrom icrbench.cli import main\n"
        "assert main(sys.argv[1:]) == 2\nassert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    models = [] if "--models" in arguments else ["--models", "gemma-270m"]
    command = [sys.executable, "-c", code, "run", *arguments, *models]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words in done.stderr


def test_methods_of_a_folder_are_known_without_importing_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('@register("mine")\nclass Mine: ...\n')
    (tmp_path / "broken.py").write_text("def (:\n")
    assert set(declared_names(tmp_path)) == {*methods(), "mine"}


def test_a_method_is_described_by_its_hyperparameters(icrbench: Commands) -> None:
    done = icrbench("list", "methods", "icr")
    assert done.code == 0
    for words in ("In-Context Routing", "rank", "directions per layer", "fitted per universal", "(H+G)d_krL'"):
        assert words in done.out
    rank = next(line for line in done.out.splitlines() if line.startswith("rank "))
    assert rank.split()[1] == "8"
    icrbench.refused(icrbench("list", "methods", "icrr"), "did you mean icr")
    icrbench.refused(icrbench("list", "tasks", "sst2"), "takes no name")


@pytest.mark.parametrize("name", list(methods()))
def test_every_hyperparameter_has_a_meaning(name: str) -> None:
    assert {field.name for field in fields(methods()[name])} <= set(meanings(methods()[name]))


def test_ctrl_c_while_modules_are_imported_is_a_sentence(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "icrbench.cli.entry", Slow("icrbench.cli.entry"))
    icrbench.refused(icrbench("list", "tasks"), "interrupted before anything was done")


@pytest.mark.parametrize("name", ["bitsandbytes", "torchao"])  # imported by transformers where they are installed
def test_packages_that_miss_parts_for_gpus_do_not_say_so(name: str) -> None:
    code = f"from icrbench.cli import main; import logging; main(['list']); logging.getLogger('{name}').warning('none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
