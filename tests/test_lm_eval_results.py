"""lm-eval's files with our method in them, the command that writes them, and the report that reads them."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from icr_setup import ToyEncoder
from icrbench.backbone.load import load_backbone
from icrbench.cli import main
from icrbench.lm_eval import ICRBenchLM
from icrbench.method import Fitted
from icrbench.registry import make_method
from icrbench.report import print_report, write_report
from icrbench.report.lm_eval_results import lm_eval_values
from icrbench.store.artefact import Artefact
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from lm_eval_setup import TASKS, evaluate, random_icr, saved, tiny_lm
from records import add
from tiny import tiny_backbone


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Reading lm-eval's own fourteen thousand task names takes long, and none of them is asked for."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", functools.partial(TaskManager, include_defaults=False))
    monkeypatch.setattr("icrbench.methods.icr.method.sentence_encoder", lambda *_: ToyEncoder())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: object) -> int:
    return main(["lm-eval", *map(str, arguments)])


def error_of(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert command(*arguments) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("icrbench: ")
    return message


def icr_folder(model: str, folder: Path) -> Path:
    backbone = load_backbone(model)
    Artefact(make_method("icr", {}), random_icr(backbone), backbone.identity()).save(folder)
    return folder


def test_command_runs_a_fit_and_its_results_are_reported(
    model: str, quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = icr_folder(model, quick / "fit")
    common = ["--model", model, "--tasks", "icrbench_everyday,icrbench_prose", "--limit", "3", "--batch_size", "2"]
    assert command(*common, "--artifact", fit, "--log_samples", "--output_path", "out/lm_eval") == 0
    assert command(*common, "--method", "zero_shot", "--output_path", "out/lm_eval") == 0
    files = sorted(Path("out/lm_eval").rglob("results_*.json"))
    assert [path.relative_to("out/lm_eval").parts[0].split("-")[0] for path in files] == ["icr", "zero_shot"]
    assert len(list(Path("out/lm_eval").rglob("samples_*.jsonl"))) == 2
    record = json.loads(files[0].read_text("utf-8"))
    assert record["config"]["model"] == "icrbench"
    assert record["config"]["device"] == "cpu"
    ours = record["config"]["icrbench"]
    backbone = load_backbone(model)
    artefact = Artefact.load(fit, backbone)
    assert ours["method"] == "icr"
    assert ours["hyperparameters"] == artefact.method.hyperparameters()
    assert ours["artefact"] == artefact.sha256
    assert ours["model"] == backbone.identity()
    assert {"torch", "transformers"} <= ours["environment"]["packages"].keys()
    assert record["lm_eval_version"]
    assert record["results"]["icrbench_everyday"]["sample_len"] == 3

    paths = write_report(Path("out"), Path("out"))
    assert [path.name for path in paths] == ["leaderboard.md", "leaderboard.html", "lm_eval.csv"]
    text = paths[0].read_text("utf-8")
    assert "| `icrbench_everyday 1.0` |" in text
    assert text.index("zero_shot |") < text.index("icr |")
    capsys.readouterr()
    print_report(Path("out"))
    assert "lm-evaluation-harness" in capsys.readouterr().out


def test_report_joins_both_kinds_of_results(model: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    add(store, "sst2", "zero_shot", None, [True, False])
    assert [path.name for path in write_report(tmp_path, tmp_path)] == [
        f"leaderboard.{suffix}" for suffix in ("md", "csv", "tex", "html")
    ]
    lm = tiny_lm("llama", Fitted({}, {}))
    results = evaluate(lm, ["icrbench_short_answers"], limit=2)
    results.pop("samples")
    record = json.dumps(results, default=str)
    (tmp_path / "results_2.json").write_text(record, "utf-8")
    later = json.loads(record)
    later["date"] += 1
    later["results"]["icrbench_short_answers"]["exact_match,first_word"] = 0.75
    (tmp_path / "results_1.json").write_text(json.dumps(later), "utf-8")
    later["config"].pop("icrbench")
    (tmp_path / "results_3.json").write_text(json.dumps(later), "utf-8")  # another model's
    (value,) = lm_eval_values(tmp_path)
    assert (value.value, value.model, value.method, value.rows) == (0.75, "tiny-llama", "zero_shot", 2)
    assert len(write_report(tmp_path, tmp_path)) == 5
    text = (tmp_path / "leaderboard.md").read_text("utf-8")
    assert text.index("Accuracy by task") < text.index("lm-evaluation-harness")
    assert "0.7500" in text
    (tmp_path / "results_4.json").write_text(record[:100], "utf-8")
    with pytest.raises(UserError, match=r"results_4\.json is not a whole results file"):
        write_report(tmp_path, tmp_path)


def test_two_fits_of_one_method_have_columns_of_their_own(tmp_path: Path) -> None:
    for number, strength in enumerate((1.0, 2.0)):
        fitted = Fitted({"strength": strength}, {})
        results = evaluate(tiny_lm("llama", fitted), ["icrbench_short_answers"], limit=1)
        results.pop("samples")
        (tmp_path / f"results_{number}.json").write_text(json.dumps(results, default=str), "utf-8")
    values = lm_eval_values(tmp_path)
    assert len(values) == 2
    write_report(tmp_path, tmp_path)
    text = (tmp_path / "leaderboard.md").read_text("utf-8")
    assert all(f"zero_shot {value.identity[:6]}" in text for value in values)


def test_response_cache_must_know_the_method(tmp_path: Path) -> None:
    lm = tiny_lm("llama", Fitted({}, {}))
    with pytest.raises(UserError, match=f"a name that holds '{lm.identity_hash}'"):
        evaluate(lm, ["icrbench_everyday"], limit=2, use_cache=str(tmp_path / "cache"))
    path = str(tmp_path / f"cache-{lm.identity_hash}")
    first = evaluate(lm, ["icrbench_everyday"], limit=2, use_cache=path)
    again = tiny_lm("llama", Fitted({}, {}))
    again._loglikelihood_tokens = None  # type: ignore[assignment,method-assign]  # nothing is left to compute
    assert evaluate(again, ["icrbench_everyday"], limit=2, use_cache=path)["results"] == first["results"]
    assert tiny_lm("llama", Fitted({"other": 1}, {})).identity_hash != lm.identity_hash
    assert tiny_lm("llama", Fitted({}, {}), max_length=99).identity_hash != lm.identity_hash


def test_command_names_the_cache_after_the_method(model: str, quick: Path) -> None:
    line = ["--model", model, "--method", "zero_shot", "--tasks", "icrbench_everyday", "--limit", "1"]
    assert command(*line, "--use_cache", "cache/here") == 0
    (file,) = Path("cache").glob("*.db")
    (folder,) = Path("runs/default/lm_eval").iterdir()
    assert file.name == f"here-{folder.name.removeprefix('zero_shot-')}_rank0.db"


def test_wrong_input_is_one_sentence(model: str, quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--model", model, "--method", "zero_shot", "--tasks", "icrbench_everyday"]
    assert "unrecognized arguments: --nonsense" in error_of([*common, "--nonsense"], capsys)
    assert "invalid float value: 'x'" in error_of([*common, "--limit", "x"], capsys)
    assert "Tasks not found: nothing" in error_of(
        ["--model", model, "--method", "zero_shot", "--tasks", "nothing"], capsys
    )
    assert "no task asked for" in error_of(["--model", model, "--method", "zero_shot"], capsys)
    assert "method icr needs a fit" in error_of(["--model", model, "--method", "icr", "--tasks", "x"], capsys)
    assert "no method asked for" in error_of(["--model", model, "--tasks", "x"], capsys)
    assert "did you mean zero_shot" in error_of(["--model", model, "--method", "zeroshot", "--tasks", "x"], capsys)
    fit = icr_folder(model, quick / "fit")
    assert "a fit of icr, not of zero_shot" in error_of([*common, "--artifact", fit], capsys)
    assert "unknown model argument 'max_len'" in error_of([*common, "--model_args", "max_len=3"], capsys)
    assert "has a flag of its own" in error_of([*common, "--model_args", "artifact=x"], capsys)
    assert "give a folder" in error_of([*common, "--output_path", "x.json"], capsys)
    assert "-M is not for here" in error_of([*common, "-M", "hf"], capsys)
    Path("file").touch()
    assert "cannot write in" in error_of([*common, "--output_path", "file"], capsys)


def test_command_finds_the_fit_of_a_run(
    model: str, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ICRBENCH_CACHE", str(quick / "cache"))
    run = ["run", "--methods", "few_shot", "--models", model, "--demo", "--limit", "2", "--seeds", "0", "--out", "out"]
    line = ["--model", model, "--method", "few_shot", "--out", "out", "--tasks", "icrbench_everyday", "--limit", "1"]
    assert main([*run, "--tasks", "sst2"]) == 0
    assert command(*line) == 0
    (file,) = Path("out/lm_eval").rglob("results_*.json")
    assert file.relative_to("out/lm_eval").parts[0].startswith("few_shot-")
    assert main([*run, "--tasks", "trec"]) == 0
    message = error_of(line, capsys)
    assert "has 2 fits of few_shot" in message
    assert "(trained on=sst2)" in message
    assert "(trained on=trec)" in message


def test_unsaved_results_are_an_error(
    model: str, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no space left")

    monkeypatch.setattr("lm_eval.loggers.evaluation_tracker.hash_string", fail)
    line = ["--model", model, "--method", "zero_shot", "--tasks", "icrbench_everyday", "--limit", "1", "--log_samples"]
    assert "could not save its results" in error_of([*line, "--output_path", "out"], capsys)


def test_name_is_registered_and_makes_a_model(model: str) -> None:
    lm = get_model("icrbench").create_from_arg_obj(
        {"pretrained": model, "method": "zero_shot"}, {"batch_size": "2", "max_batch_size": None, "device": "cuda:0"}
    )
    assert isinstance(lm, ICRBenchLM)
    assert (lm.batch_size, str(lm.device)) == (2, "cpu")
    from_string = get_model("icrbench").create_from_arg_string(f"pretrained={model},method=zero_shot,max_length=64")
    assert from_string.max_length == 64


def test_folder_of_the_example_tasks() -> None:
    assert sorted(path.stem for path in TASKS.glob("*.yaml")) == [
        "icrbench_everyday",
        "icrbench_last_word",
        "icrbench_prose",
        "icrbench_short_answers",
    ]
    assert tiny_backbone("llama").active is None
