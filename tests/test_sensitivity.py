"""Results under other templates, orders and draws: what is varied, what stays, and how it is told."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cli_setup import Commands, icrbench
from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.data.rows import canonical_rows, to_examples
from icrbench.data.sources import Demo, load
from icrbench.data.templates import L9, templates
from icrbench.experiments import WAYS
from icrbench.method import FitData, Pool
from icrbench.methods.i2cl import I2CL
from icrbench.randomness import Randomness
from icrbench.report.outcomes import Outcomes
from icrbench.report.sensitivity import consistency, fleiss_kappa, sensitivities
from icrbench.runner.variation import variations
from icrbench.scoring.prompting import Prompter
from icrbench.store.store import Store
from icrbench.toolkit.episodes import Episodes
from tiny import tiny_backbone
from vocabularies import backbone_with, byte_level, sentence_piece

__all__ = ["icrbench"]


def data(target: str | None = "sst2") -> FitData:
    names = ("sst2",) if target else ("agnews", "sst2", "trec")
    pools = {name: Pool(load_tasks()[name], load(load_tasks()[name], Demo()).train, name) for name in names}
    return FitData(pools, target, Path("unused"))


def shown(rng: Randomness, target: str | None = "sst2") -> list[str]:
    episodes = Episodes(data(target), rng, per_class=3, per_task=2)
    return [own.example.id for own in episodes.demonstrations()]


def test_every_form_meets_every_form_of_another_part_once() -> None:
    for first in range(4):
        for second in range(first):
            assert len({(row[first], row[second]) for row in L9}) == len(L9) == 9


def test_nine_templates_written_out() -> None:
    assert [task.template for task in templates(load_tasks()["sst2"])] == [
        "Review: {text}\nSentiment:",
        "Input: {text} Answer:",
        "Text: {text} || Label:",
        "Read the input and give the answer. || Review: {text} || Answer:",
        "Read the input and give the answer.\nInput: {text}\nLabel:",
        "Read the input and give the answer. Text: {text} Sentiment:",
        "Below is one item of a test. Reply with the right answer. Review: {text} Label:",
        "Below is one item of a test. Reply with the right answer. || Input: {text} || Sentiment:",
        "Below is one item of a test. Reply with the right answer.\nText: {text}\nAnswer:",
    ]
    one_line = replace(load_tasks()["sst2"], template="{text} It was")
    assert templates(one_line)[1].template == "Input: {text} Answer:"
    assert templates(one_line)[5].template == "Read the input and give the answer. Text: {text} It was"


@pytest.mark.parametrize("task", [task.name for task in get_tasks("all,open_ended")])
@pytest.mark.parametrize("kind", [byte_level, sentence_piece])
def test_options_stay_apart_under_every_template(task: str, kind: type) -> None:
    own = load_tasks()[task]
    nine = templates(own)
    assert nine[0] == own
    assert len({varied.template for varied in nine}) == 9
    backbone = backbone_with(kind())
    if task == "sst5" and kind is sentence_piece:
        pytest.skip("this tiny tokenizer knows none of its five words")
    for varied in nine:
        for example in load(own, Demo()).test[:4]:
            prompt = Prompter(backbone, varied)(example)
            assert len(set(prompt.options)) == len(example.options)
            assert all(value in prompt.text for name, value in example.fields.items() if name != "letters")


def test_an_order_is_a_permutation_of_the_same_draw() -> None:
    for target in ("sst2", None):
        plain = shown(Randomness(0), target)
        orders = [shown(Randomness(0, order=number), target) for number in range(8)]
        assert orders[0] == plain
        assert all(sorted(order) == sorted(plain) for order in orders)
        assert len({tuple(order) for order in orders}) == 8


def test_a_draw_changes_demonstrations_alone() -> None:
    draws = {tuple(sorted(shown(Randomness(0, draw=number)))) for number in range(8)}
    assert len(draws) == 8
    held_out = [
        [own.example.id for own in Episodes(data(), rng, per_class=1, per_task=1, held_out=6).held_out]
        for rng in (Randomness(0), Randomness(0, draw=3))
    ]
    assert held_out[0] == held_out[1]


def test_i2cl_depends_on_no_order() -> None:
    """Its vectors are means over demonstrations; a full batch without noise calibrates on all of them alike."""
    method = I2CL(per_class=2, epochs=3, batch_size=4, noise=0.0)
    backbone = tiny_backbone("llama")
    first, second = (method.fit(backbone, data(), Randomness(0, order=order)) for order in (0, 3))
    for name, wanted in first.tensors.items():
        torch.testing.assert_close(second.tensors[name], wanted, atol=1e-4, rtol=1e-4)
    other = method.fit(backbone, data(), Randomness(0, draw=3))
    assert not torch.allclose(other.tensors["vectors"], first.tensors["vectors"], atol=1e-2)


def test_kappa_of_the_paper() -> None:
    """Fourteen raters, ten rows, five answers: the example of Wikipedia's article on Fleiss' kappa, 0.210."""
    counts = """0 0 0 0 14|0 2 6 4 2|0 0 3 5 6|0 3 9 2 0|2 2 8 1 1|7 7 0 0 0|3 2 6 3 0|2 5 3 2 2|6 5 2 1 0|0 2 2 3 7"""
    rows = [
        [answer for answer, count in enumerate(map(int, row.split())) for _ in range(count)]
        for row in counts.split("|")
    ]
    assert fleiss_kappa(list(zip(*rows, strict=True))) == pytest.approx(0.210, abs=5e-4)


def test_a_constant_answer_is_consistent_and_has_no_kappa() -> None:
    assert consistency([[1, 1, 1], [1, 1, 1]]) == 1
    assert fleiss_kappa([[1, 1, 1], [1, 1, 1]]) is None
    assert fleiss_kappa([[0, 1], [0, 1]]) == 1
    assert consistency([[0, 1], [1, 1], [1, 1]]) == pytest.approx((2 / 3 + 1) / 2)


def test_a_run_of_every_way(icrbench: Commands) -> None:
    out = icrbench.folder / "out"
    names = {"methods": "zero_shot,few_shot:per_class=1", "tasks": "sst2,trec", "limit": 6}
    assert icrbench.run(experiment="templates", **names).counts == (36, 0, 0)
    # Zero-shot has no demonstrations and no fit: what would vary is there already.
    assert icrbench.run(experiment="templates-refit,orders", **names).counts == (2 * (8 + 7), 2 * 2 + 2 * 8, 0)
    store = Store(out)
    records = store.records()
    labels = {record["cell"]["label"] for record in records}
    assert {
        "few_shot:per_class=1",
        "few_shot:per_class=1@template=8",
        "few_shot:per_class=1@refit-template=8",
    } <= labels
    assert {"few_shot:per_class=1@order=7", "zero_shot@template=1"} <= labels
    assert len({record["key"] for record in records}) == len(records) == 36 + 30
    for label, spread in sensitivities(store, "templates")[0].spreads["zero_shot"].items():
        varied = [
            record["result"]["accuracy"]
            for number in range(9)
            for record in records
            if record["result"]
            and record["cell"]["task"] == label
            and record["cell"]["label"] == "zero_shot" + (f"@template={number}" if number else "")
        ]
        assert spread.accuracies == tuple(varied)
        assert 1 / 3 <= spread.consistency <= 1
    refit = sensitivities(store, "templates-refit")[0]
    assert set(refit.spreads) == {"zero_shot", "few_shot:per_class=1"}
    assert refit.spreads["zero_shot"] == sensitivities(store, "templates")[0].spreads["zero_shot"]
    (orders,) = sensitivities(store, "orders")
    gains = orders.gains("few_shot:per_class=1")
    average = orders.average("few_shot:per_class=1")
    assert gains is not None
    assert average is not None
    zero_shot = sum(orders.plain.values()) / 2
    assert gains == pytest.approx([accuracy - zero_shot for accuracy in average.accuracies])
    # One fit serves all templates; every order has its own.
    fits = list((out / "fitted").glob("few_shot-*"))
    assert len(fits) == 2 * (1 + 8 + 7)
    # A leaderboard has the plain cells alone.
    assert "@" not in icrbench("report", out).out
    done = icrbench("report", out, "--table", "templates,orders", "--figures")
    assert "vs zero-shot: plain" in done.out
    raw_lines = [line for line in (out / "tables" / "templates.csv").read_text().splitlines() if ",none," in line]
    assert len(raw_lines) == 2 * 2 * 9
    assert (out / "figures" / "templates.png").stat().st_size > 5000
    icrbench.refused(icrbench("report", out, "--table", "demonstrations"), "--experiment demonstrations")


def test_calibrated_answers_are_spread_beside_the_raw(icrbench: Commands) -> None:
    """Each way is corrected by its own prior; the accuracies are those that reports of calibrated answers have."""
    assert icrbench.run(experiment="templates", limit=6, priors=True).code == 0
    store = Store(icrbench.folder / "out")
    raw, *corrected = sensitivities(store, "templates")
    assert raw.calibrate == "none"
    assert {own.calibrate for own in corrected} == {"cc", "dc", "bc"}
    outcomes = Outcomes(store)
    ways = {(r["cell"].get("variation") or {"number": 0})["number"]: r for r in store.records()}
    for own in corrected:
        found = own.spreads["zero_shot"]["sst2"].accuracies
        assert found == tuple(outcomes.answers(ways[way], own.calibrate).correct.mean() for way in range(9))
        assert 0.5 <= own.spreads["zero_shot"]["sst2"].consistency <= 1
    assert "calibrated (cc)" in icrbench("report", icrbench.folder / "out", "--table", "templates").out


def test_a_way_that_is_missing_is_said(icrbench: Commands) -> None:
    assert icrbench.run(experiment="templates", limit=3).counts == (9, 0, 0)
    out = icrbench.folder / "out"
    (gone,) = [r["key"] for r in icrbench.records() if r["cell"]["label"] == "zero_shot@template=4"]
    (out / "cells" / f"{gone}.json").unlink()
    done = icrbench("report", out, "--table", "templates")
    assert "Left out" in done.out
    assert "zero_shot on sst2" in done.out


def test_experiments_with_methods_of_their_own_take_no_others(icrbench: Commands) -> None:
    icrbench.refused(icrbench.run(experiment="main"), "main has methods of its own")
    icrbench.refused(icrbench.run(experiment="main,templates", methods=None), "main has methods of its own")
    icrbench.refused(icrbench.run(methods=None), "--methods", "--experiment")
    assert icrbench.run("--dry-run", experiment="orders", methods=None, tasks="sst2").code == 0


def test_every_variation_has_a_name_and_a_number() -> None:
    for vary, count in WAYS.items():
        ways = variations(vary)
        assert len({str(way) for way in ways}) == len(ways) == count - 1
        assert all(str(way).startswith("@") for way in ways)


def test_what_a_fit_sees_under_another_template() -> None:
    (way,) = [way for way in variations("templates-refit") if way.number == 4]
    pools = way.pools(data().pools)
    assert pools["sst2"].task.template == "Read the input and give the answer.\nInput: {text}\nLabel:"
    (scored,) = [way for way in variations("templates") if way.number == 4]
    assert scored.pools(data().pools) == dict(data().pools)
    (row,) = to_examples(pools["sst2"].task, "test", canonical_rows("here", [{"sentence": "dull", "label": 0}]))
    assert pools["sst2"].task.demonstration(row).endswith("Input: dull\nLabel: negative")
