"""The Python front door."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import icrbench
from cli_setup import model_folder
from icrbench.api.fit import load_fit
from icrbench.util.errors import UserError
from tiny import tiny_model, tokenizer

METHODS = "zero_shot,few_shot:per_class=1:per_task=1,icv:per_class=1"
TEXTS = ["the film was good", "bad"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("python") / "out"
    icrbench.run(
        METHODS, model_folder(), tasks=["sst2", "cb"], limit=4, seeds=[0], demo=True, out=out, preset="demo", quiet=True
    )
    return out


def fits(folder: Path) -> dict[str, Path]:
    return {path.name.split("-")[0]: path for path in sorted((folder / "fitted").iterdir())}


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, icrbench; assert {'leaderboard', 'load_fit', 'results', 'run'} <= set(dir(icrbench))"
    code += "; icrbench.results; icrbench.leaderboard; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        icrbench.nothing  # noqa: B018


def test_results_are_a_frame_that_knows_its_examples(folder: Path) -> None:
    found = icrbench.results(folder)
    assert isinstance(found, pd.DataFrame)
    assert len(found) == 6
    some = found[found["task"] == "sst2"]
    rows = some.examples()
    assert len(rows) == 12
    assert set(rows["task"]) == {"sst2"}
    assert rows.groupby("label")["correct"].mean().to_dict() == pytest.approx(
        dict(zip(some["label"], some["accuracy"], strict=True))
    )


def test_a_leaderboard_shows_itself(folder: Path) -> None:
    board = icrbench.leaderboard(folder)
    html = board._repr_html_()
    assert html.count("<table>") == len(board.tables)
    assert "few_shot:per_class=1" in html
    assert "zero-shot" in str(board)


def test_a_loaded_model_is_run_like_one_from_a_folder(folder: Path, tmp_path: Path) -> None:
    own = icrbench.run(
        METHODS,
        tiny_model("llama"),
        tokenizer=tokenizer(),
        tasks="sst2,cb",
        limit=4,
        seeds=[0],
        demo=True,
        out=tmp_path / "own",
        preset="demo",
        quiet=True,
    )
    there = icrbench.results(folder)
    keys = ["label", "task"]
    both = own.merge(there, on=keys, suffixes=("", "_there"))
    assert len(both) == 6
    assert (both["accuracy"] == both["accuracy_there"]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "icr"}, "unknown option of icrbench.run 'method': did you mean methods"),
        ({"models": tiny_model("llama")}, "needs its tokenizer"),
        ({"models": "gema-270m"}, "did you mean gemma-270m"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, object], words: str) -> None:
    given = {"methods": "zero_shot", "models": "gemma-270m", "demo": True, **options}
    with pytest.raises(UserError, match=words):
        icrbench.run(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["few_shot", "icv"])
def test_a_fit_goes_with_its_weights_wherever_they_are(folder: Path, method: str) -> None:
    path = fits(folder)[method]
    by_folder, by_object = load_fit(path, str(model_folder())), load_fit(path, tiny_model("llama"), tokenizer())
    logits = []
    for fit in (by_folder, by_object):
        with fit.on(TEXTS), torch.no_grad():
            logits.append(fit.backbone.model(**fit.inputs(TEXTS)).logits[:, -1])
    assert torch.equal(*logits)
    plain = by_object.backbone.model(**by_object.inputs(TEXTS)).logits[:, -1]
    assert method == "few_shot" or not torch.allclose(logits[1], plain)


def test_three_lines_with_a_plain_model(folder: Path) -> None:
    model, words = tiny_model("llama"), tokenizer()
    fit = icrbench.load_fit(fits(folder)["icv"], model, words)
    inputs = words(TEXTS, padding=True, padding_side="left", return_tensors="pt")
    with fit.on(TEXTS):
        tokens = model.generate(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=4, do_sample=False
        )
    width = inputs.input_ids.shape[1]
    assert fit.generate(TEXTS, max_new_tokens=4) == words.batch_decode(tokens[:, width:], skip_special_tokens=True)
    alone = [fit.generate([text], max_new_tokens=4)[0] for text in TEXTS]
    assert alone == fit.generate(TEXTS, max_new_tokens=4)


def test_two_fits_on_one_model_are_refused(folder: Path) -> None:
    model, words = tiny_model("llama"), tokenizer()
    one, two = (icrbench.load_fit(fits(folder)[name], model, words) for name in ("icv", "few_shot"))
    with one.on("a"), pytest.raises(RuntimeError, match="already applied"), two.on("b"):
        pass


def test_other_weights_are_refused_unless_they_are_allowed(folder: Path) -> None:
    other = tiny_model("llama")
    with torch.no_grad():
        other.get_input_embeddings().weight[3] += 1
    with pytest.raises(UserError, match="was fitted on"):
        icrbench.load_fit(fits(folder)["icv"], other, tokenizer())
    assert icrbench.load_fit(fits(folder)["icv"], other, tokenizer(), allow_model=True).artefact.model["weights"]
