import json
import subprocess
import sys
import time
from itertools import combinations, pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from cli_setup import Commands, icrbench
from icrbench.report import figures
from icrbench.report.figures import accuracy, latency, routing, theory, write_figures
from icrbench.report.figures.accuracy import Point
from icrbench.report.figures.sources import Routing, latencies, routings, theories
from icrbench.report.figures.style import DOT, apart, spaced, styled
from icrbench.report.leaderboard import AVERAGE, Table, leaderboards
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import add, record, rows

__all__ = ["icrbench"]  # a fixture

TASKS = ("sst2", "trec", "mr", "cb")
LAYERS = [12, 13, 14]


def routed(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    by_task = {}
    for task in TASKS:
        layer = random.random(len(LAYERS))
        head, pid = random.random((len(LAYERS), 4)), random.random(8)
        by_task[task] = {"layer": (layer / layer.sum()).tolist(), "head": head.tolist(), "pid": pid.tolist()}
    about = {"model": "tiny", "label": "icr", "seed": seed, "tasks": list(TASKS)}
    return {"schema": 1, "kind": "routing", **about, "layers": LAYERS, "by_task": by_task}


SECONDS = {"zero_shot": [0.1, 0.2, 0.4], "icr": [0.11, 0.22, 0.43], "few_shot": [0.3, 0.5, 1.1]}
TIMED = {"schema": 1, "kind": "latency", "model": "tiny", "lengths": [16, 32, 64], "seconds": SECONDS}

SINE = [[[0.9, 0.8, 1.0], [0.3, 0.5, 0.4]], [[0.7, 0.6, 0.9], [0.1, 0.3, 0.2]]]
BOUND = [[[1.0, 1.0, 1.0], [0.8, 0.7, 0.9]], [[1.0, 1.0, 1.0], [0.4, 0.25, 0.3]]]  # one of them is below its sine
MADE = {"width": 64, "rank": 8, "seeds": [0, 1, 2], "samples": [512, 4096], "domains": [1, 8]}
KNOWN = {"schema": 1, "kind": "theory", **MADE, "sine": SINE, "bound": BOUND}


def analysed(folder: Path, *contents: dict[str, Any]) -> Path:
    (folder / "analysis").mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents):
        (folder / "analysis" / f"{content['kind']}-{number}.json").write_text(json.dumps(content))
    return folder


def results(folder: Path) -> Path:
    """Zero-shot, a method with three seeds, a cheaper one that lacks a task."""
    store = Store(folder)
    for place, task in enumerate(TASKS):
        right = [index % 3 == 0 for index in range(30)]
        add(store, task, "zero_shot", None, right)
        for seed in range(3):
            better = [index % 2 == 0 or index < 3 * seed + place for index in range(30)]
            made = record(task, "icr", seed, better)
            assert made["result"] is not None
            made["result"].update(cached_parameters=5000, seconds_fit=80.0, fit_tokens=9000, prompt_tokens=300)
            store.write(made, rows(task, better))
        if task != "cb":
            add(store, task, "i2cl", 0, right)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return results(analysed(tmp_path / "run", routed(0), routed(1), TIMED, KNOWN))


@pytest.fixture
def table(folder: Path) -> Table:
    return leaderboards(Store(folder))[0]


def drawn(make: Any, *arguments: Any) -> Figure:
    with styled():
        figure: Figure = make(*arguments)
        figure.draw_without_rendering()
    return figure


def heat(figure: Figure) -> np.ndarray[Any, Any]:
    (image,) = [image for axes in figure.axes for image in axes.images]
    return np.asarray(image.get_array())


def mean_of(name: str) -> np.ndarray[Any, Any]:
    return np.mean([[routed(seed)["by_task"][task][name] for task in TASKS] for seed in (0, 1)], axis=0)


def test_layer_importance_shows_the_means_over_seeds(folder: Path) -> None:
    (found,) = routings(folder)
    assert found.seeds == 2
    figure = drawn(routing.layer_importance, found)
    np.testing.assert_allclose(heat(figure), 100 * mean_of("layer"))
    bars = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(bars, 100 * mean_of("layer").mean(0))
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["12", "13", "14"]
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == list(TASKS)
    written = [text.get_text() for text in figure.axes[1].texts]
    assert written == [f"{value:.0f}" for value in (100 * mean_of("layer")).flat]


def test_heads_are_the_top_of_each_layer_and_task(folder: Path) -> None:
    (found,) = routings(folder)
    head = mean_of("head")
    wanted: dict[tuple[int, int], int] = {}
    for task in range(len(TASKS)):
        for place, layer in enumerate(LAYERS):
            top = max(range(4), key=lambda number: head[task, place, number])
            wanted[layer, top] = wanted.get((layer, top), 0) + 1
    assert routing.top_heads(found) == wanted
    figure = drawn(routing.heads, found)
    (axes,) = figure.axes
    at = {
        (round(float(angle), 6), round(float(radius))): int(text.get_text())
        for text in axes.texts
        for angle, radius in [text.xy]  # type: ignore[attr-defined]
    }
    angles = {layer: round(2 * np.pi * place / 3, 6) for place, layer in enumerate(LAYERS)}
    assert at == {(angles[layer], top + 1): count for (layer, top), count in wanted.items()}
    assert len(axes.lines) == len(TASKS)


def test_a_head_is_consensus_for_more_than_half_of_the_tasks() -> None:
    gates = np.zeros((4, 1, 3))
    for task, top in enumerate((1, 1, 1, 2)):
        gates[task, 0, top] = 1
    figure = drawn(routing.heads, Routing("tiny", "icr", 1, (5,), TASKS, np.ones((4, 1)), gates, np.ones((4, 2))))
    colours = {
        text.get_text(): tuple(dot.get_facecolors()[0])  # type: ignore[attr-defined]
        for text, dot in zip(figure.axes[0].texts, figure.axes[0].collections, strict=True)
    }
    assert colours["3"] != colours["1"] == (1, 1, 1, 1)


def test_correlations_are_spearmans_in_the_order_of_the_clustering(folder: Path) -> None:
    (found,) = routings(folder)
    wanted = np.asarray(spearmanr(mean_of("pid"), axis=1).statistic)
    np.testing.assert_allclose(routing.rank_correlation(found.pid), wanted)
    figure = drawn(routing.pid_correlation, found)
    order = [TASKS.index(label.get_text()) for label in figure.axes[1].get_yticklabels()]
    assert sorted(order) == [0, 1, 2, 3]
    np.testing.assert_allclose(heat(figure), wanted[np.ix_(order, order)])


def test_alike_tasks_stand_together_and_a_constant_row_has_no_correlation() -> None:
    up, down = np.arange(8.0), -np.arange(8.0)
    pid = np.stack([up, down, up + 0.1, np.ones(8)])
    found = Routing("tiny", "icr", 1, (5,), TASKS, np.ones((4, 1)), np.ones((4, 1, 2)), pid)
    figure = drawn(routing.pid_correlation, found)
    order = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert abs(order.index("sst2") - order.index("mr")) == 1
    assert np.isnan(heat(figure)[order.index("cb")]).all()
    assert routing.rank_correlation(pid)[0, 1] == -1


def test_a_correlation_of_almost_nothing_has_no_sign() -> None:
    ranks = np.arange(8.0)
    almost = next(np.array(p) for p in permutations(ranks) if -0.05 < np.corrcoef(ranks, p)[0, 1] < 0)
    found = Routing("tiny", "icr", 1, (5,), ("a", "b"), np.ones((2, 1)), np.ones((2, 1, 2)), np.stack([ranks, almost]))
    figure = drawn(routing.pid_correlation, found)
    assert [text.get_text() for text in figure.axes[1].texts] == ["1.0", "0.0", "0.0", "1.0"]


def test_latency_draws_milliseconds_and_names_each_line(folder: Path) -> None:
    (found,) = latencies(folder)
    figure = drawn(latency.latency, found)
    (axes,) = figure.axes
    shown = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[arg-type]
    assert shown == [([16, 32, 64], pytest.approx([1000 * value for value in own])) for own in SECONDS.values()]
    assert [text.get_text() for text in axes.texts] == list(SECONDS)


def test_theory_draws_median_range_and_bound_of_every_number_of_samples(folder: Path) -> None:
    (found,) = theories(folder)
    figure = drawn(theory.theory, found)
    (axes,) = figure.axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[arg-type]
    medians = [[0.9, 0.4], [1.0, 0.8], [0.7, 0.2], [1.0, 0.3]]  # sine, bound, sine, bound
    assert lines == [([1, 8], pytest.approx(own)) for own in medians]
    bands = [band.get_paths()[0].get_extents() for band in axes.collections[:2]]
    assert [(band.y0, band.y1) for band in bands] == [pytest.approx((0.3, 1.0)), pytest.approx((0.1, 0.9))]
    assert [text.get_text() for text in axes.texts] == ["N = 512", "N = 4096"]
    said = figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]
    assert "8 shared directions in 64 dimensions" in said
    assert "3 seeds" in said
    assert "held in 5 of the 6 draws in which it is below 1" in said


def test_pareto_has_the_means_of_the_records(table: Table) -> None:
    average = {row.label: row.scores[AVERAGE].mean for row in table.rows}
    kept = accuracy.points(table, lambda result: result["cached_parameters"])
    assert {point.label: point.cost for point in kept} == {"zero_shot": 0, "icr": 5000}
    assert {point.label: point.accuracy / 100 for point in kept} == pytest.approx(
        {label: mean for label, mean in average.items() if mean is not None}
    )
    figure = accuracy.pareto(table)
    assert figure is not None
    assert [axes.get_xlabel().replace("\n", " ") for axes in figure.axes] == [
        "numbers kept (cached parameters)",
        "seconds to fit",
        "tokens of a prompt",
    ]  # zero-shot's records, written before tokens were counted, have no tokens of a fit
    dots = [tuple(dot.get_offsets()[0]) for dot in figure.axes[0].collections]  # type: ignore[index]
    assert [y for _, y in dots] == pytest.approx([point.accuracy for point in kept])
    assert "i2cl" in figure._supxlabel.get_text()  # type: ignore[attr-defined]


def test_frontier_is_what_nothing_cheaper_beats() -> None:
    random = np.random.default_rng(3)
    cloud = [Point(str(number), float(a), float(c)) for number, (a, c) in enumerate(random.integers(0, 9, (40, 2)))]
    wanted = {
        (one.cost, one.accuracy)
        for one in cloud
        if not any(
            other.cost <= one.cost
            and other.accuracy >= one.accuracy
            and (other.cost, other.accuracy) != (one.cost, one.accuracy)
            for other in cloud
        )
    }
    found = accuracy.frontier(cloud)
    assert [(one.cost, one.accuracy) for one in found] == sorted(wanted)


def zoo(folder: Path, count: int, name: str = "another_method", longest_prompt: int = 9) -> Table:
    """Methods with few different accuracies and prompts that are all alike but one."""
    store = Store(folder)
    for number, label in enumerate(["zero_shot", *(f"{name}_{number}" for number in range(1, count))]):
        right = [index < 60 + number // 5 for index in range(200)]
        made = record("sst2", label, None, right)
        assert made["result"] is not None
        made["result"].update(cached_parameters=number // 2 * 640, seconds_fit=27.0 if number else 0.0)
        made["result"].update(fit_tokens=4500 * (1 + number % 2) if number else 0)
        made["result"].update(prompt_tokens=200 * (longest_prompt if number == 1 else 1))
        store.write(made, rows("sst2", right))
    (table,) = leaderboards(store)
    return table


@pytest.mark.parametrize("count", [3, 17])
def test_pareto_names_every_mark_beside_its_row_of_panels_and_hides_none(tmp_path: Path, count: int) -> None:
    figure = drawn(accuracy.pareto, zoo(tmp_path, count))
    assert [len(axes.texts) for axes in figure.axes] == [0, count, 0, count]
    assert "Grey line, the Pareto frontier" in figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]
    point = figure.dpi / 72
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
        assert all(0 <= box.x0 < box.x1 <= figure.bbox.x1 and 0 <= box.y0 < box.y1 <= figure.bbox.y1 for box in boxes)
        ticks = [text.get_window_extent() for text in axes.get_xticklabels()]
        assert len(ticks) > 1
        assert not [pair for pair in combinations(ticks, 2) if pair[0].overlaps(pair[1])]
        dots = axes.collections[-count:]
        places = axes.transData.transform([dot.get_offsets()[0] for dot in dots])  # type: ignore[index]
        assert min(np.hypot(*(one - other)) for one, other in combinations(places, 2)) > 0.7 * DOT * point
        shapes = [np.asarray(dot.get_paths()[0].vertices).tobytes() for dot in dots]
        colours = [tuple(dot.get_facecolors()[0]) for dot in dots]  # type: ignore[attr-defined]
        assert len(set(zip(shapes, colours, strict=True))) == count


def test_titles_of_three_costs_keep_clear_of_each_other(tmp_path: Path) -> None:
    figure = drawn(
        accuracy.pareto, zoo(tmp_path, 17, "variant:alpha=uniform:gamma=uniform:encoder=random", longest_prompt=1)
    )
    titles = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
    assert len(titles) == 3
    assert not [pair for pair in combinations(titles, 2) if pair[0].overlaps(pair[1])]


def test_marks_move_only_where_they_hide_each_other() -> None:
    free = [(0.0, 0.0), (10.0, 0.0), (0.0, 7.0)]
    assert apart(free, 4.0) == free
    moved = apart([(5.0, 1.0)] * 4, 4.0)
    assert all(y == 1.0 for _, y in moved)
    assert sorted(x for x, _ in moved) == [1.0, 5.0, 9.0, 13.0]


def test_seeds_are_dots_and_intervals_bars(table: Table) -> None:
    figure = accuracy.seeds(table)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Average", "ID", "Near OOD", "Far OOD"]
    first = figure.axes[0]
    values = [[float(x) for x, _ in dots.get_offsets()] for dots in first.collections]  # type: ignore[union-attr]
    place = [row.label for row in table.rows].index("icr")
    wanted = [
        np.mean([sum(index % 2 == 0 or index < 3 * seed + task for index in range(30)) / 30 for task in range(4)])
        for seed in range(3)
    ]
    assert values[place] == pytest.approx([100 * value for value in wanted])
    interval = table.rows[place].scores[AVERAGE].interval
    assert interval is not None
    bars = [list(line.get_xdata()) for line in first.lines]  # type: ignore[arg-type]
    assert [100 * interval.low, 100 * interval.high] in bars
    wide = [line for line in first.lines if line.get_linewidth() > 1]
    assert {line.get_solid_capstyle() for line in wide} == {"butt"}  # else they would reach beyond the interval
    assert [text.get_text() for text in first.texts] == ["not complete"]


def test_labels_keep_their_distance() -> None:
    placed = spaced([0.5, 0.51, 0.99, 1.0, 0.0], 0.1)
    assert sorted(range(5), key=placed.__getitem__) == [4, 0, 1, 2, 3]
    ordered = sorted(placed)
    assert all(high - low >= 0.1 - 1e-9 for low, high in pairwise(ordered))
    assert max(placed) <= 1
    assert spaced([0.5, 0.52, 0.9], 0.1) == pytest.approx([0.46, 0.56, 0.9])  # both move, and no more than they must
    assert spaced([0.2, 0.3, 0.4], 0.6) == pytest.approx([-0.1, 0.5, 1.1])  # no room


def test_figures_read_each_cells_answers_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    answers = Store.answers

    def counted(store: Store, own: Any) -> Any:
        read.append(own["key"])
        return answers(store, own)

    monkeypatch.setattr(Store, "answers", counted)
    monkeypatch.setattr(figures, "save", lambda figure, path: None)  # what is read is read before
    write_figures(folder, tmp_path / "out")
    assert read
    assert len(read) == len(set(read))


def test_the_same_results_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = write_figures(folder, tmp_path / "one").paths
    time.sleep(1.1)  # dates are written in seconds
    second = write_figures(folder, tmp_path / "two").paths
    names = ("layer-importance", "heads", "pid-correlation", "latency", "theory", "pareto", "seeds")
    assert [path.name for path in first] == [f"{name}.{ending}" for name in names for ending in ("pdf", "png")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_what_is_not_there_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    drawn = write_figures(analysed(tmp_path, TIMED), tmp_path)
    assert {path.stem for path in drawn.paths} == {"latency"}
    said = {sentence.split(":")[0].removeprefix("figure "): sentence for sentence in drawn.missing}
    assert set(said) == {"layer-importance", "heads", "pid-correlation", "theory", "pareto", "seeds", "calibration"}
    assert "icrbench analyse" in said["heads"]
    assert f"icrbench analyse --theory --out {tmp_path}" in said["theory"]
    assert "icrbench run" in said["pareto"]


def test_several_of_a_kind_have_names_of_their_own(folder: Path, tmp_path: Path) -> None:
    other = {**routed(0), "label": "icr:rank=4"}
    paths = write_figures(analysed(folder, routed(0), routed(1), other), tmp_path).paths
    assert {path.stem for path in paths if "heads" in path.stem} == {"heads-tiny-icr", "heads-tiny-icr-rank=4"}
    add(Store(folder), "sst2", "zero_shot", None, [True, False], kind="demo")
    paths = write_figures(folder, tmp_path).paths
    assert {path.stem for path in paths if "seeds" in path.stem} == {"seeds-tiny-paper-full", "seeds-tiny-paper-demo"}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"schema": 1, "kind": "routing"}', json.dumps({**routed(0), "layers": [1]})]
)
def test_a_damaged_analysis_is_named(tmp_path: Path, content: str) -> None:
    analysed(tmp_path)
    (tmp_path / "analysis" / "routing-x.json").write_text(content)
    with pytest.raises(UserError, match=r"routing-x\.json"):
        write_figures(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"seeds": [0]}, {"domains": [1]}, {"sine": BOUND[:1]}, {"bound": [[[2.0] * 3] * 2] * 2}]
)
def test_a_damaged_theory_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"theory-0\.json"):
        theories(analysed(tmp_path, {**KNOWN, **wrong}))


def test_figures_load_no_model_and_need_no_display(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from icrbench.cli import main;"
        "code = main(['report', sys.argv[1], '--figures']);"
        "assert not {'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "figures").iterdir())) == 14


def test_the_command_says_what_is_missing(icrbench: Commands, tmp_path: Path) -> None:
    done = icrbench("report", analysed(tmp_path / "a", TIMED), "--figures", "--out", tmp_path / "b")
    assert done.code == 0
    assert done.err.count("icrbench: figure ") == 7
    assert sorted(path.name for path in (tmp_path / "b" / "figures").iterdir()) == ["latency.pdf", "latency.png"]
    icrbench.refused(icrbench("report", tmp_path / "none", "--figures"), "no folder", "none")
