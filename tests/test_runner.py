"""The grid: what is run, kept, rerun, recorded and lost (nothing)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from cli_setup import Commands, icrbench, lines, model_folder, task_folder
from icr_setup import ToyEncoder
from icrbench import method as method_module
from icrbench.backbone import Backbone
from icrbench.backbone.load import load_backbone
from icrbench.method import FitData, Fitted, Method, Scope
from icrbench.methods.icr import training
from icrbench.methods.zero_shot import ZeroShotFitted
from icrbench.randomness import Randomness
from icrbench.runner.changed_code import changed_code
from icrbench.runner.recorder import Recorder
from icrbench.runner.worker import Outcome
from icrbench.store.artefact import Artefact
from icrbench.store.store import Store

__all__ = ["icrbench"]  # a fixture

ROOT = Path(__file__).resolve().parent.parent
TINY_ICR = {"rank": 2, "prompts_per_domain": 4, "prompts_agnews": 4, "per_class": 1, "queries_per_set": 2}
TINY_ICR |= {"train_per_domain": 3, "epochs": 2, "batch_size": 4, "hidden": 8}
ICR = ":".join(["icr", *(f"{name}={value}" for name, value in TINY_ICR.items())])


def content(folder: Path) -> dict[str, bytes]:
    """Predictions and logits of every finished cell, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted((folder / "examples").iterdir())}


# ---------------------------------------------------------------- records


def test_a_record_says_how_it_was_made(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot:per_class=2", tasks="sst2,mr", seeds="5", limit=3).code == 0
    by_task = {record["cell"]["task"]: record for record in icrbench.records()}
    record = by_task["mr"]
    assert record["cell"] == {
        "method": "few_shot",
        "label": "few_shot:per_class=2",
        "model": str(model_folder()),
        "task": "mr",
        "seed": 5,
        "protocol": "paper",
        "protocols": ["paper"],
        "clean": False,
        "explicit": True,
        "own_rows": False,
    }
    identity = record["identity"]
    assert identity["method"] == {
        "name": "few_shot",
        "hyperparameters": {"per_class": 2, "per_task": 3, "select": "random", "encoder": "minilm"},
    }
    assert len(identity["model"]["revision"]) == 16
    assert set(identity["pools"]) == {"agnews", "csqa", "piqa", "sst2", "trec"}
    assert set(by_task["sst2"]["identity"]["pools"]) == {"sst2"}
    assert identity["code"]["torch"] == torch.__version__
    assert set(record["data"]["sha256"]) == {"train", "test"}
    assert (record["data"]["kind"], record["data"]["n_test_full"], record["data"]["limit"]) == ("demo", 40, 3)
    assert record["data"]["contamination"] == {"pairs": {}, "clean": False}
    environment = record["environment"]
    assert environment["command"].startswith("icrbench run --demo --methods few_shot:per_class=2")
    assert {"icrbench", "torch", "transformers", "datasets"} <= set(environment["packages"])
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["result"] is not None
    assert record["result"]["seconds_fit"] >= 0
    rows = Store(icrbench.folder / "out").examples(record["key"])
    assert len(rows) == record["result"]["n"] == 3
    assert rows["correct"].sum() == record["result"]["correct"]


def test_contamination_is_in_the_record(icrbench: Commands) -> None:
    shared = "the film is a long and winding road to nowhere at all"
    for name, column in (("sst2", "sentence"), ("mr", "text")):
        for split, text in (("train", "fine"), ("test", shared if name == "mr" else "poor")):
            rows = [{column: f"{text} {label}", "label": label} for label in (0, 1)]
            lines(icrbench.folder / "data" / name / f"{split}.jsonl", rows)
    lines(icrbench.folder / "data" / "mr" / "train.jsonl", [{"text": shared, "label": 0}, {"text": "ok", "label": 1}])
    options: dict[str, Any] = {"methods": "few_shot", "tasks": "mr", "data_dir": icrbench.folder / "data"}
    assert icrbench.run("--protocol", "in_task", **options).code == 0
    assert icrbench.run("--protocol", "in_task", "--clean", **options).counts == (1, 0, 0)
    found = {record["cell"]["clean"]: record["data"]["contamination"] for record in icrbench.records()}
    assert found == {False: {"pairs": {"mr->mr": 2}, "clean": False}, True: {"pairs": {}, "clean": True}}


# ---------------------------------------------------------------- resume


def test_only_equal_cells_are_kept(icrbench: Commands) -> None:
    def few_shot(*more: object, **options: Any) -> tuple[int, int, int]:
        return icrbench.run(*more, **{"methods": "few_shot:per_class=1", **options}).counts

    assert few_shot() == (1, 0, 0)
    assert few_shot() == (0, 1, 0)
    assert few_shot("--batch-size", 1) == (0, 1, 0)
    assert icrbench("report", icrbench.folder / "out").code == 0
    assert few_shot("--quiet") == (0, 1, 0)
    assert few_shot(methods="few_shot:per_class=2") == (1, 0, 0)
    assert few_shot(seeds="0,1") == (1, 1, 0)
    assert few_shot(limit=3) == (1, 0, 0)
    assert few_shot("--protocol", "in_task") == (0, 1, 0)  # in domain both protocols give a task its own rows
    assert few_shot("--protocol", "in_task", tasks="mr") == (1, 0, 0)
    assert few_shot("--protocol", "paper", tasks="mr") == (1, 0, 0)
    assert few_shot("--clean") == (1, 0, 0)
    assert few_shot(dtype="bfloat16") == (1, 0, 0)
    assert few_shot() == (0, 1, 0)
    assert len(icrbench.records()) == 8


def test_zero_shot_is_one_cell_for_all_seeds(icrbench: Commands) -> None:
    assert icrbench.run(seeds="0,1,2").counts == (1, 0, 0)
    assert icrbench.run(seeds="7").counts == (0, 1, 0)
    assert [record["cell"]["seed"] for record in icrbench.records()] == [None]


@pytest.mark.parametrize("split", ["train", "test"])
def test_changed_data_is_run_again(icrbench: Commands, split: str) -> None:
    data = icrbench.folder / "data"
    for number, name in enumerate(("train", "test")):
        rows = [{"sentence": f"film {number} {label}", "label": label} for label in (0, 1)]
        lines(data / "sst2" / f"{name}.jsonl", rows)
    options: dict[str, Any] = {"methods": "zero_shot,few_shot", "data_dir": data}
    assert icrbench.run(**options).counts == (2, 0, 0)
    path = data / "sst2" / f"{split}.jsonl"
    path.write_text(path.read_text().replace("film", "Film"))  # a model reads case
    assert icrbench.run(**options).counts == (
        (2, 0, 0) if split == "test" else (1, 1, 0)
    )  # zero-shot sees no train row


def test_changed_weights_template_or_code_are_run_again(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = icrbench.folder / "model"
    shutil.copytree(model_folder(), folder)
    tasks = task_folder(icrbench.folder / "tasks")
    options: dict[str, Any] = {"models": folder, "tasks": "mine", "tasks_dir": tasks}
    assert icrbench.run(**options).counts == (1, 0, 0)
    assert icrbench.run(**options).counts == (0, 1, 0)
    task_folder(tasks, template="Text: {text}\nA:")
    assert icrbench.run(**options).counts == (1, 0, 0)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert icrbench.run(**options).counts == (1, 0, 0)
    assert icrbench.run(**options).err == ""
    code = icrbench.records()[0]["identity"]["code"]
    edited = {**code, "method": "edited", "torch": "9.9"}
    monkeypatch.setattr("icrbench.runner.identity.code_identity", lambda kind: edited)
    done = icrbench.run(**options)
    assert done.counts == (1, 0, 0)
    (sentence,) = done.err.splitlines()
    assert f"as other code computed them (the method, torch {code['torch']} to 9.9 changed since)" in sentence
    assert "give another --out" in sentence
    assert icrbench.run(**options).err == ""
    assert len(icrbench.records()) == 4


def test_a_cell_that_another_process_has_just_finished_is_no_older_one(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    icrbench.run()
    store = Store(icrbench.folder / "out")
    identities = [record["identity"] for record in store.records()]
    monkeypatch.setattr(Store, "holds", lambda self, key: False)  # when it was looked for it was not there yet
    assert changed_code(store, identities) is None
    edited = [{**identity, "code": {**identity["code"], "core": "edited"}} for identity in identities]
    assert "1 of the cells" in str(changed_code(store, edited))


def test_damaged_cells_are_run_again(icrbench: Commands) -> None:
    icrbench.run(tasks="sst2,mr")
    whole = content(icrbench.folder / "out")
    (cell, _), (_, rows) = (sorted((icrbench.folder / "out" / part).iterdir()) for part in ("cells", "examples"))
    for path in (cell, rows):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = icrbench.run(tasks="sst2,mr")
    assert (done.code, done.counts) == (0, (2, 0, 0))
    assert [cell.name in line or rows.name in line for line in done.err.splitlines()] == [True, True]
    assert done.err.count("icrbench: warning: ") == done.err.count("the cell will be run again") == 2
    assert content(icrbench.folder / "out") == whole


def test_a_label_that_repeats_another_cell_says_so(icrbench: Commands) -> None:
    done = icrbench.run(methods="few_shot,few_shot:per_class=5")
    assert done.counts == (1, 1, 0)
    assert "few_shot:per_class=5 sst2 seed 0 is the same as few_shot, already there" in done.out


def test_results_do_not_depend_on_order_or_company(icrbench: Commands) -> None:
    method = "few_shot:per_class=2:per_task=1"
    icrbench.run(methods=f"{method},zero_shot", tasks="mr,sst2", seeds="1,0", out="one")
    for seed in (0, 1):
        icrbench.run("--batch-size", 1, methods=method, tasks="sst2,mr", seeds=seed, out="two")
    icrbench.run(tasks="sst2,mr", out="two")
    assert set(content(icrbench.folder / "one")) == set(content(icrbench.folder / "two"))
    for key in (record["key"] for record in icrbench.records("one")):
        one, two = (Store(icrbench.folder / out).examples(key) for out in ("one", "two"))
        assert one["prediction"].tolist() == two["prediction"].tolist()
        for left, right in zip(one["option_logits"], two["option_logits"], strict=True):
            assert left == pytest.approx(right, abs=1e-4)


# ---------------------------------------------------------------- failures

calls: list[str] = []


@dataclass(frozen=True)
class Fragile(Method):
    """Breaks while ``broken``."""

    scope: ClassVar[Scope] = Scope.UNIVERSAL
    fitted: ClassVar[type[Fitted]] = ZeroShotFitted
    broken: ClassVar[Exception | None] = None

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> Fitted:
        calls.append("fit")
        if self.broken is not None:
            raise self.broken
        return ZeroShotFitted({}, {"nothing": torch.zeros(3)})


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> type[Fragile]:
    calls.clear()
    monkeypatch.setattr(Fragile, "name", "fragile", raising=False)
    monkeypatch.setattr(Fragile, "broken", ValueError("it broke\nin two lines"))
    monkeypatch.setitem(method_module.REGISTRY, "fragile", Fragile)
    return Fragile


def test_a_failing_method_costs_its_own_cells(icrbench: Commands, fragile: type[Fragile]) -> None:
    done = icrbench.run(methods="fragile,zero_shot", tasks="sst2,mr")
    assert (done.code, done.counts) == (1, (2, 0, 2))
    assert done.out.count("failed: it broke\n") == 2
    assert calls == ["fit"]  # a fit that failed is not tried for every cell again
    for record in icrbench.records():
        if record["cell"]["method"] == "fragile":
            assert record["status"] == "failed"
            assert record["result"] is None
            assert record["error"] is not None
            assert (record["error"]["type"], record["error"]["message"]) == ("ValueError", "it broke")
            assert "in two lines" in record["error"]["traceback"]
            assert "self.broken" in record["error"]["traceback"]
    report = icrbench("report", icrbench.folder / "out")
    assert report.code == 0
    assert "it broke" in report.out

    fragile.broken = None
    done = icrbench.run(methods="fragile,zero_shot", tasks="sst2,mr")
    assert (done.code, done.counts) == (0, (2, 2, 0))
    assert [record["status"] for record in icrbench.records()] == ["ok"] * 4


def test_an_error_without_words_and_out_of_memory(icrbench: Commands, fragile: type[Fragile]) -> None:
    for error, word in ((KeyError(), "KeyError"), (MemoryError(), "MemoryError")):
        fragile.broken = error
        assert f"failed: {word}" in icrbench.run(methods="fragile").out


def test_a_fit_is_stored_and_read_again(icrbench: Commands, fragile: type[Fragile]) -> None:
    fragile.broken = None
    icrbench.run(methods="fragile")
    assert icrbench.run(methods="fragile", tasks="sst2,mr,cb").counts == (2, 1, 0)
    assert calls == ["fit"]
    seconds = {record["result"]["seconds_fit"] for record in icrbench.records() if record["result"]}
    assert len(seconds) == 1  # what the fit took, not what reading it took


def test_damaged_or_foreign_fits_are_made_again(icrbench: Commands) -> None:
    both = "few_shot,few_shot:per_class=1"
    icrbench.run(methods=both)
    one, two = sorted((icrbench.folder / "out" / "fitted").iterdir())
    whole = {path: path.read_bytes() for folder in (one, two) for path in folder.iterdir()}
    cells = content(icrbench.folder / "out")
    fits = {
        record["identity"]["method"]["hyperparameters"]["per_class"]: record["fit"] for record in icrbench.records()
    }
    assert None not in fits.values()
    text = whole[one / "fitted.json"]
    damages: list[tuple[str, bytes]] = [
        ("fitted.json", b"[]"),
        ("fitted.json", text[:99]),
        ("fitted.json", text.replace(b'"config"', b'"config" ')),
        ("fitted.safetensors", whole[one / "fitted.safetensors"] + b"\0"),
        ("fitted.json", whole[two / "fitted.json"]),  # whole, but of other hyperparameters
    ]
    for limit, (name, damage) in enumerate(damages, 5):
        (one / name).write_bytes(damage)
        if damage == whole[two / "fitted.json"]:
            (one / "fitted.safetensors").write_bytes(whole[two / "fitted.safetensors"])
        done = icrbench.run(methods=both, limit=limit)
        assert done.counts == (2, 0, 0)
        (sentence,) = done.err.splitlines()
        assert str(one) in sentence
        assert sentence.endswith("it is fitted again.")
        assert (one / "fitted.safetensors").read_bytes() == whole[one / "fitted.safetensors"]
    made = {
        record["identity"]["method"]["hyperparameters"]["per_class"]: record["fit"] for record in icrbench.records()
    }
    assert made == fits  # the same fit, made again
    assert cells.items() <= content(icrbench.folder / "out").items()


def test_a_fit_made_twice_where_locks_do_nothing_is_one(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes make the same fit at once, and one is faster: every cell is scored with the fit that stays."""
    save = Artefact.save

    def slower(self: Artefact, folder: Path) -> None:
        theirs = Artefact(self.method, type(self.fitted)({**self.fitted.config, "by": "them"}, {}), self.model)
        save(theirs, folder)
        save(self, folder)

    monkeypatch.setattr(Artefact, "save", slower)
    assert icrbench.run(methods="few_shot", tasks="sst2").code == 0
    (folder,) = (icrbench.folder / "out" / "fitted").iterdir()
    stored = json.loads((folder / "fitted.json").read_text())
    assert stored["config"]["by"] == "them"
    (record,) = icrbench.records()
    assert record["fit"] == Artefact.load(folder, load_backbone(str(model_folder()))).sha256


# ---------------------------------------------------------------- interruption


@pytest.fixture
def toy_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("method", "bases"):
        monkeypatch.setattr(f"icrbench.methods.icr.{module}.sentence_encoder", lambda *_: ToyEncoder())


def nth_call(wanted: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, interrupted by Ctrl-C at its n-th call."""
    count = 0

    def wrapper(*args: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == wanted:
            raise KeyboardInterrupt
        return function(*args, **more)

    return wrapper


@pytest.mark.usefixtures("toy_encoder")
def test_icr_interrupted_and_resumed_is_icr_uninterrupted(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"methods": f"zero_shot,{ICR}", "tasks": "sst2,mr,cb"}
    assert icrbench.run(**options, out="whole", cache_dir=icrbench.folder / "cache1").counts == (6, 0, 0)

    again = {**options, "out": "cut", "cache_dir": icrbench.folder / "cache2"}
    for where, call, finished in (
        ("icrbench.methods.icr.bases._read_group", 4, 3),  # among the in-context prompts
        ("icrbench.methods.icr.training.terms", 5, 3),  # half-way through training
        ("icrbench.runner.worker.score", 5, 4),  # after the first cell of the fit
    ):
        module, _, name = where.rpartition(".")
        with monkeypatch.context() as patch:
            patch.setattr(where, nth_call(call if name != "score" else 2, getattr(sys.modules[module], name)))
            done = icrbench.run(**again)
        icrbench.refused(done, "interrupted; finished cells are kept, go on with: icrbench run --demo --methods")
        assert len(icrbench.records("cut")) == finished
        assert not list((icrbench.folder / "cut" / "locks").iterdir())
    fits = nth_call(0, training.train_router)
    monkeypatch.setattr("icrbench.methods.icr.method.train_router", fits)
    assert icrbench.run(**again).counts == (2, 4, 0)
    assert content(icrbench.folder / "cut") == content(icrbench.folder / "whole")
    for path in (icrbench.folder / "whole" / "fitted").rglob("*.safetensors"):
        other = icrbench.folder / "cut" / "fitted" / path.parent.name / path.name
        assert other.read_bytes() == path.read_bytes()
    results = [
        [record["result"] for record in icrbench.records(out) if record["cell"]["method"] == "icr"]
        for out in ("whole", "cut")
    ]
    whole, cut = ({(made["fit_sequences"], made["fit_tokens"]) for made in part if made} for part in results)
    assert whole == cut  # the cost from nothing
    assert len(whole) == 1
    taken = [{made["fit_taken"]["tokens"] for made in part if made and made["fit_taken"]} for part in results]
    assert max(taken[1]) < min(taken[0]) == next(iter(whole))[1]


def test_ctrl_c_between_the_two_files_of_a_cell(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    icrbench.run(tasks="sst2,mr", out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(
            "icrbench.store.store.write_atomic", nth_call(4 + 4, sys.modules["icrbench.store.store"].write_atomic)
        )
        icrbench.refused(icrbench.run(tasks="sst2,mr"), "interrupted")
    assert icrbench.run(tasks="sst2,mr").counts == (1, 1, 0)
    assert content(icrbench.folder / "out") == content(icrbench.folder / "whole")


def test_a_cell_that_another_process_runs_is_left_to_it(icrbench: Commands) -> None:
    icrbench.run()
    (record,) = icrbench.records()
    shutil.rmtree(icrbench.folder / "out" / "cells")
    with Store(icrbench.folder / "out").lock(record["key"]) as mine:
        assert mine
        done = icrbench.run()
    assert done.code == 1
    assert "being run by another process" in done.out
    assert "no result yet: zero_shot sst2; another process is at work on them" in done.out
    assert "0 cells run, 0 already there, 1 left to another process, 0 failed" in done.out
    assert icrbench.run().counts == (1, 0, 0)


def test_a_cell_whose_process_was_killed_is_taken_over(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    icrbench.run(tasks="sst2,mr")
    first = next(record for record in icrbench.records() if record["cell"]["task"] == "sst2")
    shutil.rmtree(icrbench.folder / "out" / "cells")
    lock = Store(icrbench.folder / "out").lock(first["key"])
    assert lock.__enter__()
    write = Recorder.write

    def killed(recorder: Recorder, outcome: Outcome) -> None:
        lock.__exit__(None, None, None)  # while this process is at work on the other cell
        write(recorder, outcome)

    monkeypatch.setattr(Recorder, "write", killed)
    done = icrbench.run(tasks="sst2,mr")
    assert (done.code, done.counts) == (0, (2, 0, 0))
    assert "being run by another process" in done.out


def test_a_fit_that_another_process_makes_is_waited_for(
    icrbench: Commands, fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile.broken = None
    icrbench.run(methods="fragile", out="other")
    (made,) = (icrbench.folder / "other" / "fitted").iterdir()
    target = icrbench.folder / "out" / "fitted" / made.name
    lock = Store(icrbench.folder / "out").lock(f"fit-{made.name}")
    assert lock.__enter__()

    def other_process_ends(seconds: float) -> None:
        shutil.copytree(made, target)
        lock.__exit__(None, None, None)

    monkeypatch.setattr("icrbench.runner.fits.time.sleep", other_process_ends)
    done = icrbench.run(methods="fragile")
    assert done.counts == (1, 0, 0)
    assert "waiting for another process that makes the same fit" in done.out
    assert calls == ["fit"]


class Bench:
    """``python run_bench.py`` in a process of its own."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.out, self.err = (folder.parent / f"{time.monotonic_ns()}.{name}" for name in ("out", "err"))
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "run_bench.py"), *arguments],
                stdout=out,
                stderr=err,
                env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
                # Where tests run in the background of a shell, Ctrl-C is ignored, by what they start too.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def finished(self) -> list[str]:
        """Cells it has run."""
        said = [line.split("] ", 1)[1] for line in self.out.read_text().splitlines() if " rows, " in line]
        return [" ".join(line.split("  ")[:2]) for line in said]

    def wait_for_a_cell(self) -> None:
        while not self.finished():
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.01)


def test_killed_interrupted_and_side_by_side(icrbench: Commands) -> None:
    methods, tasks = "zero_shot,few_shot:per_class=1:per_task=1", "sst2,trec,agnews,mr,cb"
    options: dict[str, Any] = {"methods": methods, "tasks": tasks, "limit": 8, "seeds": "0,1"}
    whole = icrbench.run(**options, out="whole")
    total = whole.counts[0]
    out = icrbench.folder / "out"
    arguments = ["--methods", methods, "--models", str(model_folder()), "--demo", "--tasks", tasks]
    arguments += ["--limit", "8", "--seeds", "0,1", "--out", str(out)]

    killed = Bench(out, arguments)
    killed.wait_for_a_cell()
    killed.process.kill()
    killed.process.wait()
    kept = content(out)
    assert 1 <= len(icrbench.records()) < total  # every record there is whole

    interrupted, other = Bench(out, arguments), Bench(out, arguments)
    interrupted.wait_for_a_cell()
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.process.wait() == 2
    said = interrupted.err.read_text()
    assert said.count("\n") == 1
    assert f"go on with: icrbench run --methods {methods} --models" in said
    assert other.process.wait() == 0
    assert other.err.read_text() == ""

    ran = [*killed.finished(), *interrupted.finished(), *other.finished()]
    assert len(ran) == len(set(ran))  # no cell twice
    assert kept.items() <= content(out).items()
    done = icrbench(*said.split("icrbench", 2)[2].split())
    assert done.code == 0
    assert len(icrbench.records()) == total
    assert content(out) == content(icrbench.folder / "whole")
