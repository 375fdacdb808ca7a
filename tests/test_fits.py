"""The fit that a user names by method and results folder: found by what it is for, or a sentence says what there is."""

import json

import pytest

from cli_setup import Commands, Done, icrbench, model_folder

__all__ = ["icrbench"]  # a fixture


def explained(icrbench: Commands, *more: object, folder: str = "out", method: str = "few_shot") -> Done:
    out = icrbench.folder / folder
    return icrbench("explain", "a fine film", "--model", model_folder(), "--method", method, "--out", out, *more)


def test_a_task_gets_the_fit_that_its_results_were_made_with(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot", tasks="sst2,trec").code == 0
    for task, first in (("sst2", "Review: "), ("trec", "Question: ")):
        done = explained(icrbench, "--task", task, "--json")
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert found["demonstrations"] > 0
        assert found["prompt"].startswith(first)
    icrbench.refused(explained(icrbench, "--task", "mr"), "no fit of few_shot", "and mr:", "--tasks mr --out")


def test_a_label_has_its_own_fit(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot,few_shot:per_class=1,few_shot:per_class=2").code == 0
    shown = {}
    for label in ("few_shot", "few_shot:per_class=1", "few_shot:per_class=2"):
        done = explained(icrbench, "--json", method=label)
        assert done.code == 0, done.err
        shown[label] = json.loads(done.out)["demonstrations"]
    assert shown["few_shot:per_class=1"] < shown["few_shot:per_class=2"] < shown["few_shot"]
    done = explained(icrbench, method="few_shot:per_class=3")
    icrbench.refused(done, "unknown fit in", "'few_shot:per_class=3'", "few_shot:per_class=2")
    icrbench.refused(explained(icrbench, method="few_shot:shots=3"), "unknown hyperparameter of few_shot 'shots'")


def test_an_artefact_is_that_of_the_label(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot:per_class=1").code == 0
    (folder,) = (icrbench.folder / "out" / "fitted").iterdir()
    for method, code in (("few_shot", 0), ("few_shot:per_class=1", 0), ("few_shot:per_class=2", 2)):
        done = icrbench("explain", "fine", "--model", model_folder(), "--method", method, "--artifact", folder)
        assert done.code == code, done.err
    assert "not of few_shot:per_class=2" in done.err


def test_several_fits_are_listed_with_what_tells_them_apart(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot:per_class=5,few_shot:per_class=1", seeds="0,1").code == 0
    done = explained(icrbench)
    icrbench.refused(done, "has 4 fits of few_shot", "and sst2", "give --artifact")
    for folder in (icrbench.folder / "out" / "fitted").iterdir():
        assert f"{folder} (per_class=" in done.err
    for facts in ("per_class=1, seed=0", "per_class=1, seed=1", "per_class=5, seed=0", "per_class=5, seed=1"):
        assert done.err.count(f"({facts})") == 1


def test_of_seeds_the_first_is_taken_and_named(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot", seeds="2,1").code == 0
    done = explained(icrbench)
    assert done.code == 0
    assert "seed 1 of 2" in done.err
    assert "seed 1 of 2" not in done.out


def test_protocols_share_a_fit_which_is_then_one(icrbench: Commands) -> None:
    for protocol in ("paper", "in_task"):
        assert icrbench.run(methods="few_shot", protocol=protocol).code == 0
    assert len(icrbench.records()) == 1
    assert explained(icrbench).code == 0


def test_a_fit_of_another_model_is_none(icrbench: Commands) -> None:
    assert icrbench.run(methods="few_shot", models=model_folder("gpt2")).code == 0
    icrbench.refused(explained(icrbench), "no fit of few_shot", f"--models {model_folder()}")


def test_what_can_be_seen_before_loading_is(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icrbench.backbone.load.load_backbone", lambda *_, **__: pytest.fail("loaded"))
    nowhere = icrbench.folder / "nowhere"
    line = f"`icrbench run --methods few_shot --models {model_folder()} --tasks sst2 --out {nowhere}`"
    icrbench.refused(explained(icrbench, folder="nowhere"), f"{nowhere} has no fit of few_shot", line)
    icrbench.refused(explained(icrbench, "--artifact", "x"), "give one of them")
    asked = ("explain", "a fine film", "--model", model_folder())
    icrbench.refused(icrbench(*asked, "--out", "x"), "no method asked for")


def test_a_method_without_a_fit_needs_none_there(icrbench: Commands) -> None:
    done = icrbench("explain", "a fine film", "--model", model_folder(), "--method", "zero_shot", "--out", "nowhere")
    assert done.code == 0, done.err
