import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from every_eval_ever_schema import AGGREGATE, SAMPLE
from icrbench.cli import main
from icrbench.report import stats
from icrbench.report.every_eval_ever import export
from icrbench.report.metrics import METRICS
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import add, record, rows

ANSWERS = {0: (True, False, True, True), 1: (True, True, True, False)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "results")
    identity = {
        "model": {"name": "tiny", "location": "org/tiny-1b", "revision": "r1", "dtype": "float32"},
        "method": {"name": "icr", "hyperparameters": {"rank": 4}},
        "task": {"name": "sst2", "template": "Review: {text}", "options": ["negative", "positive"], "version": 1},
    }
    add(made, "sst2", "zero_shot", None, ANSWERS[0], identity=identity)
    for seed, correct in ANSWERS.items():
        add(made, "sst2", "icr:rank=4", seed, correct, identity=identity)
    return made


def evaluations(out: Path) -> dict[str, dict[str, Any]]:
    """Aggregate files by label, checked against the schema and their samples."""
    found = {}
    for path in sorted(out.rglob("*.json")):
        made = json.loads(path.read_text())
        jsonschema.Draft202012Validator(AGGREGATE).validate(made)
        assert path.relative_to(out).parts[:2] == ("data", "icrbench")
        label = made["evaluation_results"][0]["generation_config"]["additional_details"]["label"]
        found[label] = {**made, "samples": samples(out, path, made)}
    return found


def samples(out: Path, path: Path, aggregate: dict[str, Any]) -> list[dict[str, Any]]:
    about = aggregate["detailed_evaluation_results"]
    file = out / about["file_path"]
    assert file == path.with_name(path.stem + "_samples.jsonl")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == about["checksum"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == about["total_rows"]
    for line in lines:
        jsonschema.Draft202012Validator(SAMPLE).validate(line)
        assert line["evaluation_id"] == aggregate["evaluation_id"]
        assert line["model_id"] == aggregate["model_info"]["id"]
        assert line["evaluation_result_id"] == aggregate["evaluation_results"][0]["evaluation_result_id"]
    return lines


def test_one_evaluation_a_model_method_and_task(store: Store, tmp_path: Path) -> None:
    add(store, "mr", "zero_shot", None, ANSWERS[0])
    done = export(store.folder, tmp_path / "out", "a lab")
    assert len(done.files) == len(list((tmp_path / "out").rglob("*.json"))) == 3
    assert (done.failed, done.demo) == (0, 0)


def test_scores_and_samples_are_those_of_the_records(store: Store, tmp_path: Path) -> None:
    export(store.folder, tmp_path / "out", "a lab")
    made = evaluations(tmp_path / "out")["icr:rank=4"]
    result, *others = made["evaluation_results"]
    assert [other["metric_config"]["metric_id"] for other in others] == list(METRICS)[1:]
    score = result["score_details"]
    expected = stats.interval([_array()])
    assert score["score"] == 0.75
    assert score["uncertainty"]["confidence_interval"]["lower"] == expected.low
    assert score["uncertainty"]["num_samples"] == 4
    assert score["details"] == {"accuracy_seed_0": "0.75", "accuracy_seed_1": "0.75"}
    assert made["model_info"]["id"] == "org/tiny-1b"
    assert made["source_metadata"]["source_organization_name"] == "a lab"
    assert result["source_data"] == {
        "dataset_name": "SST-2",
        "source_type": "hf_dataset",
        "hf_repo": "org/sst2",
        "samples_number": 4,
        "additional_details": {
            "sha256_train": "taa",
            "sha256_test": "aa",
            "rows_of_the_full_test_split": "872",
        },
    }
    details = result["generation_config"]["additional_details"]
    assert json.loads(details["hyperparameters"]) == {"rank": 4}
    assert details["seeds"] == "0, 1"
    by_seed = {seed: [s for s in made["samples"] if s["metadata"]["seed"] == str(seed)] for seed in ANSWERS}
    for seed, correct in ANSWERS.items():
        assert [sample["evaluation"]["is_correct"] for sample in by_seed[seed]] == list(correct)
    first = by_seed[0][0]
    assert (first["sample_id"], first["input"]["reference"], first["output"]["raw"]) == (
        "sst2/test/0",
        ["positive"],
        ["positive"],
    )
    assert first["metadata"]["content_hash"] == "0"


def _array() -> Any:
    import numpy as np

    return np.array(list(ANSWERS.values()))


def test_a_method_without_randomness_is_one_proportion(store: Store, tmp_path: Path) -> None:
    export(store.folder, tmp_path / "out", "a lab")
    made = evaluations(tmp_path / "out")["zero_shot"]
    uncertainty = made["evaluation_results"][0]["score_details"]["uncertainty"]
    assert uncertainty["confidence_interval"]["method"] == "Wilson"
    assert len(made["samples"]) == 4


def test_exporting_again_replaces(store: Store, tmp_path: Path) -> None:
    first = export(store.folder, tmp_path / "out", "a lab").files
    before = evaluations(tmp_path / "out")
    assert export(store.folder, tmp_path / "out", "a lab").files == first
    after = evaluations(tmp_path / "out")
    assert {label: made["evaluation_id"] for label, made in before.items()} == {
        label: made["evaluation_id"] for label, made in after.items()
    }


def test_local_models_and_data_name_no_place_of_the_hub(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    made = Store(folder)
    model = {"name": "my model", "location": "weights/my model.gguf", "revision": "ab"}
    add(made, "mr", "zero_shot", None, ANSWERS[0], kind="local", identity={"model": model}, limit=4)
    (path,) = export(folder, tmp_path / "out", "a lab").files
    (found,) = evaluations(tmp_path / "out").values()
    assert found["model_info"]["id"].startswith("unknown/")
    assert found["model_info"]["additional_details"]["model_availability"] == "unknown"
    source = found["evaluation_results"][0]["source_data"]
    assert source["source_type"] == "other"
    assert "org/mr" not in json.dumps(source)  # the folder of a private machine is nobody's business
    assert path.parent.parent.name == "unknown"


def test_what_cannot_be_exported_is_counted(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(store, "mr", "icr", 0, ANSWERS[0], error="out of memory")
    add(store, "sst2", "icr", 0, ANSWERS[0], kind="demo")
    line = ["export", str(store.folder), "--format", "every_eval_ever", "--out", str(tmp_path / "out")]
    assert main(line) == 0
    assert "2 evaluations" in (text := capsys.readouterr().out)
    assert "1 failed cells and 1 cells on demonstration rows" in text
    assert len(evaluations(tmp_path / "out")) == 2


def test_nothing_to_export_is_said(tmp_path: Path) -> None:
    made = Store(tmp_path / "results")
    add(made, "sst2", "icr", 0, ANSWERS[0], kind="demo")
    with pytest.raises(UserError, match="nothing to export"):
        export(made.folder, tmp_path / "out", "a lab")


def test_other_data_is_another_evaluation(store: Store, tmp_path: Path) -> None:
    later = record("sst2", "zero_shot", None, ANSWERS[1], sha="bb", finished="2026-12-01T10:00:00+00:00")
    store.write(later, rows("sst2", ANSWERS[1]))
    files = export(store.folder, tmp_path / "out", "a lab").files
    assert len(files) == len(set(files)) == 3
